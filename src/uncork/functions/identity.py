import torch
from torch import Tensor

from uncork.functions.base import AbstractMonotone
from uncork.ops.pointwise import IDENTITY, Pointwise


class Identity(AbstractMonotone):
    """f(z) = z: the plain softmax."""

    def forward(self, z: Tensor) -> Tensor:
        return z

    def derivative(self, z: Tensor) -> Tensor:
        return torch.ones_like(z)

    def pointwise(self, dtype: torch.dtype, device: torch.device) -> Pointwise:
        return IDENTITY

    def extra_repr(self) -> str:
        return "z"
