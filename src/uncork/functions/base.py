"""What every increasing function is: elementwise, increasing, with a known slope."""

import abc
import math
from typing import Any

import torch
from torch import Tensor, nn

from uncork.ops.pointwise import Pointwise


class AbstractMonotone(nn.Module, abc.ABC):
    """An increasing function applied to every logit before the softmax.

    A subclass defines `forward` and `derivative`. A plain `nn.Module` with `forward` alone does as well:
    without `pointwise` the chunked loss evaluates a function exactly, by autograd on each chunk.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # A form is that of the `forward` it stands beside or below; one that comes first has replaced that.
        place = lambda name: next(i for i, each in enumerate(cls.__mro__) if name in vars(each))
        if place("forward") < place("pointwise"):
            cls.pointwise = AbstractMonotone.pointwise

    @abc.abstractmethod
    def forward(self, z: Tensor) -> Tensor:
        """f(z), elementwise."""

    @abc.abstractmethod
    def derivative(self, z: Tensor) -> Tensor:
        """f'(z), elementwise; the slope to the right where f has a corner."""

    def pointwise(self, dtype: torch.dtype, device: torch.device) -> Pointwise | None:
        """The form the fused losses take; None asks for exact evaluation.

        Factors are in `dtype`, that of the logits; the values of a table are float64, whatever it is.
        """
        return None


def at_least_float32(z: Tensor) -> Tensor:
    """`z` in its own dtype, or in float32 where that is narrower."""
    return z.to(torch.promote_types(z.dtype, torch.float32))


@torch.no_grad()
def fill_(parameter: nn.Parameter, values: Tensor) -> None:
    """Give a parameter these values; one that is sharded over processes gets those of the first of them."""
    if hasattr(parameter, "full_tensor"):
        from torch.distributed.tensor import DTensor, distribute_tensor

        assert isinstance(parameter, DTensor)
        values = values.to(parameter.device, parameter.dtype)
        values = distribute_tensor(values, parameter.device_mesh, parameter.placements)
    parameter.copy_(values)


def inverse_softplus(value: float) -> float:
    """v with softplus(v) = value."""
    # log(exp(value) - 1), written so that large values do not overflow.
    return value + math.log(-math.expm1(-value))
