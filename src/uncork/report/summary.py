"""Averages over seeds, and who is ahead: the numbers behind figures, tables and sentences."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any


LABELS = {
    "softmax": "Linear-Softmax",
    "temperature": "learned temperature",
    "sigsoftmax": "Sigsoftmax",
    "mos": "MoS",
    "monotone": "LMS, monotone network",
    "plif": "LMS, PLIF",
}
LMS = ("monotone", "plif")
RIVALS = ("softmax", "mos")
# Metric: (heading, whether higher is better, unit).
METRICS = {"kl": ("average KL(P||Q)", False, "nats"), "mode_matching": ("modes matched", True, "%")}


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation over seeds; no deviation is given for one seed."""

    mean: float
    std: float | None
    seeds: int


@dataclass(frozen=True, order=True)
class Setting:
    """One set of true distributions, up to the seed."""

    vocabulary: int
    contexts: int
    concentration: float

    @property
    def title(self) -> str:
        return f"M = {self.vocabulary:,}, N = {self.contexts:,}, α = {self.concentration:g}"


@dataclass
class Panel:
    """All fits on one setting: head -> width -> records over seeds."""

    setting: Setting
    records: dict[str, dict[int, list[dict[str, Any]]]]

    @property
    def heads(self) -> list[str]:
        return [head for head in LABELS if head in self.records]

    @property
    def widths(self) -> list[int]:
        return sorted({width for by_width in self.records.values() for width in by_width})

    @property
    def outer_widths(self) -> list[int]:
        """The smallest and the largest, which may be the same one."""
        return sorted({self.widths[0], self.widths[-1]})

    def fits(self, head: str, width: int) -> list[dict[str, Any]]:
        """The records of a head at a width, one per seed."""
        return self.records.get(head, {}).get(width, [])

    def spread(self, head: str, width: int, metric: str) -> Spread | None:
        """The metric over seeds, None where there is no such fit."""
        found = [r["metrics"][metric] for r in self.fits(head, width) if r["stopped"] != "diverged"]
        return spread(found) if found else None

    def best(self, width: int, metric: str) -> str | None:
        """The head with the best mean."""
        means = {h: s.mean for h in self.heads if (s := self.spread(h, width, metric))}
        if not means:
            return None
        choose = max if METRICS[metric][1] else min
        return choose(means, key=means.__getitem__)


def spread(values: list[float]) -> Spread:
    return Spread(mean(values), stdev(values) if len(values) > 1 else None, len(values))


def panels(cells: Iterable[dict[str, Any]]) -> list[Panel]:
    """Cells grouped by setting, the largest vocabulary first."""
    groups: dict[Setting, dict[str, dict[int, list]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(list))
    )
    for record in cells:
        cell = record["cell"]
        setting = Setting(cell["vocabulary"], cell["contexts"], cell["concentration"])
        groups[setting][cell["head"]][cell["width"]].append(record)
    ordered = sorted(groups, key=lambda s: (-s.vocabulary, -s.contexts, s.concentration))
    return [Panel(setting, groups[setting]) for setting in ordered]


@dataclass(frozen=True)
class Comparison:
    """One head against its rivals at one setting and width."""

    setting: Setting
    width: int
    head: str
    ahead: dict[str, bool]  # metric -> better than every rival
    clear: dict[str, bool]  # metric -> by more than two standard deviations of the difference
    gain: float  # relative fall of the KL against the best rival
    seeds: int  # the fewest of any head compared


def compare(panel: Panel, head: str, width: int, rivals: Iterable[str] = RIVALS) -> Comparison | None:
    """None where the head or a rival is missing."""
    ahead, clear = {}, {}
    gain, seeds = 0.0, 0
    for metric, (_, higher, _) in METRICS.items():
        own = panel.spread(head, width, metric)
        others = [panel.spread(rival, width, metric) for rival in rivals]
        if own is None or any(other is None for other in others):
            return None
        seeds = min(s.seeds for s in (own, *others) if s)
        sign = 1 if higher else -1
        strongest = max((o for o in others if o), key=lambda o: sign * o.mean)
        difference = sign * (own.mean - strongest.mean)
        ahead[metric] = difference > 0
        noise = ((own.std or 0) ** 2 + (strongest.std or 0) ** 2) ** 0.5
        clear[metric] = seeds > 1 and difference > 2 * noise
        if metric == "kl":
            gain = 1 - own.mean / strongest.mean if strongest.mean > 0 else 0.0
    return Comparison(panel.setting, width, head, ahead, clear, gain, seeds)


def comparisons(all_panels: list[Panel]) -> list[Comparison]:
    """Both LMS heads against Linear-Softmax and MoS, wherever all three were fitted."""
    found = (compare(p, head, width) for p in all_panels for head in LMS for width in p.widths)
    return [c for c in found if c is not None]


def steep_share(function: dict[str, Any]) -> float:
    """The part of a function's rise in the steepest tenth of its range: 0.1 for a line, 1 for a step."""
    rises = sorted((b - a for a, b in zip(function["f"], function["f"][1:], strict=False)), reverse=True)
    total = sum(rises)
    return sum(rises[: max(1, round(len(rises) / 10))]) / total if total > 0 else 0.0
