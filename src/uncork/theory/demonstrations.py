"""Each statement of sections 3 and 4 put to a number: what was computed, both sides, and whether it
holds.

Statements that are false as printed are listed too, with the counterexample; they must fail.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import Tensor

from uncork.theory import approximation, bounds, hadamard
from uncork.theory.cross_entropy import entropy, minimum_cross_entropy
from uncork.theory.distinct import distinct_entries
from uncork.theory.exact import exact_rank
from uncork.theory.max_entropy import maximum_entropy
from uncork.theory.monotone import increasing_function
from uncork.theory.rank import rank_report


@dataclass(frozen=True)
class Demonstration:
    """One line of the table: `left` `relation` `right`, and whether that should and does hold."""

    statement: str
    computed: str
    left: float
    relation: str
    right: float
    holds: bool
    as_printed_false: bool = False

    @property
    def as_expected(self) -> bool:
        return self.holds != self.as_printed_false

    def record(self) -> dict[str, Any]:
        return {**asdict(self), "as_expected": self.as_expected}


def _at_least(statement: str, computed: str, left: float, right: float, **kind: bool) -> Demonstration:
    holds = left >= right - 1e-9 * abs(right)
    return Demonstration(statement, computed, float(left), ">=", float(right), holds, **kind)


def _equal(statement: str, computed: str, left: float, right: float, tolerance: float = 0) -> Demonstration:
    holds = abs(left - right) <= tolerance
    return Demonstration(statement, computed, float(left), "=", float(right), holds)


def theorem_1(seed: int) -> Iterator[Demonstration]:
    """The error bound, its sharper form, and the printed form's counterexample."""
    log_prob = _dirichlet(40, 0.5, 60, seed).clamp(min=1e-12).log().T
    width = 4
    reached = bounds.fit_squared_error(log_prob, width)
    setting = f"V=40, N=60 from Dir(0.5), width {width}; least squared error that L-BFGS finds"
    yield _at_least("Theorem 1", setting, reached, bounds.squared_error_bound(log_prob, width))
    yield _at_least(
        "Theorem 1, centred (sharper)",
        setting,
        reached,
        bounds.centred_error_bound(log_prob, width),
    )
    truth, model = bounds.counterexample(seed=seed)
    yield _at_least(
        "Theorem 1 as printed (root on the right)",
        "4 x 4 Linear-Softmax of width 1 with logits perturbed by 0.01",
        bounds.squared_error(truth, model),
        bounds.printed_bound(truth, 1),
        as_printed_false=True,
    )


def theorem_2(seed: int) -> Iterator[Demonstration]:
    """Both sides solved apart, then the corollaries."""
    size = 16
    target = _dirichlet(size, 0.5, 1, seed)
    weight = torch.randn(size, size, generator=_generator(seed + 1), dtype=torch.float64)
    values = []
    for width in (1, 3, 6, 10):
        optimum = minimum_cross_entropy(target, weight[:, :width])
        values.append(float(optimum.value))
        other = maximum_entropy(target[0].numpy(), weight[:, :width].numpy())
        yield _equal(
            f"Theorem 2, width {width}",
            f"V={size}: Newton over h (duality gap {float(optimum.gap):.0e}) against SLSQP over R",
            float(optimum.value),
            other.value,
            tolerance=1e-6,
        )
    yield _at_least(
        "Corollary: wider is never worse",
        "smallest drop of the minimum between nested widths 1, 3, 6, 10",
        float(-np.diff(values).max()),
        0.0,
    )
    uniform = torch.full((1, size), 1 / size, dtype=torch.float64)
    levels = [float(minimum_cross_entropy(uniform, weight[:, :d]).value) for d in (1, 10)]
    yield Demonstration(
        "Corollary as printed (strictly lower)",
        "uniform P: minimum at width 10 against width 1",
        levels[1],
        "<",
        levels[0],
        levels[1] < levels[0] - 1e-9,
        as_printed_false=True,
    )
    for width in (size - 1, size):
        value = float(minimum_cross_entropy(target, weight[:, :width]).value)
        floor = float(entropy(target))
        text = f"minimum cross-entropy at width {width} against H(P)"
        yield _equal(f"Corollary: floor reached at d = {width}", text, value, floor, tolerance=1e-6)


def theorem_3_and_lemma_4(seed: int) -> Iterator[Demonstration]:
    """A low-rank integer matrix made full rank by a constructed increasing function, exactly."""
    matrix = hadamard.integer_matrix(7, 10, 2, seed, size=60).tolist()
    choice = distinct_entries(matrix)
    if choice is None:
        raise AssertionError(f"seed {seed} gives no distinct entries; Lemma 4 says nothing")
    built = increasing_function(matrix, choice.function())
    before = exact_rank(matrix)
    yield _equal(
        "Lemma 4",
        f"7 x 10 integer matrix of rank {before}; rank of f(A), exact",
        built.rank_given,
        7,
    )
    yield _at_least("Theorem 3", "rank g(A) against rank f(A), exact", built.rank(matrix), built.rank_given)
    slopes = built.function.slopes()
    yield _at_least("Theorem 3, g increases", "least slope of g, exact", float(min(slopes)), 0.5)
    squares = increasing_function(matrix, lambda x: Fraction(x) ** 2)
    yield _at_least(
        "Theorem 3 with f = x^2",
        "f is not monotone; rank g(A) against rank f(A), exact",
        squares.rank(matrix),
        squares.rank_given,
    )


def theorem_5(seed: int) -> Iterator[Demonstration]:
    """The bound on powers, met with equality by random integer matrices."""
    for rank, power in ((2, 3), (3, 2), (4, 3)):
        matrix = hadamard.integer_matrix(30, 25, rank, seed + rank)
        yield _at_least(
            f"Theorem 5, rank {rank}, power {power}",
            "bound against the rank of the power of a 30 x 25 integer matrix, exact",
            hadamard.hadamard_rank_bound(30, 25, rank, power),
            hadamard.power_rank(matrix, power),
        )


def theorem_6(seed: int) -> Iterator[Demonstration]:
    """Exact certificates for several N, the witness that serves all N, and N = 2."""
    for size in (3, 10, 100):
        certificate = hadamard.square_certificate(size, seed)
        yield _equal(
            f"Theorem 6, N = {size}",
            f"random integer matrix of rank {certificate.rank}; rank of its square, exact",
            certificate.rank_of_square,
            size,
        )
    sizes = range(3, 41)
    yield _equal(
        "Theorem 6, N I - 1 1^T",
        "sizes 3..40 for which this one matrix proves the theorem, exact",
        sum(hadamard.universal_witness(size).proves for size in sizes),
        len(sizes),
    )
    matrix, rank = hadamard.counterexample()
    yield Demonstration(
        "Theorem 6 as printed (N = 2)",
        f"rank of the square of {matrix}, exact; Theorem 5 allows 1",
        rank,
        "=",
        2,
        rank == 2,
        as_printed_false=True,
    )


def theorem_7(seed: int) -> Iterator[Demonstration]:
    """Measured error against the printed bound and the sharp one."""
    smooth = lambda x: x + torch.tanh(x)
    for knots in (10, 100, 1000):
        error = approximation.measure(smooth, 2.0, knots)
        yield _at_least(
            f"Theorem 7, K = {knots}",
            "4RT/K against the error of interpolating x + tanh x on [-20, 20]",
            error.printed_bound,
            error.measured,
        )
    worst = approximation.measure(approximation.ramp(2.0, 100, 20.0), 2.0, 100, points=400_001)
    yield _equal(
        "Theorem 7, sharp form RT/(2K)",
        "error of the worst-case ramp, K = 100",
        worst.measured,
        worst.sharp_bound,
        tolerance=1e-9,
    )


def ranks(seed: int) -> Iterator[Demonstration]:
    """Two definitions of rank on one matrix: a rank-3 matrix plus noise of relative size 1e-8."""
    generator = _generator(seed)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)
    matrix = draw(50, 3) @ draw(3, 80) + 1e-8 * draw(50, 80)
    report = rank_report(matrix)
    text = "rank-3 matrix plus noise of 1e-8: {} against {}"
    yield _equal("Press rank counts noise", text.format("Press rank", "full rank"), report.press_rank, 50)
    yield _equal(
        "Effective rank does not",
        text.format("effective rank at 1e-5", "3"),
        report.effective_ranks[1e-5],
        3,
    )


DEMONSTRATIONS: tuple[Callable[[int], Iterator[Demonstration]], ...] = (
    theorem_1,
    theorem_2,
    theorem_3_and_lemma_4,
    theorem_5,
    theorem_6,
    theorem_7,
    ranks,
)


def demonstrations(seed: int = 0) -> Iterator[Demonstration]:
    """Every demonstration, one at a time."""
    if not 0 <= seed < 2**63:
        raise ValueError(f"`seed` must be from 0 to 2^63 - 1; got {seed}. Pass a number such as 0.")
    for group in DEMONSTRATIONS:
        yield from group(seed)


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _dirichlet(size: int, concentration: float, rows: int, seed: int) -> Tensor:
    generator = np.random.default_rng(seed)
    return torch.from_numpy(generator.dirichlet(np.full(size, concentration), rows))
