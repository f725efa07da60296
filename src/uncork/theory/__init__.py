"""Sections 3 and 4 of Ganea et al. (2019): each theorem as a function with its statement and its check."""

from uncork.theory.approximation import interpolate, measure, raw_slopes
from uncork.theory.bounds import (
    centred_error_bound,
    printed_bound,
    squared_error,
    squared_error_bound,
)
from uncork.theory.cross_entropy import (
    CrossEntropyOptimum,
    cross_entropy,
    entropy,
    minimum_cross_entropy,
)
from uncork.theory.distinct import DistinctEntries, distinct_entries
from uncork.theory.exact import determinant, exact_rank, modular_rank
from uncork.theory.hadamard import (
    SquareCertificate,
    hadamard_rank_bound,
    power_rank,
    square_certificate,
    universal_witness,
)
from uncork.theory.max_entropy import MaximumEntropy, maximum_entropy
from uncork.theory.monotone import (
    IncreasingConstruction,
    IncreasingModule,
    IncreasingPiecewiseLinear,
    increasing_function,
)
from uncork.theory.rank import RankReport, effective_rank, press_rank, rank_report, stable_rank


__all__ = [
    "CrossEntropyOptimum",
    "DistinctEntries",
    "IncreasingConstruction",
    "IncreasingModule",
    "IncreasingPiecewiseLinear",
    "MaximumEntropy",
    "RankReport",
    "SquareCertificate",
    "centred_error_bound",
    "cross_entropy",
    "determinant",
    "distinct_entries",
    "effective_rank",
    "entropy",
    "exact_rank",
    "hadamard_rank_bound",
    "increasing_function",
    "interpolate",
    "maximum_entropy",
    "measure",
    "minimum_cross_entropy",
    "modular_rank",
    "power_rank",
    "press_rank",
    "printed_bound",
    "rank_report",
    "raw_slopes",
    "square_certificate",
    "squared_error",
    "squared_error_bound",
    "stable_rank",
    "universal_witness",
]
