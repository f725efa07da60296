import torch
from torch import Tensor

from uncork.functions._check import finite, positive
from uncork.functions.base import AbstractMonotone
from uncork.ops import pointwise
from uncork.ops.pointwise import Pointwise


class SigSoftmax(AbstractMonotone):
    """f(z) = 2z - softplus(z), so that exp f = exp(z) sigmoid(z) (Kanai et al., 2018)."""

    def forward(self, z: Tensor) -> Tensor:
        return pointwise.generalized_sigsoftmax(z, 0.0, 2.0)

    def derivative(self, z: Tensor) -> Tensor:
        return pointwise.generalized_sigsoftmax_slope(z, 0.0, 2.0)

    def pointwise(self, dtype: torch.dtype, device: torch.device) -> Pointwise:
        return Pointwise("sigsoftmax", (0.0, 2.0))

    def extra_repr(self) -> str:
        return "2z - softplus(z)"


class GeneralizedSigSoftmax(AbstractMonotone):
    """f(z) = k(z - c) + c - (k - 1) softplus(z - c), slope k far below c and 1 far above it.

    (c, k) = (0, 1) is softmax, (0, 2) Sigsoftmax (Parthiban et al., 2021).

    Arguments:
        shift: c.
        steepness: k, above 0.
    """

    def __init__(self, shift: float, steepness: float) -> None:
        super().__init__()
        self.shift = finite("shift", shift)
        self.steepness = positive("steepness", steepness)

    def forward(self, z: Tensor) -> Tensor:
        return pointwise.generalized_sigsoftmax(z, self.shift, self.steepness)

    def derivative(self, z: Tensor) -> Tensor:
        return pointwise.generalized_sigsoftmax_slope(z, self.shift, self.steepness)

    def pointwise(self, dtype: torch.dtype, device: torch.device) -> Pointwise:
        return Pointwise("sigsoftmax", (self.shift, self.steepness))

    def extra_repr(self) -> str:
        return f"shift={self.shift:g}, steepness={self.steepness:g}"
