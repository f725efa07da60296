"""What a run folder says of a run: how far it is, and what came out."""

import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from uncork.lm.stored import stored_metrics, stored_result


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


def read_outcome(folder: Path) -> Outcome:
    """Read a run folder, which may not be there yet, be written to at this moment, or be damaged.

    Damage is told and not raised: one bad file must not end a sweep of other runs.
    """
    try:
        return _read(folder)
    except (ValueError, OSError) as error:
        return Outcome(damage=str(error))


def _read(folder: Path) -> Outcome:
    records, result = stored_metrics(folder), stored_result(folder)
    if not records:
        return Outcome(result=result)
    return Outcome(
        epochs=records[-1]["epoch"],
        valid_perplexity=records[-1]["valid_perplexity"],
        train_seconds=statistics.median(record["train_seconds"] for record in records),
        epoch_seconds=statistics.median(record["seconds"] for record in records),
        result=result,
    )
