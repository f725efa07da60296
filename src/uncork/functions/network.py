"""The monotone network of Daniels & Velikova (2010), the paper's choice for its synthetic experiment."""

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus
from torch.types import Device

from uncork.functions._check import at_least, knot_count, parameter_dtype, table_bound
from uncork.functions.base import AbstractMonotone, at_least_float32, fill_, inverse_softplus
from uncork.ops import table
from uncork.ops.pointwise import Pointwise, scaled


# Where the units' centres start: logits of a trained language model lie within.
CENTRES = 10.0
# Up to this many numbers (arguments times units) in float64, such as the knots of a table, all units are
# evaluated in one operation. Not in float32: the gradient of v would then be a float32 product over all
# logits, two digits short.
AT_ONCE = 2**22
FAR = 1e30


class MonotoneNetwork(AbstractMonotone):
    """f(x) = sum_i v_i sigmoid(u_i x + b_i) + b, with u, v >= 0 through softplus.

    It starts close to the identity on [-10, 10], the closer the more units it has. Without `skip` it is
    bounded; `skip=True` adds softplus(a) x, which makes it a bijection.

    In the chunked loss it is tabulated by default: evaluating it on every logit would need N x V x units
    memory. Within the bound the table's value is off by at most d^2/8 max|f''| and its slope by
    d/2 max|f''|, with d = 2 bound/knots; `table_error()` gives both. Beyond it the table goes on straight,
    while the network without `skip` flattens: losses and scores then differ. `tabulate=False` evaluates it
    exactly, chunk by chunk.

    Arguments:
        units: number of sigmoids, at least 1.
        skip: add a learned linear term.
        tabulate, knots, bound: whether and how the fused losses tabulate it.
    """

    def __init__(
        self,
        units: int,
        skip: bool = False,
        *,
        tabulate: bool = True,
        knots: int = 100_000,
        bound: float = 20.0,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.units = at_least("units", units, 1)
        self.skip = bool(skip)
        self.tabulate = bool(tabulate)
        self.knots = knot_count(knots)
        self.bound = table_bound("bound", bound)
        dtype = parameter_dtype(dtype)
        new = lambda *shape: nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        self.raw_u, self.raw_v, self.b = new(units), new(units), new(units)
        # With a dimension: FSDP takes no parameter without one.
        self.bias = new(1)
        self.raw_a = new(1) if skip else None
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Equal sigmoids side by side, whose sum is close to a line of slope 1 (1/2 beside a skip)."""
        gap = 2.0 * CENTRES / self.units
        height = gap if self.raw_a is None else gap / 2
        steepness = 2.0 / gap
        centres = (torch.arange(self.units, dtype=torch.float64, device="cpu") + 0.5) * gap - CENTRES
        self.raw_u.fill_(inverse_softplus(steepness))
        self.raw_v.fill_(inverse_softplus(height))
        fill_(self.b, -steepness * centres)
        self.bias.fill_(-height * self.units / 2)
        if self.raw_a is not None:
            self.raw_a.fill_(inverse_softplus(0.5))

    def _parameters_in(self, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]:
        """u, v, b, bias and a in `dtype`."""
        u, v = softplus(self.raw_u.to(dtype)), softplus(self.raw_v.to(dtype))
        a = None if self.raw_a is None else softplus(self.raw_a.to(dtype)).reshape(())
        return u, v, self.b.to(dtype), self.bias.to(dtype).reshape(()), a

    def forward(self, z: Tensor) -> Tensor:
        z = at_least_float32(z)
        u, v, b, bias, a = self._parameters_in(z.dtype)
        # Beyond FAR every sigmoid is 0 or 1. Unclamped, the gradient at a word masked by z = -inf would be
        # 0 times infinity, NaN.
        near = z.clamp(-FAR, FAR)
        if z.dtype == torch.float64 and z.numel() * self.units <= AT_ONCE:
            f = torch.sigmoid(near[..., None] * u + b) @ v + bias
        else:
            # One unit at a time: no tensor of size z x units, except what autograd keeps.
            f = bias.expand_as(z)
            for i in range(self.units):
                f = f + v[i] * torch.sigmoid(u[i] * near + b[i])
        return f if a is None else f + scaled(z, a)

    def derivative(self, z: Tensor) -> Tensor:
        z = at_least_float32(z)
        u, v, b, _, a = self._parameters_in(z.dtype)
        slope = torch.zeros_like(z) if a is None else a.expand_as(z)
        for i in range(self.units):
            inner = u[i] * z + b[i]
            slope = slope + v[i] * u[i] * torch.sigmoid(inner) * torch.sigmoid(-inner)  # 1 - s would cancel
        return slope

    def pointwise(self, dtype: torch.dtype, device: torch.device) -> Pointwise | None:
        if not self.tabulate:
            return None
        values = table.tabulate(self.forward, self.knots, self.bound, device)
        return Pointwise("table", (self.bound, 0.0), (values,))

    @torch.no_grad()
    def table_error(self) -> tuple[float, float]:
        """Bounds on the table's error in value and slope, inside [-bound, bound].

        |sigmoid''| <= 1 / (6 sqrt 3), so |f''| <= sum_i v_i u_i^2 / (6 sqrt 3).
        """
        u, v, *_ = self._parameters_in(torch.float64)
        curvature = (v * u.square()).sum().item() / (6.0 * 3.0**0.5)
        step = 2.0 * self.bound / self.knots
        return step**2 / 8 * curvature, step / 2 * curvature

    def extra_repr(self) -> str:
        how = f"tabulated on {self.knots} intervals of [-{self.bound:g}, {self.bound:g}]"
        return f"units={self.units}, skip={self.skip}, {how if self.tabulate else 'exact'}"
