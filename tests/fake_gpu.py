"""A machine that looks as if it had a GPU, for code that launches kernels and tensors that hold nothing."""

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor

import uncork
from uncork.functions.base import AbstractMonotone
from uncork.ops import chunked, custom, matmul, triton, validate


# Of an H200: what the launches ask of a chip.
CHIP = SimpleNamespace(multi_processor_count=132, shared_memory_per_block_optin=232_448)
Launch = Callable[[Any, Any, tuple, dict[str, Any]], Any]


def pretend(patch: pytest.MonkeyPatch, launched: Launch, launched_cuda: Callable[[Path], Any]) -> None:
    """Under FakeTensorMode losses take the way they take on a GPU.

    Instead of being launched a Triton kernel goes to `launched`, with its grid, arguments and keywords; of a
    kernel in CUDA the path of the source goes to `launched_cuda`.
    """
    from triton.runtime import jit

    from uncork.ops.triton import nvrtc

    launcher = lambda kernel, grid: lambda *given, **named: launched(kernel, grid, given, named)
    patch.setattr(jit.KernelInterface, "__getitem__", launcher)
    patch.setattr(nvrtc, "compiled", lambda source, *_: lambda *_, **__: launched_cuda(source))
    patch.setattr(nvrtc, "can_compile", lambda device: True)
    patch.setattr(torch.cuda, "get_device_properties", lambda device: CHIP)
    patch.setattr(torch.Tensor, "is_cuda", True)
    patch.setattr(torch.Tensor, "is_cpu", False)
    patch.setitem(chunked.DEFAULT_CHUNK_BYTES, "cpu", chunked.DEFAULT_CHUNK_BYTES["cuda"])
    patch.setattr(matmul, "TF32_ON", {"cpu"})
    patch.setattr(triton, "obstacle", lambda device: "")
    patch.setattr(validate, "values", lambda problem: None)
    patch.setattr(validate, "finite_parameters", lambda function, device: None)
    patch.setattr(custom, "PLAIN", (*custom.PLAIN, FakeTensor))


def call_of(
    shape: Sequence[int],
    words: int,
    *,
    function: AbstractMonotone | None = None,
    dense: bool = False,
    dtype: torch.dtype = torch.float32,
    **keywords: Any,
) -> Callable[[], torch.Tensor]:
    """Computes the loss of latent vectors (N, D), or (N, K, D) for a mixture, which hold nothing."""
    x, weight = (torch.empty(size, dtype=dtype).requires_grad_() for size in (shape, (words, shape[-1])))
    target = torch.empty(shape[0], words) if dense else torch.empty(shape[0], dtype=torch.int64)
    keywords |= {"function": function, "backend": "triton"}
    if len(shape) == 2:
        return lambda: uncork.linear_cross_entropy(x, weight, target, **keywords)
    log_prior = torch.empty(*shape[:2]).requires_grad_()
    return lambda: uncork.mixture_cross_entropy(x, log_prior, weight, target, **keywords)


def loss_of(*given: Any, **named: Any) -> torch.Tensor:
    """See `call_of`."""
    return call_of(*given, **named)()
