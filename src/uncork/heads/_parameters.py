"""The weight and bias of a head, as `nn.Linear` makes them."""

import math

import torch
from torch import nn
from torch.types import Device

from uncork.functions._check import at_least


def sizes(in_features: int, num_classes: int) -> tuple[int, int]:
    """Both as ints, if each is at least 1."""
    return at_least("in_features", in_features, 1), at_least("num_classes", num_classes, 1)


def weight_and_bias(
    width: int, num_classes: int, bias: bool, device: Device, dtype: torch.dtype | None
) -> tuple[nn.Parameter, nn.Parameter | None]:
    """(num_classes, width) and (num_classes,), uniform in +-1/sqrt(width)."""
    reach = 1.0 / math.sqrt(width)
    new = lambda *shape: nn.Parameter(torch.empty(*shape, device=device, dtype=dtype).uniform_(-reach, reach))
    return new(num_classes, width), new(num_classes) if bias else None
