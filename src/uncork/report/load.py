"""Find result files: folders of cells, bundles, theory tables. Reads JSON, runs nothing."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from uncork.results import read_json, read_jsonl


@dataclass
class Results:
    """What was found, by kind, and the files of kinds this report does not show."""

    cells: list[dict[str, Any]] = field(default_factory=list)
    theory: dict[str, Any] | None = None
    other: list[Path] = field(default_factory=list)


def load(runs: Iterable[Path]) -> Results:
    """Read every result file under `runs`, each a folder, a .json or a .jsonl file."""
    results = Results()
    seen: set[tuple[Any, ...]] = set()
    for run in runs:
        run = Path(run)
        if not run.exists():
            raise ValueError(f"`runs` must name existing folders or files; `{run}` does not exist.")
        for path in _files(run):
            for record in _records(path):
                _take(results, seen, record, path)
    if not results.cells and results.theory is None:
        raise ValueError(
            "`runs` must hold results of `uncork synthetic` or `uncork theory`; found none. "
            "Run one of them first."
        )
    return results


def _files(run: Path) -> list[Path]:
    if run.is_file():
        return [run]
    return sorted(path for path in run.rglob("*.json*") if path.suffix in (".json", ".jsonl"))


def _records(path: Path) -> Iterable[Any]:
    return read_jsonl(path) if path.suffix == ".jsonl" else [read_json(path)]


def _take(results: Results, seen: set, record: Any, path: Path) -> None:
    kind = record.get("kind") if isinstance(record, dict) else None
    if kind == "synthetic-cell":
        # A folder may hold the cells and their bundle: each counts once.
        key = (*sorted(record["cell"].items()), record["provenance"].get("started"))
        if key not in seen:
            seen.add(key)
            results.cells.append(record)
    elif kind == "theory":
        results.theory = record
    elif path.name != "config.json" and path not in results.other:
        results.other.append(path)
