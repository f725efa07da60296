"""Theorem 3 made constructive: an increasing function with whatever rank any function can give.

Theorem 3. If some pointwise f gives rank f(A) >= K, then some bijective, continuous, piecewise
differentiable and strictly increasing g gives rank g(A) >= K.

Construction, in exact rational arithmetic. Take a K x K submatrix S of A with det f(S) != 0, found
by elimination, its distinct values b_1 < ... < b_T and e = min(b_{i+1} - b_i) / 4. The printed
proof picks c_i in [b_i - e, b_i + e] with a nonzero determinant but does not say how. Here c_i =
b_i + t (f(b_i) - b_i) for one number t: the determinant of the matrix of c's is a polynomial in t
of degree at most K, nonzero at t = 1, so it has at most K roots and one of any K + 1 trial values
of t in (0, e / max |f(b_i) - b_i|] works. Then g is linear between the points

    (b_1 - 2e, b_1 - 2e),  (b_i, c_i),  (b_i + 2e, b_i + 2e),

and the identity outside. Its slopes all lie in [1/2, 3/2], so it is continuous, strictly increasing
and onto. g is piecewise differentiable, as the theorem says; the paper's introduction promises
"differentiable", which this proof does not give.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor, nn

from uncork.theory.exact import as_fractions, determinant, eliminate, exact_rank


PointwiseFunction = Callable[[Fraction], Any] | Mapping[Fraction, Any]


@dataclass(frozen=True)
class IncreasingPiecewiseLinear:
    """g through exact rational points, the identity outside: continuous, increasing, onto."""

    positions: tuple[Fraction, ...]
    values: tuple[Fraction, ...]

    def __post_init__(self) -> None:
        if len(self.positions) != len(self.values) or len(self.positions) < 2:
            raise ValueError(
                "`positions` and `values` must be as many, and two at least; got "
                f"{len(self.positions)} and {len(self.values)}. Give a point for each end of the pieces."
            )
        if any(slope <= 0 for slope in self.slopes()):
            raise ValueError(
                "`values` must increase strictly with `positions`, got values that do not. Sort the points."
            )

    def slopes(self) -> list[Fraction]:
        """The exact slope of each inner piece; both outer pieces have slope 1."""
        return [
            (self.values[i + 1] - self.values[i]) / (self.positions[i + 1] - self.positions[i])
            for i in range(len(self.positions) - 1)
        ]

    def __call__(self, x: Any) -> Fraction:
        """g(x), exactly."""
        x = Fraction(x)
        if x <= self.positions[0] or x >= self.positions[-1]:
            return x
        i = max(i for i, position in enumerate(self.positions) if position <= x)
        return self.values[i] + self.slopes()[i] * (x - self.positions[i])

    def apply(self, matrix: Any) -> list[list[Fraction]]:
        """g on every entry, exactly."""
        return [[self(entry) for entry in row] for row in as_fractions(matrix)]

    def module(self) -> "IncreasingModule":
        """The same function on tensors, for use in a head."""
        return IncreasingModule(self)


class IncreasingModule(nn.Module):
    """An `IncreasingPiecewiseLinear` as an elementwise module with `forward` and `derivative`."""

    positions: Tensor
    values: Tensor

    def __init__(self, function: IncreasingPiecewiseLinear) -> None:
        super().__init__()
        as_tensor = lambda points: torch.tensor([float(x) for x in points], dtype=torch.float64)
        self.register_buffer("positions", as_tensor(function.positions))
        self.register_buffer("values", as_tensor(function.values))

    def forward(self, x: Tensor) -> Tensor:
        """g(x), computed in float64 and returned in the dtype of `x`."""
        piece = self._piece(x)
        value = self.values[piece] + self._slope(piece) * (x.double() - self.positions[piece])
        return torch.where(self._inside(x), value, x.double()).to(x.dtype)

    def derivative(self, x: Tensor) -> Tensor:
        """The slope of the piece that holds x."""
        return torch.where(self._inside(x), self._slope(self._piece(x)), 1.0).to(x.dtype)

    def _piece(self, x: Tensor) -> Tensor:
        place = torch.searchsorted(self.positions, x.detach().double().contiguous(), right=True)
        return (place - 1).clamp(0, len(self.positions) - 2)

    def _slope(self, piece: Tensor) -> Tensor:
        rise = self.values[piece + 1] - self.values[piece]
        return rise / (self.positions[piece + 1] - self.positions[piece])

    def _inside(self, x: Tensor) -> Tensor:
        return (x >= self.positions[0]) & (x <= self.positions[-1])

    def extra_repr(self) -> str:
        return f"knots={len(self.positions)}"


@dataclass(frozen=True)
class IncreasingConstruction:
    """What Theorem 3's proof produced, with every claim checkable again."""

    function: IncreasingPiecewiseLinear
    rows: tuple[int, ...]  # of the nonsingular submatrix
    columns: tuple[int, ...]
    determinant: Fraction  # of g on that submatrix: nonzero
    rank_given: int  # rank f(A), the K of the theorem

    def rank(self, matrix: Any) -> int:
        """rank g(A), exactly."""
        return exact_rank(self.function.apply(matrix))


def increasing_function(matrix: Any, function: PointwiseFunction) -> IncreasingConstruction:
    """Return an increasing piecewise-linear g with rank g(A) >= rank f(A).

    `function` is any pointwise f, increasing or not, as a callable on rationals or a table {value:
    f(value)}. `matrix` may be a tensor of floats: each float is taken as the rational number it is.
    """
    entries = as_fractions(matrix)
    lookup = function.__getitem__ if isinstance(function, Mapping) else function
    image = [[Fraction(lookup(entry)) for entry in row] for row in entries]
    pivots = eliminate(image)
    if pivots.rank == 0:
        raise ValueError("`function` must give f(A) a rank of at least 1; f(A) is the zero matrix.")
    block = [[entries[i][j] for j in pivots.columns] for i in pivots.rows]
    shifts = {entry: Fraction(lookup(entry)) - entry for row in block for entry in row}
    spacing = _quarter_gap(sorted(shifts))
    limit = spacing / max(max(map(abs, shifts.values())), spacing)
    for trial in range(pivots.rank + 1, 0, -1):
        t = limit * Fraction(trial, pivots.rank + 1)
        value = determinant([[entry + t * shifts[entry] for entry in row] for row in block])
        if value != 0:
            targets = {entry: entry + t * shift for entry, shift in shifts.items()}
            g = _join(targets, spacing)
            return IncreasingConstruction(g, pivots.rows, pivots.columns, value, pivots.rank)
    raise AssertionError("a nonzero polynomial of degree K has at most K roots")


def _quarter_gap(values: list[Fraction]) -> Fraction:
    """e = a quarter of the smallest distance; any positive number when there is one value only."""
    gaps = [b - a for a, b in zip(values, values[1:], strict=False)]
    return min(gaps) / 4 if gaps else Fraction(1, 4)


def _join(targets: dict[Fraction, Fraction], spacing: Fraction) -> IncreasingPiecewiseLinear:
    points = sorted(targets.items())
    first = points[0][0] - 2 * spacing
    positions, values = [first], [first]
    for position, value in points:
        rest = position + 2 * spacing
        positions += [position, rest]
        values += [value, rest]
    return IncreasingPiecewiseLinear(tuple(positions), tuple(values))
