import torch
from torch import Tensor

from uncork.functions._check import positive
from uncork.functions.base import AbstractMonotone
from uncork.ops import pointwise
from uncork.ops.pointwise import Pointwise


class SoftCap(AbstractMonotone):
    """f(z) = c tanh(z / c): logits kept inside (-c, c), as in Gemma 2. Increasing but bounded.

    Arguments:
        cap: c, above 0.
    """

    def __init__(self, cap: float) -> None:
        super().__init__()
        self.cap = positive("cap", cap)

    def forward(self, z: Tensor) -> Tensor:
        return pointwise.softcap(z, self.cap)

    def derivative(self, z: Tensor) -> Tensor:
        return pointwise.softcap_slope(z, self.cap)

    def pointwise(self, dtype: torch.dtype, device: torch.device) -> Pointwise:
        return Pointwise("softcap", (self.cap, 0.0))

    def extra_repr(self) -> str:
        return f"cap={self.cap:g}"
