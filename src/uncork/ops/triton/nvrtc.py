"""CUDA sources of this folder, compiled at first use by the NVRTC that comes with torch."""

import functools
import warnings
from pathlib import Path

import torch


def compiled(name: str, arguments: str, macros: dict[str, int], shared_bytes: int, device: int):
    """The kernel `name` of the source of that name, a callable of torch, with that much shared memory."""
    source = Path(__file__).with_name(f"{name}.cu").read_text()
    options = ["-std=c++17", *(f"-D{macro}={value}" for macro, value in macros.items())]
    with torch.cuda.device(device):
        kernel = torch.cuda._compile_kernel(source, name + arguments, nvcc_options=options)
        kernel.set_shared_memory_config(shared_bytes)
    return kernel


@functools.cache
def can_compile(device: int) -> bool:
    """Whether torch's run-time compiler works here; where it does not, the integer sums take over."""
    try:
        compiled("table_gradient", "<float, false>", {"EACH": 1}, 1024, device)
    except (AttributeError, OSError, RuntimeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        warnings.warn(f"the fast sums of a learned function cannot be compiled here: {reason}", stacklevel=2)
        return False
    return True
