"""The weight and bias of a head, before they have values, and the device of its function."""

from itertools import chain

import torch
from torch import Tensor, nn
from torch.types import Device

from uncork.functions._check import at_least, parameter_dtype


def sizes(in_features: int, num_classes: int) -> tuple[int, int]:
    """Both as ints, if each is at least 1."""
    return at_least("in_features", in_features, 1), at_least("num_classes", num_classes, 1)


def weight_and_bias(
    width: int, num_classes: int, bias: bool, device: Device, dtype: torch.dtype | None
) -> tuple[nn.Parameter, nn.Parameter | None]:
    """(num_classes, width) and (num_classes,)."""
    dtype = parameter_dtype(dtype)
    new = lambda *shape: nn.Parameter(torch.empty(*shape, device=device, dtype=dtype))
    return new(num_classes, width), new(num_classes) if bias else None


def beside(function: nn.Module, weight: Tensor, device: Device) -> nn.Module:
    """The function on the device of the weight, if one was named; otherwise where it was made."""
    held = chain(function.parameters(), function.buffers())
    # Only if it must be: parameters without values, as FakeTensorMode makes, cannot be moved.
    if device is not None and any(t.device != weight.device for t in held):
        return function.to(device=weight.device)
    return function
