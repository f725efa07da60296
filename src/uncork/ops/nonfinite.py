"""The opt-in check of values: logits that are NaN or infinite, and on an accelerator targets out of range."""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

import torch
from torch import Tensor


_detecting: ContextVar[bool] = ContextVar("uncork_detect_nonfinite", default=False)


@contextlib.contextmanager
def detect_nonfinite() -> Iterator[None]:
    """Raise `FloatingPointError` when a logit is NaN or infinite, inside this block.

    It reads the logits back, so on an accelerator every loss waits for the device: for debugging. There it
    also checks the values of targets and of functions, which on CPU is always done.
    """
    token = _detecting.set(True)
    try:
        yield
    finally:
        _detecting.reset(token)


def detecting() -> bool:
    """Whether values are to be read back, wherever they are."""
    return _detecting.get()


def check(logits_NKV: Tensor, start: int = 0) -> None:
    """Inside `detect_nonfinite`, raise if a logit is not finite; `start` is the first token's number."""
    if torch.compiler.is_compiling() or not detecting():  # a graph cannot raise on what it reads
        return
    bad = ~torch.isfinite(logits_NKV)
    if not bad.any():
        return
    token, component, word = bad.nonzero()[0].tolist()
    value = logits_NKV[token, component, word].item()
    raise FloatingPointError(
        f"logits must be finite: {int(bad.sum())} of {bad.numel()} looked at are not, the first at token "
        f"{start + token}, component {component}, word {word} ({value}). Look for NaN or infinity in "
        "`input`, `linear_weight` and `linear_bias`."
    )
