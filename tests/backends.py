"""The backends the battery runs over, and the device it runs on."""

import contextlib
import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

import uncork
from uncork.ops import cpu_pass, triton


# Where the cases live: UNCORK_TEST_DEVICE=cuda runs the same tests on a GPU.
DEVICE = torch.device(os.environ.get("UNCORK_TEST_DEVICE", "cpu"))
reads_values = pytest.mark.skipif(DEVICE.type != "cpu", reason="the host would have to wait for the values")
# Float64 sums of torch's own index_add take their terms in any order on a GPU.
ORDER = 0.0 if DEVICE.type == "cpu" else 1e-12


@dataclass(frozen=True)
class Backend:
    """One way to compute a loss: the name the ops take, and what must hold around the call."""

    id: str
    name: str
    around: Callable[[], contextlib.AbstractContextManager] = contextlib.nullcontext
    exact: bool = False  # evaluates a smooth function itself, never its table
    tabulates: bool = False  # reads a table even of a module that asked for none
    narrow: bool = False  # multiplies gradients of logits in the dtype of the input, as torch does
    slow: bool = False  # costs milliseconds per token: tests whose point is not the size take a smaller one
    missing: str = ""  # why it cannot run here

    @contextlib.contextmanager
    def on(self, chunk: int = 300) -> Iterator[None]:
        """Ready to run, with a byte budget small enough for several chunks at the sizes used here."""
        with self.around(), uncork.chunk_bytes(chunk):
            yield


@contextlib.contextmanager
def as_on_a_gpu() -> Iterator[None]:
    """Triton's interpreter computes in numpy, which warns of NaN and overflow; a GPU, like torch, does not.

    It also cuts float32 off to bfloat16, which a GPU rounds: that would shrink every gradient. And rows as
    short as those of the battery count as long, so that those in bfloat16 are folded.
    """
    from uncork.ops.triton import kernel_pass

    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore", RuntimeWarning)
        patch.setattr(kernel_pass, "SHORT_ROW", 0)
        if os.environ.get("TRITON_INTERPRET") == "1":
            from triton.runtime import interpreter

            patch.setattr(interpreter, "_convert_float", _rounding(interpreter._convert_float))
        yield


def _rounding(convert: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    def call(data: np.ndarray, source: Any, result: Any, mode: Any) -> np.ndarray:
        if str(source) == "fp32" and str(result) == "bf16":
            return torch.from_numpy(data.view(np.float32)).bfloat16().view(torch.int16).numpy()
        return convert(data, source, result, mode)

    return call


REFERENCE = Backend("reference", "reference", exact=True)
CHUNKED = Backend("chunked", "chunked")
CHUNKED_TORCH = Backend("chunked_torch", "chunked", around=cpu_pass.disabled)
# Its kernels take float32 and below; float64 goes through the torch pass. On CPU an interpreter runs them,
# chosen when Triton is imported: a run of its own, TRITON_INTERPRET=1 pytest -k triton (see the Makefile).
TRITON = Backend(
    "triton", "triton", around=as_on_a_gpu, tabulates=True, narrow=True, slow=DEVICE.type == "cpu",
    missing=triton.obstacle(DEVICE),
)  # fmt: skip
ALL_BACKENDS = [b for b in (REFERENCE, CHUNKED, CHUNKED_TORCH, TRITON) if not b.missing]

over_backends = pytest.mark.parametrize("backend", ALL_BACKENDS, ids=lambda b: b.id)
over_fused = pytest.mark.parametrize(
    "backend", [b for b in ALL_BACKENDS if b is not REFERENCE], ids=lambda b: b.id
)
