"""Sums per knot of a table function: what they must give, and the exact way.

`IntegerSums` adds fixed-point integers with global atomics inside the Triton kernel: the same bits on every
run, and it runs in the interpreter. `uncork.ops.triton.window_sums` has the fast ways.
"""

import abc

import torch
from torch import Tensor

from uncork.ops.pointwise import value
from uncork.ops.problem import Problem
from uncork.ops.triton.kernels import BEYOND, BEYOND_SLOTS


# Bits of headroom below 2^63 for the largest sum a knot can reach.
UNITS = 2.0**61
# Behind the knots: what lies beyond the table, by how far, below and above; a count of what is not finite.
BEHIND = 2 * BEYOND_SLOTS.value + 1


class Sums(abc.ABC):
    """Collects dL/dF of the k + 1 knots over chunks.

    `way` says when: "inside" the token kernel; "before" it, in a kernel that also reduces the rows; or
    "after" it, in a kernel that also writes dL/dz.
    """

    way: str

    def __init__(self, intervals: int, bound: float) -> None:
        self.intervals, self.bound = intervals, bound

    def inside(self, problem: Problem, logits_NKV: Tensor, row_scale_N: Tensor) -> tuple[Tensor, Tensor]:
        """The memory of the sums and their unit, for the token kernel."""
        raise NotImplementedError

    def before(self, problem: Problem, logits_NKV: Tensor, row_scale_N: Tensor, pairs: Tensor) -> Tensor:
        """Add a chunk's sums; its rows' statistics, as `row_kernel` gives them."""
        raise NotImplementedError

    def after(
        self,
        logits: Tensor,
        dlogits: Tensor,
        target: Tensor,
        row_factors: Tensor,
        pairs: Tensor,
        tops: Tensor | None = None,
    ) -> None:
        """Add a chunk's sums and write dL/dz, from the token kernel's statistics.

        Of distributions under a mixture the target is their `pull`, and `tops` goes with it: see
        `uncork.ops.triton.dense_kernels`.
        """
        raise NotImplementedError

    @abc.abstractmethod
    def knot_gradient(self) -> Tensor:
        """dL/dF in float64."""


class IntegerSums(Sums):
    """Fixed-point sums: exact addition, so no order of threads can change a bit."""

    way = "inside"

    def __init__(self, intervals: int, bound: float, device: torch.device) -> None:
        super().__init__(intervals, bound)
        self.total = torch.zeros(intervals + 1 + BEHIND, dtype=torch.float64, device=device)
        self.held: tuple[Tensor, Tensor] | None = None

    def inside(self, problem: Problem, logits_NKV: Tensor, row_scale_N: Tensor) -> tuple[Tensor, Tensor]:
        self._collect()
        # |g| summed over a row is at most twice the token's weight, and z-loss adds its own. Weights may be
        # negative, and cancel.
        reach_N = 2.0 * (problem.target.abs().sum(1) if problem.dense else problem.token_weight_N().abs())
        if problem.z_loss:
            # logsumexp lies between the highest f and log V more.
            highest_NK = value(problem.form, logits_NKV.amax(2)).abs().nan_to_num(posinf=0.0)
            reach_N = reach_N + 2.0 * problem.z_loss * highest_NK.amax(1).add(64.0)
        mass = (reach_N * row_scale_N).abs().nan_to_num(posinf=0.0).sum()
        unit = (UNITS / mass).clamp(max=1e37)  # a mass of 0 has nothing to measure
        ints = torch.zeros(self.intervals + 1 + BEHIND, dtype=torch.int64, device=logits_NKV.device)
        self.held = (ints, unit)
        return self.held

    def _collect(self) -> None:
        if self.held is not None:
            ints, unit = self.held
            self.total += ints.double() / unit.double()
            self.held = None

    def knot_gradient(self) -> Tensor:
        self._collect()
        knots, behind = self.total[:-BEHIND].clone(), self.total[-BEHIND:]
        level = torch.arange(1, BEYOND_SLOTS.value + 1, dtype=torch.float64, device=knots.device)
        beyond = (behind[:-1].view(2, -1) * BEYOND.value**level).sum(1) * self.bound
        # What lies beyond an end acts through that end's slope, so on its last two knots.
        pull = beyond * (self.intervals / (2.0 * self.bound))
        knots[0] -= pull[0]
        knots[1] += pull[0]
        knots[-2] -= pull[1]
        knots[-1] += pull[1]
        # An integer knows no NaN; without one a function trained alone would take a step from nonsense.
        return torch.where(behind[-1] == 0, knots, torch.nan)
