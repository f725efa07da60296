"""The table of a sweep: a row per variant over its finished seeds, and the runs that failed or go on."""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from uncork.recipes.outcome import Outcome, read_outcome
from uncork.recipes.watch import Watched
from uncork.results import perplexity_text, spread_text, write_atomic, write_json


Row = dict[str, Any]
COLUMNS = (
    "run", "parameters", "seeds finished", "valid perplexity", "test perplexity", "s/epoch",
    "times softmax", "peak memory",
)  # fmt: skip


def write_table(folder: Path, runs: Sequence[Watched]) -> dict[str, Any]:
    """Write `table.json` and `table.md` of these runs, and return what the first holds.

    Only of these: a mean over runs of two sweeps could mix two configurations. Other runs in the folder, such
    as those of an earlier sweep, are listed by name.
    """
    outcomes = {watched.run.name: read_outcome(watched.run.folder) for watched in runs}
    by_variant: dict[str, list[Watched]] = {}
    for watched in runs:
        by_variant.setdefault(watched.run.variant.name, []).append(watched)
    rows = [_row(group, [outcomes[watched.run.name] for watched in group]) for group in by_variant.values()]
    _add_ratios(rows)
    left = [_left(w, outcomes[w.run.name]) for w in runs if outcomes[w.run.name].result is None]
    failed = [run for run in left if run["status"] == "failed"]
    unfinished = [run for run in left if run["status"] != "failed"]
    others = sorted({path.parent.name for path in folder.glob("*/config.json")} - outcomes.keys())
    table = {
        "kind": "language_model_sweep", "rows": rows, "failed": failed, "unfinished": unfinished,
        "others": others,
    }  # fmt: skip
    write_json(folder / "table.json", table)
    write_atomic(folder / "table.md", markdown(table).encode())
    return table


def _row(group: list[Watched], outcomes: list[Outcome]) -> Row:
    run = group[0].run
    results = [outcome.result for outcome in outcomes if outcome.result is not None]
    function = run.config.model.head.function
    return {
        "name": run.variant.name,
        "recipe": run.variant.recipe,
        "overrides": list(run.variant.overrides),
        "corpus": run.config.data.corpus,
        "head": run.config.model.head.kind,
        "function": None if function is None else function.name,
        "seeds": [watched.run.seed for watched in group],
        "finished": len(results),
        "carried_with_loss": sum(bool(result.get("packed")) for result in results),
        "parameters": results[0]["parameters"] if results else None,
        "valid_perplexity": _spread([result["valid_perplexity"] for result in results]),
        "test_perplexity": _spread([result["test_perplexity"] for result in results]),
        "seconds_per_epoch": _known(statistics.median, results, "seconds_per_epoch"),
        "peak_memory_bytes": _known(max, results, "peak_memory_bytes"),
    }


def _known(reduce: Any, results: list[dict[str, Any]], name: str) -> Any:
    """Over the results that have the number: those on a CPU, or of an older version, may not."""
    values = [result[name] for result in results if result.get(name) is not None]
    return reduce(values) if values else None


def _spread(values: list[float]) -> dict[str, float | None] | None:
    """Mean and sample standard deviation; one value has no deviation."""
    if not values:
        return None
    return {
        "mean": statistics.fmean(values),
        "deviation": statistics.stdev(values) if len(values) > 1 else None,
    }


def _add_ratios(rows: list[Row]) -> None:
    """Time per epoch over that of the first plain softmax on the same corpus, where there is one."""
    plain: dict[str, float] = {}
    for row in rows:
        if row["head"] == "softmax" and row["seconds_per_epoch"]:
            plain.setdefault(row["corpus"], row["seconds_per_epoch"])
    for row in rows:
        seconds, softmax = row["seconds_per_epoch"], plain.get(row["corpus"])
        row["time_ratio_to_softmax"] = seconds / softmax if seconds and softmax else None


def _left(watched: Watched, outcome: Outcome) -> dict[str, Any]:
    """A run without a result; one whose files cannot be read has failed, whatever became of its trainer."""
    return {
        "name": watched.run.name,
        "status": "failed" if outcome.damage else watched.status,
        "message": watched.message or outcome.damage,
        "damaged": bool(outcome.damage),
        "epochs": outcome.epochs,
        "of_epochs": watched.run.config.epochs,
        "valid_perplexity": outcome.valid_perplexity,
        "seconds_per_epoch": outcome.train_seconds,
    }


def markdown(table: dict[str, Any]) -> str:
    """The same for people."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "|---" * len(COLUMNS) + "|"]
    for row in table["rows"]:
        cells = (
            row["name"],
            _text(row["parameters"], "{:,}"),
            f"{row['finished']} of {len(row['seeds'])}",
            _spread_text(row["valid_perplexity"]),
            _spread_text(row["test_perplexity"]),
            _text(row["seconds_per_epoch"], "{:.1f}"),
            _text(row["time_ratio_to_softmax"], "{:.2f}"),
            "-" if row["peak_memory_bytes"] is None else f"{row['peak_memory_bytes'] / 2**20:,.0f} MiB",
        )
        lines.append("| " + " | ".join(cells) + " |")
    carried = sum(row["carried_with_loss"] for row in table["rows"])
    if carried:
        lines += ["", f"{carried} of these runs were carried between machines in a file that loses digits."]
    lines += _without_result("Failed", table["failed"]) + _without_result("Not finished", table["unfinished"])
    if table["others"]:
        lines += ["", f"In this folder, but not of this sweep: {', '.join(table['others'])}."]
        lines += ["For a table of all, give all recipes and seeds with --resume: finished runs are skipped."]
    return "\n".join(lines) + "\n"


def _without_result(title: str, runs: list[dict[str, Any]]) -> list[str]:
    if not runs:
        return []
    lines = ["", f"{title}, and in no mean above:", ""]
    lines += ["| run | status | epochs | last valid perplexity | |", "|---|---|---|---|---|"]
    for run in runs:
        valid, message = run["valid_perplexity"], run["message"].replace("|", "\\|")
        perplexity = "-" if valid is None else perplexity_text(valid)
        epochs = f"{run['epochs']} of {run['of_epochs']}"
        lines.append(f"| {run['name']} | {run['status']} | {epochs} | {perplexity} | {message} |")
    return lines


def _text(value: float | None, pattern: str) -> str:
    return "-" if value is None else pattern.format(value)


def _spread_text(spread: dict[str, Any] | None) -> str:
    return "-" if spread is None else spread_text(spread["mean"], spread["deviation"])
