"""Any increasing module at the cost of PLIF."""

import torch
from torch import Tensor, nn

from uncork.functions._check import knot_count, table_bound
from uncork.functions.base import AbstractMonotone, at_least_float32
from uncork.ops import table
from uncork.ops.pointwise import Pointwise


class Tabulated(AbstractMonotone):
    """The piecewise-linear interpolant of another increasing module, rebuilt at every call.

    The wrapped module is evaluated on k + 1 knots instead of on every logit, and its parameters are
    trained through the table. Against the module itself the value is off by at most d^2/8 max|f''| and the
    slope by d/2 max|f''| inside [-bound, bound], d = 2 bound / knots; outside, the end pieces go on.

    Arguments:
        function: an increasing elementwise module.
        knots, bound: the table's, as for `PLIF`.
    """

    def __init__(self, function: nn.Module, knots: int = 100_000, bound: float = 20.0) -> None:
        super().__init__()
        if not isinstance(function, nn.Module):
            raise TypeError(
                f"`function` must be an increasing nn.Module, got {function!r}. Give a formula a module's "
                "forward."
            )
        self.function = function
        self.knots = knot_count(knots)
        self.bound = table_bound("bound", bound)

    def forward(self, z: Tensor) -> Tensor:
        z = at_least_float32(z)
        return table.piecewise_linear(z, self._knot_values(z.device), self.bound)

    def derivative(self, z: Tensor) -> Tensor:
        z = at_least_float32(z)
        index, _ = table.locate(z.detach(), self.knots, self.bound)
        _, slope = table.values_and_slopes(self._knot_values(z.device), self.bound, z.dtype)
        return table.look_up(slope, index)

    def pointwise(self, dtype: torch.dtype, device: torch.device) -> Pointwise:
        return Pointwise("table", (self.bound, 0.0), (self._knot_values(device),))

    def _knot_values(self, device: torch.device) -> Tensor:
        return table.tabulate_module(self.function, self.knots, self.bound, device)

    def extra_repr(self) -> str:
        return f"knots={self.knots}, bound={self.bound:g}"
