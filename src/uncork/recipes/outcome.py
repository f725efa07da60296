"""What a run folder says of a run: how far it is, and what came out."""

import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from uncork.results import read_json, read_jsonl


@dataclass(frozen=True)
class Outcome:
    """`result` is None until the run is finished; seconds are medians over epochs."""

    epochs: int = 0
    valid_perplexity: float | None = None
    train_seconds: float | None = None
    epoch_seconds: float | None = None
    result: dict[str, Any] | None = None


def read_outcome(folder: Path) -> Outcome:
    """Read a run folder, which may not be there yet, or be written to at this moment."""
    metrics, result = folder / "metrics.jsonl", folder / "result.json"
    records = list(read_jsonl(metrics)) if metrics.exists() else []
    finished = read_json(result) if result.exists() else None
    if not records:
        return Outcome(result=finished)
    return Outcome(
        epochs=records[-1]["epoch"],
        valid_perplexity=records[-1]["valid_perplexity"],
        train_seconds=statistics.median(record["train_seconds"] for record in records),
        epoch_seconds=statistics.median(record["seconds"] for record in records),
        result=finished,
    )
