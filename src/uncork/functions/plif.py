"""The piecewise-linear increasing function of Ganea et al. (2019)."""

import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus
from torch.types import Device

from uncork.functions._check import at_least, knot_count, parameter_dtype, positive, table_bound
from uncork.functions.base import AbstractMonotone, at_least_float32, fill_, inverse_softplus
from uncork.ops import table, triton
from uncork.ops.pointwise import Pointwise
from uncork.ops.validate import FLOAT32, floating


class PLIF(AbstractMonotone):
    """f(x) = F_i + s_i (x - l_i) on k equal intervals of [-T, T], with slopes s_i = softplus(v_i) > 0.

    Knots l_i = -T + i d, d = 2T/k; F_i = -T + d (s_0 + ... + s_{i-1}). The end pieces continue
    outside the bound, so f is a bijection of the real line. With every slope 1 it is the identity.

    Arguments:
        knots: k, the number of intervals, at least 2.
        bound: T, above 0. See `outside_share` and `fit_bound_`.
        init: "identity" (every slope 1: a head over a trained model starts as that model), or
            "random" (the authors' v ~ N(0, 1) + log(e - 1)).
        seed: makes "random" repeatable; None draws from torch's global generator.
    """

    def __init__(
        self,
        knots: int = 100_000,
        bound: float = 20.0,
        init: Literal["identity", "random"] = "identity",
        seed: int | None = None,
        *,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.knots = knot_count(knots)
        self.bound = table_bound("bound", bound)
        if init not in ("identity", "random"):
            raise ValueError(
                f'`init` must be "identity" or "random", got {init!r}. For another start, set `v` afterwards.'
            )
        self.init = init
        self.seed = None if seed is None else at_least("seed", seed, 0)
        if seed is not None and seed >= 2**64:
            raise ValueError(f"`seed` must be below 2^64, got {seed}. Pass a smaller number such as 0.")
        self.v = nn.Parameter(torch.empty(knots, device=device, dtype=parameter_dtype(dtype)))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Start again from `init`."""
        one = inverse_softplus(1.0)
        if self.init == "identity":
            nn.init.constant_(self.v, one)
            return
        generator = None if self.seed is None else torch.Generator().manual_seed(self.seed)
        noise = torch.randn(self.knots, generator=generator, dtype=torch.float64, device="cpu")
        fill_(self.v, noise + one)

    @property
    def slopes(self) -> Tensor:
        """s_0 .. s_{k-1}, positive."""
        return softplus(self.v)

    def knot_values(self) -> Tensor:
        """F_0 .. F_k, differentiable.

        The cumulative sum runs over up to a million terms: in float64, whatever the dtype.
        """
        narrow = self.v.dtype.itemsize < 4
        compiling = torch.compiler.is_compiling()
        if self.v.is_cuda and not narrow and not compiling and not triton.obstacle(self.v.device):
            from uncork.ops.triton.knots import knot_values

            return knot_values(self.v, self.bound)
        sums = self._wide_slopes().cumsum(0)
        # Counted from the middle, as the knots are, and then scaled: slopes of exactly 1 give the knots to
        # the last bit, and no value is rounded to below the one before it.
        steps = torch.cat([sums.new_zeros(1), sums]) - 0.5 * self.knots
        return steps * (2.0 * self.bound / self.knots)

    def _wide_slopes(self) -> Tensor:
        """The slopes in float64."""
        # In 16 bits, softplus of the v nearest to log(e - 1) is not 1, and a head would not start as the
        # identity. Rounded to 16 bits it is 1: so the slopes are taken in the dtype of v.
        narrow = self.v.dtype.itemsize < 4
        return self.slopes.double() if narrow else softplus(self.v.double())

    def forward(self, z: Tensor) -> Tensor:
        # A bfloat16 logit near 10 is known to 0.06, which is 156 knots: the table is read in float32.
        z = at_least_float32(z)
        return table.piecewise_linear(z, self.knot_values(), self.bound)

    def derivative(self, z: Tensor) -> Tensor:
        table.check_device(z, self.v.device)
        z = at_least_float32(z)
        index, _ = table.locate(z.detach(), self.knots, self.bound)
        return table.look_up(self._wide_slopes().to(z.dtype), index)

    def pointwise(self, dtype: torch.dtype, device: torch.device) -> Pointwise:
        return Pointwise("table", (self.bound, 0.0), (self.knot_values(),))

    @torch.no_grad()
    def outside_share(self, logits: Tensor) -> float:
        """The share of `logits` outside [-T, T], where only the two end slopes act; NaN counts as outside."""
        if floating("logits", logits).numel() == 0:
            raise ValueError(
                f"`logits` must not be empty, got shape {tuple(logits.shape)}: a share of nothing is not "
                "defined. Pass those of at least one token."
            )
        return 1.0 - (logits.abs() <= self.bound).double().mean().item()

    @torch.no_grad()
    def fit_bound_(self, logits: Tensor, margin: float = 0.1) -> float:
        """Set the bound to cover `logits` with `margin` to spare, keep the function, return the bound.

        The new slopes are means of the old function over the new intervals: equal where the old was
        linear, and f at the new knots is unchanged up to a constant, which cancels in the softmax.
        """
        if floating("logits", logits).numel() == 0:
            raise ValueError(
                f"`logits` must not be empty, got shape {tuple(logits.shape)}: there is nothing to fit the "
                "bound to. Pass those of at least one token."
            )
        largest = logits.abs().amax().item()
        if not (math.isfinite(largest) and largest > 0):
            raise ValueError(
                f"`logits` must be finite and not all 0, got a largest size of {largest}. Leave out masked "
                "words and tokens that went wrong."
            )
        bound = table_bound("bound", largest * (1.0 + positive("margin", margin)))
        old = self.knot_values()
        evaluate = lambda x: table.piecewise_linear(x, old, self.bound)
        slope = table.tabulate(evaluate, self.knots, bound, self.v.device).diff() * (
            self.knots / (2.0 * bound)
        )
        # No mean of slopes is below the least of them. A difference of rounded values may be, even 0, and
        # then v would be -inf.
        least = max(softplus(self.v.double()).amin().item(), FLOAT32.tiny)
        slope = slope.clamp(min=least)
        self.v.copy_(slope + torch.log(-torch.expm1(-slope)))
        self.bound = bound
        return bound

    def departure(self) -> Tensor:
        """The mean over [-T, T] of (s - 1)^2, differentiable: how far f is from the identity.

        Not weighted by where logits fall: where none do, slopes get no gradient from the loss, and nothing
        but a random start takes them away from 1.
        """
        return (softplus(self.v.double()) - 1.0).square().mean()

    def roughness(self) -> Tensor:
        """The mean over [-T, T] of (ds/dx)^2, differentiable; s changes only at the k - 1 inner knots."""
        change = softplus(self.v.double()).diff()
        step = 2.0 * self.bound / self.knots
        return change.square().sum() / (2.0 * self.bound * step)

    @torch.no_grad()
    def refine_(self, knots: int) -> None:
        """Move to a finer table, `knots` being a multiple of the present number, and keep the function.

        The parameter stays the same object and forgets its gradient. An optimiser that keeps a state for each
        slope must be created anew.
        """
        if knot_count(knots) % self.knots:
            raise ValueError(
                f"`knots` must be a multiple of the present {self.knots}, got {knots}: only then is the "
                f"function the same on the finer table. Pass e.g. {-(-knots // self.knots) * self.knots}."
            )
        self.v.data = self.v.repeat_interleave(knots // self.knots)
        self.v.grad = None
        self.knots = knots

    def get_extra_state(self) -> Tensor:
        """The bound goes with the slopes: a table read with another bound is another function."""
        return torch.tensor(self.bound, dtype=torch.float64, device="cpu")

    def set_extra_state(self, state: Tensor) -> None:
        self.bound = table_bound("bound", float(state))

    def extra_repr(self) -> str:
        return f"knots={self.knots}, bound={self.bound:g}, init={self.init!r}"
