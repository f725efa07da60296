"""CUDA sources, compiled at first use by the NVRTC that comes with torch."""

import ctypes
import functools
import struct
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


TABLE_GRADIENT = Path(__file__).with_name("table_gradient.cu")
TABLE_COUNTS = Path(__file__).with_name("table_counts.cu")


class Kernel:
    """A compiled kernel. Torch's own launch looks for the driver and casts every argument, each time anew:
    at small sizes that takes longer than the kernel.
    """

    def __init__(self, compiled: Any, device: int) -> None:
        self.compiled, self.func, self.device = compiled, compiled.func, device

    def __call__(
        self,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        arguments: Sequence[Tensor | float | None],
        shared_mem: int,
    ) -> None:
        """Launch it on the current stream of its device, which is the current one."""
        values = in_memory(arguments)
        stream = torch._C._cuda_getCurrentRawStream(self.device)
        error = driver().cuLaunchKernel(self.func, *grid, *block, shared_mem, stream, addresses(values), None)
        if error:
            reason = ctypes.c_char_p()
            driver().cuGetErrorString(error, ctypes.byref(reason))
            raise RuntimeError(f"CUDA error: {(reason.value or b'Unknown CUDA error').decode()}")


def compiled(source: Path, name: str, macros: dict[str, int], shared_bytes: int, device: int) -> Kernel:
    """The kernel `name`, with its template's arguments, and with that much shared memory."""
    options = ["-std=c++17", f"-I{source.parent}", *(f"-D{macro}={value}" for macro, value in macros.items())]
    with torch.cuda.device(device):
        # A thread that has only reused memory so far, as one of autograd's, has no context to load into.
        torch.cuda.mem_get_info(device)
        kernel = torch.cuda._compile_kernel(source.read_text(), name, nvcc_options=options)
        kernel.set_shared_memory_config(shared_bytes)
    return Kernel(kernel, device)


def launch_together(
    kernel: Any, blocks: int, threads: int, arguments: Sequence[Tensor | int | None], shared_bytes: int
):
    """Start a kernel whose blocks wait for each other: all run at once, or it raises. None is a null."""
    values = in_memory(arguments)
    stream = torch.cuda.current_stream().cuda_stream
    size = (blocks, 1, 1, threads, 1, 1)
    error = driver().cuLaunchCooperativeKernel(kernel.func, *size, shared_bytes, stream, addresses(values))
    if error:
        raise RuntimeError(
            f"{blocks} blocks of {threads} threads could not be started together: CUDA error {error}"
        )


@functools.cache
def driver() -> Any:
    """The library of the driver, and the types of what is called of it."""
    library = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    numbers = [ctypes.c_void_p, *[ctypes.c_uint] * 7]
    library.cuLaunchKernel.argtypes = [*numbers, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    library.cuLaunchCooperativeKernel.argtypes = [*numbers, ctypes.c_void_p, ctypes.c_void_p]
    return library


def in_memory(arguments: Sequence[Tensor | float | None]) -> ctypes.Array:
    """A kernel's arguments, eight bytes for each: of a 32-bit integer the kernel reads the first four."""
    return (ctypes.c_int64 * len(arguments))(*map(_bits, arguments))


def addresses(values: ctypes.Array) -> ctypes.Array:
    """Where each of the arguments is."""
    first = ctypes.addressof(values)
    return (ctypes.c_void_p * len(values))(*range(first, first + 8 * len(values), 8))


def _bits(argument: Tensor | float | None) -> int:
    """A pointer, a whole number, or the bits of a float64, as one integer."""
    if isinstance(argument, int):
        return argument
    if isinstance(argument, float):
        return int.from_bytes(struct.pack("d", argument), sys.byteorder)
    return 0 if argument is None else argument.data_ptr()


@functools.cache
def chip(device: torch.device) -> Any:
    """What torch knows of a GPU. It does not change, and asking takes as long as an operation."""
    return torch.cuda.get_device_properties(device)


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
