"""The unit in which slopes are learned: the function, not the knot.

With d = 2 bound / knots, the gradient of one slope is d times a density gamma(x) that does not depend on
the table: dL/ds_j = d gamma(x_j) (docs/derivations/plif.md). At one raw rate a table of 1,000 knots would
move 100 times as fast as one of 100,000. So with r = d / d_ref, d_ref that of 100,000 knots on [-20, 20]:

    rate of a slope   lr / r              the function moves by lr d_ref gamma
    decay             weight_decay r      the step of the decay, lr weight_decay v, stays
    squared norm      sum_j g_j^2 / r     is d_ref times the integral of gamma^2
"""

from torch import nn

from uncork.functions import PLIF


REFERENCE_KNOTS = 100_000
REFERENCE_BOUND = 20.0


def interval_ratio(function: nn.Module | None) -> float:
    """r, the width of the table's intervals over the reference's; 1 where parameters are not slopes."""
    if not isinstance(function, PLIF):
        return 1.0
    return (function.bound / REFERENCE_BOUND) * (REFERENCE_KNOTS / function.knots)


def check_smoothness(strength: float, raw_lr: float, function: nn.Module) -> None:
    """Refuse a penalty on roughness that plain gradient steps at `raw_lr` cannot follow.

    Its second derivative along a zigzag of neighbouring slopes is below 8 strength / (2 T d), d = 2 T / k,
    and steps of rate lr diverge where lr times that is above 2. Finer tables are stiffer, by 1/d^2 in all.
    """
    if not strength:
        return
    assert isinstance(function, PLIF)  # FunctionConfig sees to it
    step = 2.0 * function.bound / function.knots
    most = 2.0 * function.bound * step / (4.0 * raw_lr)
    if strength > most:
        raise ValueError(
            f"`function.smoothness` must be at most {most:.2g} for {function.knots} knots at this learning "
            f"rate, or the slopes would swing up; got {strength}. Take fewer knots: half of them allow four "
            "times as much."
        )
