"""Lemma 4: distinct dot products make a low-rank logit matrix full rank.

Lemma 4. Let A = W H^T be (M, N), M <= N. If there are M distinct columns j_1, ..., j_M such that
the values A[i, j_i] differ from all other entries of A, then some pointwise f gives f(A) full rank
M: f is 1 on the chosen values and 0 elsewhere, which turns the chosen columns into a permutation of
the identity.

Only entries of the chosen columns matter to the proof, and the chosen values may repeat among
themselves; the search below uses the lemma's own hypothesis in its simplest form, values that occur
once in A. Choosing one such entry per row in distinct columns is a bipartite matching. With Theorem
3 the 0/1 function becomes an increasing one.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from uncork.theory.exact import as_fractions


@dataclass(frozen=True)
class DistinctEntries:
    """One column per row whose entry occurs nowhere else, and the 0/1 function that picks these entries."""

    columns: tuple[int, ...]
    values: frozenset[Fraction]

    def function(self) -> Callable[[Fraction], int]:
        """f(x) = 1 on the chosen values, 0 elsewhere."""
        return lambda x: int(x in self.values)


def distinct_entries(matrix: Any) -> DistinctEntries | None:
    """A choice that satisfies Lemma 4's hypothesis, or None when no choice of unique entries exists."""
    entries = as_fractions(matrix)
    if entries and len(entries) > len(entries[0]):
        raise ValueError(
            f"`matrix` must have no more rows than columns; got {len(entries)} rows and "
            f"{len(entries[0])} columns. Transpose it."
        )
    count = Counter(entry for row in entries for entry in row)
    allowed = [[j for j, entry in enumerate(row) if count[entry] == 1] for row in entries]
    columns = _matching(allowed)
    if columns is None:
        return None
    return DistinctEntries(tuple(columns), frozenset(row[j] for row, j in zip(entries, columns, strict=True)))


def _matching(allowed: list[list[int]]) -> list[int] | None:
    """A column for each row, no column twice, by augmenting paths."""
    owner: dict[int, int] = {}

    def place(row: int, seen: set[int]) -> bool:
        for column in allowed[row]:
            if column in seen:
                continue
            seen.add(column)
            if column not in owner or place(owner[column], seen):
                owner[column] = row
                return True
        return False

    if not all(place(row, set()) for row in range(len(allowed))):
        return None
    column_of = {row: column for column, row in owner.items()}
    return [column_of[row] for row in range(len(allowed))]
