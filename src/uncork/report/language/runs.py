"""One language-model run as its record tells it, finished or not."""

import math
from dataclasses import dataclass
from datetime import datetime
from itertools import product
from pathlib import PurePath
from statistics import median
from typing import Any

from uncork.recipes.bundle import described
from uncork.recipes.command import command


# What tells arms apart in pictures and tests: the kind of head, then of function.
LABELS = {
    "softmax": "softmax",
    "temperature": "learned temperature",
    "sigsoftmax": "sigsoftmax",
    "plif": "PLIF from the identity",
    "plif_authors": "PLIF, the authors' start",
    "plif_frozen": "PLIF, random and frozen",
    "monotone": "monotone network",
    "other": "another function",
    "mos": "MoS",
    "mos_plif": "MoS with PLIF",
}
ROLES = {"Scale": "temperature", "SigSoftmax": "sigsoftmax", "MonotoneNetwork": "monotone"}


@dataclass(frozen=True)
class Run:
    """The parts of a run folder; `result` is None where the run has not ended."""

    config: dict[str, Any]
    overrides: tuple[str, ...] | None  # against its recipe; None where that is not one of this package
    metrics: list[dict[str, Any]]
    provenance: dict[str, Any]
    result: dict[str, Any] | None

    @classmethod
    def of(cls, record: dict[str, Any]) -> "Run":
        """From a line of a bundle, or from what `run_record` reads in a folder."""
        record = described(record)
        changes = None if record["overrides"] is None else tuple(record["overrides"])
        return cls(record["config"], changes, record["metrics"], record["provenance"], record["result"])

    @property
    def name(self) -> str:
        return self.config["name"]

    @property
    def seed(self) -> int:
        return self.config["seed"]

    @property
    def started(self) -> str:
        return self.provenance.get("started") or ""

    @property
    def role(self) -> str:
        """A key of `LABELS`."""
        head = self.config["model"]["head"]
        function = head["function"]
        mixture = head["kind"] == "mixture"
        if function is None:
            return "mos" if mixture else "softmax"
        random = function["options"].get("init") == "random"
        if function["frozen"]:  # nothing is learned, whatever its name
            return "plif_frozen" if function["name"] == "PLIF" and random and not mixture else "other"
        if mixture:
            return "mos_plif" if function["name"] == "PLIF" else "other"
        if function["name"] == "PLIF":
            return "plif_authors" if random else "plif"
        return ROLES.get(function["name"], "other")

    @property
    def random_start(self) -> bool:
        """Whether its function was learned from slopes drawn at random."""
        function = self.config["model"]["head"]["function"]
        return bool(function and not function["frozen"] and function["options"].get("init") == "random")

    @property
    def label(self) -> str:
        if self.role != "other":
            return LABELS[self.role]
        head = self.config["model"]["head"]
        name = ("MoS with " if head["kind"] == "mixture" else "") + head["function"]["name"]
        return f"{name}, frozen" if head["function"]["frozen"] else name

    @property
    def seconds_per_epoch(self) -> float | None:
        """Training alone, the median: a stop cuts an epoch in two."""
        stored = (self.result or {}).get("seconds_per_epoch")
        seconds = [line["train_seconds"] for line in self.metrics]
        return stored or (median(seconds) if seconds else None)

    @property
    def seconds(self) -> float:
        return sum(line["seconds"] for line in self.metrics)

    @property
    def origins(self) -> list[dict[str, Any]]:
        """Where it began, and where it went on after each stop."""
        return [self.provenance, *self.provenance.get("resumed", [])]

    @property
    def spans(self) -> list[tuple[float, float]]:
        """Start and end of each part of the run, as far as starts and the seconds of epochs tell."""
        steps = [origin.get("step", 0) for origin in self.origins] + [math.inf]
        found = []
        for origin, first, last in zip(self.origins, steps[:-1], steps[1:], strict=True):
            if origin.get("started"):
                start = datetime.fromisoformat(origin["started"]).timestamp()
                length = sum(line["seconds"] for line in self.metrics if first < line["step"] <= last)
                found.append((start, start + length))
        return found

    def seconds_beside(self, other: "Run") -> float:
        """How long the two ran at the same time."""
        both = product(self.spans, other.spans)
        return sum(max(min(a[1], b[1]) - max(a[0], b[0]), 0.0) for a, b in both)

    @property
    def averaging_starts(self) -> list[int]:
        """The first epoch evaluated with averaged weights, and those in which an average began anew."""
        first = next((line["epoch"] for line in self.metrics if line["averaging"]), None)
        if first is None or self.config["optim"]["average"] != "doubling":
            return [] if first is None else [first]
        starts, done, last = [], first - 1, self.metrics[-1]["epoch"]
        while 0 < done < last:
            starts.append(done + 1)
            done *= 2
        return starts or [first]

    @property
    def averaged_from(self) -> int | None:
        """The epoch in which the average began that is the result."""
        best = self.best_epoch or 0
        return max((start for start in self.averaging_starts if start <= best), default=None)

    @property
    def best(self) -> dict[str, Any] | None:
        """The line of the epoch with the lowest valid perplexity, whose weights are the result."""
        return min(self.metrics, key=lambda line: line["valid_nll"], default=None)

    @property
    def best_epoch(self) -> int | None:
        return None if self.best is None else self.best["epoch"]

    @property
    def command(self) -> str:
        if self.overrides is None:
            return f"{self.name}: not a recipe of this package"
        return command(self.config, [_without_place(change) for change in self.overrides])


def _without_place(change: str) -> str:
    """Of a folder of one's own its name: where it lies is nobody's business."""
    name, _, value = change.partition("=")
    return f"{name}={PurePath(value).name}" if name in ("data.corpus", "finetune") else change
