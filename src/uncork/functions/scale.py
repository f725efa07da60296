import torch
from torch import Tensor, nn
from torch.nn.functional import softplus
from torch.types import Device

from uncork.functions._check import parameter_dtype, positive
from uncork.functions.base import AbstractMonotone, inverse_softplus
from uncork.ops.pointwise import Pointwise, scaled


class Scale(AbstractMonotone):
    """f(z) = a z with a = softplus(v) learned: an inverse temperature.

    The control for every learnable function: it changes the slope of f and nothing else.

    Arguments:
        init: the value a starts from, above 0.
    """

    def __init__(self, init: float = 1.0, *, device: Device = None, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.init = positive("init", init)
        # With a dimension: FSDP takes no parameter without one.
        self.v = nn.Parameter(torch.empty(1, device=device, dtype=parameter_dtype(dtype)))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Start again from `init`."""
        nn.init.constant_(self.v, inverse_softplus(self.init))

    @property
    def a(self) -> Tensor:
        """The factor, positive."""
        return softplus(self.v).reshape(())

    def forward(self, z: Tensor) -> Tensor:
        return scaled(z, self._factor(z.dtype))

    def derivative(self, z: Tensor) -> Tensor:
        return self._factor(z.dtype).expand_as(z)

    def pointwise(self, dtype: torch.dtype, device: torch.device) -> Pointwise:
        return Pointwise("scale", tensors=(self._factor(dtype),))

    def _factor(self, dtype: torch.dtype) -> Tensor:
        # In 16 bits the factor is rounded, as PLIF's slopes are, so that a start at 1 is exactly 1.
        factor = self.a if self.v.dtype.itemsize < 4 else softplus(self.v.double()).reshape(())
        return factor.to(dtype if dtype.is_floating_point else torch.get_default_dtype())

    def extra_repr(self) -> str:
        # One that is sharded could only be gathered by all processes at once.
        unknown = self.v.is_meta or hasattr(self.v, "full_tensor")
        return "a=?" if unknown else f"a={self.a.item():.6g}"
