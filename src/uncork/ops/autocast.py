"""torch.autocast around and inside the ops."""

import contextlib

import torch
from torch import Tensor


# Asked by name: torch.compile of torch 2.11 cannot trace torch.amp.is_autocast_available.
DEVICES = tuple(d for d in ("cpu", "cuda", "xpu", "mps", "hpu", "xla") if torch.amp.is_autocast_available(d))


def off(device_type: str) -> contextlib.AbstractContextManager:
    """Nothing inside is cast. Where nothing would be, this costs nothing, as torch's own context does not."""
    if not enabled(device_type):
        return contextlib.nullcontext()
    return torch.autocast(device_type, enabled=False)


def enabled(device_type: str) -> bool:
    """Whether torch.autocast is on for this device."""
    return device_type in DEVICES and torch.is_autocast_enabled(device_type)


def operands(hidden: Tensor, linear_weight: Tensor, linear_bias: Tensor | None):
    """The operands as `linear` would see them under torch.autocast."""
    if not isinstance(hidden, Tensor) or not isinstance(linear_weight, Tensor):
        return hidden, linear_weight, linear_bias
    device = hidden.device.type
    if not enabled(device) or hidden.dtype == torch.float64:
        return hidden, linear_weight, linear_bias
    dtype = torch.get_autocast_dtype(device)
    cast = lambda t: t.to(dtype) if isinstance(t, Tensor) and t.is_floating_point() else t
    return cast(hidden), cast(linear_weight), cast(linear_bias)
