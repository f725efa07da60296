"""What one cell of the synthetic experiment is, and how it is fitted."""

import math
from dataclasses import dataclass


HEADS = ("softmax", "temperature", "sigsoftmax", "mos", "monotone", "plif")

# A seed times 2^20 is where the seeds of its blocks begin (`tasks`); torch's generator on a CPU has 32 bits.
SEEDS = 2**12


@dataclass(frozen=True, kw_only=True, order=True)
class Cell:
    """One fit: a head of some width on one set of true distributions."""

    vocabulary: int
    """M, the number of words."""
    width: int
    """D, the width of word and context embeddings."""
    concentration: float
    """alpha of the Dirichlet prior."""
    contexts: int
    """N, the number of true distributions."""
    head: str
    """One of `HEADS`."""
    seed: int = 0
    """Seed of the distributions and of the starting point."""

    def __post_init__(self) -> None:
        at_least("vocabulary", self.vocabulary, 2)
        at_least("width", self.width, 1)
        at_least("contexts", self.contexts, 1)
        at_least("seed", self.seed, 0)
        if self.seed >= SEEDS:
            raise ValueError(f"`seed` must be below {SEEDS}; got {self.seed}. Choose a smaller one.")
        if not (self.concentration > 0 and math.isfinite(self.concentration)):
            raise ValueError(
                f"`concentration` must be positive and finite; got {self.concentration}. Choose e.g. 0.1."
            )
        if self.head not in HEADS:
            raise ValueError(f"`head` must be one of {', '.join(HEADS)}; got {self.head!r}.")

    @property
    def name(self) -> str:
        """A file name that says everything."""
        alpha = f"{self.concentration:g}"
        if float(alpha) != self.concentration:  # 0.10000001 is not 0.1
            alpha = repr(float(self.concentration))
        return f"M{self.vocabulary}-D{self.width}-a{alpha}-N{self.contexts}-{self.head}-s{self.seed}"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The optimiser's budget, the same for every head, and the sizes of the heads that have any."""

    rates: tuple[float, ...] = (0.03, 0.1, 0.3)
    """Learning rates tried; the best on the trial contexts is used. The same search for each head."""
    trial_passes: int = 20
    """Passes over the trial contexts per learning rate."""
    trial_contexts: int = 8192
    """Contexts in the search, at most."""
    batches: int = 8
    """Steps per pass over the contexts."""
    max_passes: int = 300
    """Safety limit; a fit that reaches it is reported as not converged."""
    tolerance: float = 1e-3
    """A plateau: the average fall of the KL per pass, over `patience` passes, is below this share of the KL
    or of the gain over the uniform distribution, whichever is less."""
    patience: int = 4
    """Length of the window in which progress is judged, in passes."""
    decays: int = 4
    """At a plateau the rate is divided by `decay`; after this many, the next plateau ends the fit."""
    decay: float = 3.0
    """Factor of each decay."""
    components: int = 4
    """K of the mixture of softmaxes."""
    units: int = 20
    """Hidden units of the monotone network."""
    knots: int = 100
    """Pieces of the PLIF."""
    bound: float = 20.0
    """T of the PLIF and of the tables of learnable functions."""
    table: int = 4000
    """Intervals of the table on which learnable functions are evaluated; a multiple of `knots`."""
    certified_contexts: int = 256
    """Contexts for which the optimum over h is certified (Linear-Softmax); 0 leaves it out."""

    def __post_init__(self) -> None:
        if not self.rates or not all(rate > 0 for rate in self.rates):
            raise ValueError(f"`rates` must hold positive numbers; got {self.rates}. Choose e.g. 0.1.")
        for name in ("trial_passes", "trial_contexts", "batches", "max_passes", "patience"):
            at_least(name, getattr(self, name), 1)
        for name in ("components", "units"):
            at_least(name, getattr(self, name), 1)
        at_least("knots", self.knots, 2)
        at_least("decays", self.decays, 0)
        at_least("certified_contexts", self.certified_contexts, 0)
        if not self.tolerance > 0:
            raise ValueError(f"`tolerance` must be positive; got {self.tolerance}. Choose e.g. 1e-3.")
        if not self.decay > 1:
            raise ValueError(f"`decay` must be above 1; got {self.decay}. Choose e.g. 3.")
        if self.table % self.knots:
            raise ValueError(
                f"`table` must be a multiple of `knots`, or the table would round the PLIF's corners; "
                f"got {self.table} and {self.knots}. Choose e.g. {40 * self.knots}."
            )


def at_least(name: str, value: int, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(
            f"`{name}` must be an integer of at least {least}; got {value!r}. Choose {least} or more."
        )
