"""CUDA sources, compiled at first use by the NVRTC that comes with torch."""

import ctypes
import functools
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


TABLE_GRADIENT = Path(__file__).with_name("table_gradient.cu")
TABLE_COUNTS = Path(__file__).with_name("table_counts.cu")


def compiled(source: Path, name: str, macros: dict[str, int], shared_bytes: int, device: int):
    """The kernel `name`, with its template's arguments, a callable of torch, with that much shared memory."""
    options = ["-std=c++17", f"-I{source.parent}", *(f"-D{macro}={value}" for macro, value in macros.items())]
    with torch.cuda.device(device):
        # A thread that has only reused memory so far, as one of autograd's, has no context to load into.
        torch.cuda.mem_get_info(device)
        kernel = torch.cuda._compile_kernel(source.read_text(), name, nvcc_options=options)
        kernel.set_shared_memory_config(shared_bytes)
    return kernel


def launch_together(
    kernel: Any, blocks: int, threads: int, arguments: list[Tensor | int | None], shared_bytes: int
):
    """Start a kernel whose blocks wait for each other: all run at once, or it raises. None is a null."""
    driver = ctypes.CDLL("libcuda.so.1")
    values = [
        ctypes.c_int(a) if isinstance(a, int) else ctypes.c_void_p(None if a is None else a.data_ptr())
        for a in arguments
    ]
    places = [ctypes.cast(ctypes.pointer(value), ctypes.c_void_p) for value in values]
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    size = (blocks, 1, 1, threads, 1, 1)
    places = (ctypes.c_void_p * len(places))(*places)
    error = driver.cuLaunchCooperativeKernel(kernel.func, *size, shared_bytes, stream, places)
    if error:
        raise RuntimeError(
            f"{blocks} blocks of {threads} threads could not be started together: CUDA error {error}"
        )


@functools.cache
def can_compile(device: int) -> bool:
    """Whether torch's run-time compiler works here; where it does not, other kernels take over."""
    try:
        compiled(TABLE_GRADIENT, "table_gradient<float, 0, false>", {"EACH": 1}, 1024, device)
    except (AttributeError, OSError, RuntimeError) as error:
        # Memory may be free again at the next call; the answer given here is for good.
        if "out of memory" in str(error) or isinstance(error, torch.cuda.OutOfMemoryError):
            raise
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        warnings.warn(
            f"uncork cannot compile its CUDA sources ({reason}). Gradients of tables (PLIF, Tabulated) will "
            "use 64-bit integer sums, which are slower. Check that torch's NVRTC library can be loaded.",
            stacklevel=2,
        )
        return False
    return True
