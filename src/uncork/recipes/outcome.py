"""What a run folder says of a run: how far it is, and what came out."""

import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from uncork.results import read_json, read_jsonl


@dataclass(frozen=True)
class Outcome:
    """`result` is None until the run is finished; seconds are medians over epochs.

    `damage` says which file cannot be read and why; nothing else is known then.
    """

    epochs: int = 0
    valid_perplexity: float | None = None
    train_seconds: float | None = None
    epoch_seconds: float | None = None
    result: dict[str, Any] | None = None
    damage: str = ""


IN_METRICS = ("epoch", "valid_perplexity", "train_seconds", "seconds")
IN_RESULT = ("valid_perplexity", "test_perplexity", "parameters")


def read_outcome(folder: Path) -> Outcome:
    """Read a run folder, which may not be there yet, be written to at this moment, or be damaged.

    Damage is told and not raised: one bad file must not end a sweep of other runs.
    """
    try:
        return _read(folder / "metrics.jsonl", folder / "result.json")
    except (ValueError, OSError) as error:
        return Outcome(damage=str(error))


def _read(metrics: Path, result: Path) -> Outcome:
    records = list(read_jsonl(metrics)) if metrics.exists() else []
    finished = read_json(result) if result.exists() else None
    for record in records:
        _check(record, IN_METRICS, metrics)
    if finished is not None:
        _check(finished, IN_RESULT, result)
    if not records:
        return Outcome(result=finished)
    return Outcome(
        epochs=records[-1]["epoch"],
        valid_perplexity=records[-1]["valid_perplexity"],
        train_seconds=statistics.median(record["train_seconds"] for record in records),
        epoch_seconds=statistics.median(record["seconds"] for record in records),
        result=finished,
    )


def _check(record: Any, names: tuple[str, ...], path: Path) -> None:
    """JSON that reads may still be another file's."""
    values = record if isinstance(record, dict) else {}
    missing = [name for name in names if not isinstance(values.get(name), int | float)]
    if missing:
        raise ValueError(
            f"`{path}` must give `{missing[0]}` as a number, but does not. Restore the file from a copy, "
            "or delete it and run again."
        )
