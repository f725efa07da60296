"""Find result files: cells, language-model runs, bundles of both, theory tables. Reads JSON, runs nothing."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from uncork.recipes.bundle import each_once
from uncork.report.language.runs import Run
from uncork.results import RUN_KIND, find_runs, read_json, read_jsonl, run_record


@dataclass
class Results:
    """What was found, by kind, and the files of kinds this report does not show."""

    cells: list[dict[str, Any]] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    theory: dict[str, Any] | None = None
    other: list[Path] = field(default_factory=list)


def load(runs: Iterable[Path]) -> Results:
    """Read every result file under `runs`, each a folder, a .json or a .jsonl file."""
    results = Results()
    seen: set[tuple[Any, ...]] = set()
    records: list[dict[str, Any]] = []
    for run in runs:
        run = Path(run)
        if not run.exists():
            raise ValueError(f"`runs` must name existing folders or files; `{run}` does not exist.")
        folders = find_runs(run)
        records += [_folder_record(folder) for folder in folders]
        for path in _files(run, folders):
            for record in _records(path):
                _take(results, records, seen, record, path)
    results.runs = [Run.of(record) for record in each_once(records)]
    if not results.cells and not results.runs and results.theory is None:
        raise ValueError(
            "`runs` must hold results of `uncork synthetic`, `uncork train` or `uncork theory`; found none. "
            "Run one of them first."
        )
    return results


def _files(run: Path, folders: list[Path]) -> list[Path]:
    """The result files at or under `run` that do not belong to one of the run folders."""
    if run.is_file():
        return [run]
    inside = set(folders)
    found = (path for path in run.rglob("*.json*") if path.suffix in (".json", ".jsonl"))
    return sorted(path for path in found if inside.isdisjoint(path.parents))


def _records(path: Path) -> Iterable[Any]:
    return read_jsonl(path) if path.suffix == ".jsonl" else [read_json(path)]


# What the sections read of a run, by the part of its record that holds it.
NEEDED = {
    "config": ("name", "seed", "epochs", "model", "data", "optim"),
    "provenance": ("uncork", "commit", "torch", "hardware"),
    "result": ("parameters", "epochs", "valid_perplexity", "test_perplexity"),
}


def _folder_record(folder: Path) -> dict[str, Any]:
    try:
        record = run_record(folder)
    except (AttributeError, KeyError, TypeError) as error:  # a file that is JSON and not what it should be
        raise ValueError(_not_a_run(folder, f"`config.json` lacks {error}")) from error
    return _checked(record, folder)


def _checked(record: dict[str, Any], path: Path) -> dict[str, Any]:
    """The record, if it has what is read of it; one that was edited or cut may not."""
    for part, names in NEEDED.items():
        held = record.get(part)
        if part == "result" and held is None:  # not ended
            continue
        lost = names if not isinstance(held, dict) else [name for name in names if name not in held]
        if lost:
            raise ValueError(_not_a_run(path, f"its {part} lacks {', '.join(lost)}"))
    if not isinstance(record.get("metrics"), list):
        raise ValueError(_not_a_run(path, "it has no list of metrics"))
    return record


def _not_a_run(path: Path, reason: str) -> str:
    return (
        f"`runs` must hold whole records of runs; of `{path}` {reason}. Leave it out, or take it from where "
        "it was made."
    )


def _take(results: Results, runs: list[dict[str, Any]], seen: set, record: Any, path: Path) -> None:
    kind = record.get("kind") if isinstance(record, dict) else None
    if kind == "synthetic-cell":
        # A folder may hold the cells and their bundle: each counts once.
        key = (*sorted(record["cell"].items()), record["provenance"].get("started"))
        if key not in seen:
            seen.add(key)
            results.cells.append(record)
    elif kind == RUN_KIND:
        runs.append(_checked(record, path))
    elif kind == "theory":
        results.theory = record
    elif path.name != "config.json" and path not in results.other:
        results.other.append(path)
