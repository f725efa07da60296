"""One language-model run as its record tells it, finished or not."""

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import product
from pathlib import PurePath
from statistics import median
from typing import Any

from uncork.recipes import RECIPES
from uncork.recipes.bundle import described, was_carried
from uncork.recipes.command import command
from uncork.results import DIVERGED


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

WIDTHS = ("model.embedding", "model.hidden", "model.layers", "model.last_hidden", "model.tied")


@dataclass(frozen=True, order=True)
class Size:
    """How large a model is but for its head; `width` is that of the vector the head reads."""

    width: int
    embedding: int
    hidden: int
    layers: int
    tied: bool

    def beside(self, others: Iterable["Size"]) -> str:
        """In what it differs from others, in words."""
        sizes = [asdict(self), *map(asdict, others)]
        names = [name for name in sizes[0] if len({size[name] for size in sizes}) > 1]
        if all(size["width"] == size["embedding"] for size in sizes):  # one number, told once
            names = [name for name in names if name != "embedding"]
        texts = {"tied": "tied" if self.tied else "not tied"}
        return ", ".join(texts.get(name, f"{name} {sizes[0][name]}") for name in names)


@dataclass(frozen=True)
class Run:
    """The parts of a run folder; `result` is None where the run has not ended."""

    config: dict[str, Any]
    overrides: tuple[str, ...] | None  # against its recipe; None where they cannot be told
    metrics: list[dict[str, Any]]
    provenance: dict[str, Any]
    result: dict[str, Any] | None
    corpus: str  # the name or folder of its text
    text: str | None = None  # the fingerprint of that text, where it is known

    @classmethod
    def of(cls, record: dict[str, Any]) -> "Run":
        """From a line of a bundle, or from what `run_record` reads in a folder."""
        record = described(record)
        changes = None if record["overrides"] is None else tuple(record["overrides"])
        config, result = record["config"], record["result"]
        corpus, text = config["data"]["corpus"], (result or {}).get("corpus_fingerprint")
        return cls(config, changes, record["metrics"], record["provenance"], result, corpus, text)

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
    def is_carried(self) -> bool:
        """Whether it has gone on from a file that loses digits."""
        return was_carried(self.result)

    @property
    def is_mixture(self) -> bool:
        return self.config["model"]["head"]["kind"] == "mixture"

    @property
    def size(self) -> Size:
        model = self.config["model"]
        width = model["last_hidden"] or model["embedding"]
        return Size(width, model["embedding"], model["hidden"], model["layers"], model["tied"])

    @property
    def role(self) -> str:
        """A key of `LABELS`."""
        head = self.config["model"]["head"]
        function = head["function"]
        if function is None:
            return "mos" if self.is_mixture else "softmax"
        random = function["options"].get("init") == "random"
        if function["frozen"]:  # nothing is learned, whatever its name
            return "plif_frozen" if function["name"] == "PLIF" and random and not self.is_mixture else "other"
        if self.is_mixture:
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
        name = ("MoS with " if self.is_mixture else "") + head["function"]["name"]
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
            start = _moment(origin.get("started"))
            if start is not None:
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
    def diverged(self) -> bool:
        """Whether perplexity had no bounds in the end."""
        scores = [line["valid_perplexity"] for line in self.metrics[-1:]]
        if self.result is not None:
            scores += [self.result[f"{split}_perplexity"] for split in ("valid", "test")]
        return any(score > DIVERGED for score in scores)

    @property
    def changes_unknown(self) -> bool:
        """Whether it may be any change of a recipe of this package: another version configured it."""
        return self.overrides is None and self.name in RECIPES

    @property
    def command(self) -> str:
        if self.overrides is None:
            unknown = self.changes_unknown
            why = "configuration of another version" if unknown else "not a recipe of this package"
            return f"{self.name}: {why}"
        return command(self.config, [_without_place(change) for change in self.overrides])


def _moment(text: str | None) -> float | None:
    """None where it is not known, or the record was edited."""
    try:
        return datetime.fromisoformat(text).timestamp() if text else None
    except ValueError:
        return None


def _without_place(change: str) -> str:
    """Of a folder of one's own its name: where it lies is nobody's business."""
    name, _, value = change.partition("=")
    return f"{name}={PurePath(value).name}" if name in ("data.corpus", "finetune") else change
