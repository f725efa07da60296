"""One cell from task to result record, and the record's place on disk."""

import math
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from uncork.results import provenance, read_json, write_json
from uncork.synthetic import metrics
from uncork.synthetic.config import Cell, Settings
from uncork.synthetic.fit import Fit, Progress, fit
from uncork.synthetic.tasks import Task


KIND = "synthetic-cell"


def run_cell(
    cell: Cell, task: Task, settings: Settings, progress: Progress = lambda text: None
) -> dict[str, Any]:
    """Fit and measure; the returned record is the content of the cell's result file."""
    origin = provenance(task.device)
    began = time.perf_counter()
    fitted = fit(cell, task, settings, progress)
    fit_seconds = time.perf_counter() - began
    return {
        "kind": KIND,
        "cell": asdict(cell),
        "settings": _plain(settings),
        **_measured(cell, fitted, task, settings),
        "search": [{**trial, "kl": _finite(trial["kl"])} for trial in fitted.search],
        "rate": fitted.rate,
        "stopped": fitted.stopped,
        "passes": len(fitted.history),
        "history": [_finite(round(value, 6)) for value in fitted.history],
        "parameters": parameter_counts(fitted),
        "fit_seconds": fit_seconds,
        "seconds": time.perf_counter() - began,
        "provenance": origin,
    }


def _measured(cell: Cell, fitted: Fit, task: Task, settings: Settings) -> dict[str, Any]:
    """Everything read off a fit; nothing of one that diverged."""
    if fitted.stopped == "diverged":
        return {"metrics": None, "certified": None, "function": None, "rank": None}
    certified = None
    if cell.head == "softmax" and settings.certified_contexts:
        certified = metrics.certify(fitted, task, settings.certified_contexts)
    return {
        "metrics": metrics.evaluate(fitted, task, settings.components if cell.head == "mos" else 1),
        "certified": certified,
        "function": metrics.learned_function(fitted, task),
        "rank": metrics.model_rank(fitted, task),
    }


def _finite(value: float) -> float | None:
    """JSON has no infinity."""
    return value if math.isfinite(value) else None


def parameter_counts(fitted: Fit) -> dict[str, int]:
    """Numbers learned: words, function and mixture shared by all contexts; vectors of contexts."""
    shared = sum(p.numel() for p in fitted.head.parameters())
    words = fitted.head.weight.numel()
    contexts = sum(part.numel() for part in fitted.contexts)
    return {"words": words, "beside_words": shared - words, "contexts": contexts}


def cell_path(folder: Path, cell: Cell) -> Path:
    return folder / "cells" / f"{cell.name}.json"


def load_finished(folder: Path, cell: Cell, settings: Settings) -> dict[str, Any] | None:
    """The cell's record if it is there; one of another cell or other settings is an error, not a result."""
    path = cell_path(folder, cell)
    if not path.exists():
        return None
    record = read_json(path)
    if not isinstance(record, dict) or not record.keys() >= {"cell", "settings", "metrics", "stopped"}:
        raise ValueError(
            f"`{path}` must hold the whole record of a cell. Remove it, and the cell is run again."
        )
    if record["cell"] != asdict(cell):
        raise ValueError(
            f"`{path}` must hold the cell it is named for; found {record['cell']}. "
            "Remove it, or choose another folder."
        )
    if not made_with(record, settings):
        raise ValueError(
            f"`{path}` was made with other settings than these. Choose another folder, or remove it."
        )
    return record


def made_with(record: dict[str, Any], settings: Settings) -> bool:
    """Whether a cell's record says these settings."""
    return record.get("settings") == _plain(settings)


def save(folder: Path, cell: Cell, record: dict[str, Any]) -> None:
    write_json(cell_path(folder, cell), record)


def _plain(settings: Settings) -> dict[str, Any]:
    values = asdict(settings)
    values["rates"] = list(settings.rates)
    return values
