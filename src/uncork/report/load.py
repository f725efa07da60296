"""Find result files: cells, language-model runs, bundles of both, theory tables. Reads JSON, runs nothing."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from uncork.recipes.bundle import each_once, folder_record
from uncork.recipes.whole import check_parts, not_whole, whole_run
from uncork.report.language.runs import Run
from uncork.results import ORIGIN, RUN_KIND, find_runs, read_json, read_jsonl


CELL_KIND, THEORY_KIND = "synthetic-cell", "theory"
Found = tuple[dict[str, Any], Path]  # a record, and the file it stood in


@dataclass
class Results:
    """What was found, by kind, and the files of kinds this report does not show."""

    cells: list[dict[str, Any]] = field(default_factory=list)
    repeated: list[dict[str, Any]] = field(default_factory=list)  # cells that were fitted again later
    runs: list[Run] = field(default_factory=list)
    theory: dict[str, Any] | None = None
    unused_theory: list[Path] = field(default_factory=list)  # tables older than that one
    other: list[Path] = field(default_factory=list)


def load(runs: Iterable[Path]) -> Results:
    """Read every result file under `runs`, each a folder, a .json or a .jsonl file."""
    results = Results()
    found: dict[str, list[Found]] = {CELL_KIND: [], THEORY_KIND: []}
    records: list[dict[str, Any]] = []
    for run in runs:
        run = Path(run)
        if not run.exists():
            raise ValueError(f"`runs` must name existing folders or files; `{run}` does not exist.")
        folders = find_runs(run)
        records += [folder_record(folder) for folder in folders]
        for path in _files(run, folders):
            for record in _records(path):
                kind = record.get("kind") if isinstance(record, dict) else None
                if kind == RUN_KIND:
                    records.append(whole_run(record, path))
                elif kind in (CELL_KIND, THEORY_KIND):
                    found[kind].append((record, path))
                elif path.name != "config.json" and path not in results.other:
                    results.other.append(path)
    _take_cells(results, found[CELL_KIND])
    _take_theory(results, found[THEORY_KIND])
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


# What the sections read of a record, by the part that holds it.
CELL_PARTS = {
    "cell": ("vocabulary", "width", "concentration", "contexts", "head", "seed"),
    "settings": (
        "rates", "trial_contexts", "tolerance", "patience", "decays", "max_passes", "components", "units",
        "knots",
    ),
    "metrics": ("kl", "mode_matching"),
    "parameters": ("beside_words",),
    "provenance": ORIGIN,
}  # fmt: skip
CELL_NAMES = ("certified", "function", "rank", "rate", "stopped", "passes", "fit_seconds")
ROW_NAMES = ("statement", "computed", "left", "relation", "right", "holds", "as_printed_false", "as_expected")


def _take_cells(results: Results, found: list[Found]) -> None:
    """Each cell once: a folder may hold its bundle too, and of a cell fitted twice the later fit counts."""
    latest: dict[tuple[Any, ...], dict[str, Any]] = {}
    for record, path in found:
        _check_cell(record, path)
        _check_settings(found[0], (record, path))
        key = tuple(sorted(record["cell"].items()))
        former = latest.setdefault(key, record)
        if _started(former) != _started(record):
            latest[key], earlier = sorted((former, record), key=_started, reverse=True)
            if earlier not in results.repeated:
                results.repeated.append(earlier)
    results.cells = list(latest.values())


def _check_cell(record: dict[str, Any], path: Path) -> None:
    lost = [name for name in CELL_NAMES if name not in record]
    if lost:
        raise ValueError(not_whole(path, f"the record lacks {', '.join(lost)}", "synthetic cells"))
    diverged = record["stopped"] == "diverged"  # nothing is measured then
    check_parts("synthetic cells", record, CELL_PARTS, path, optional="metrics" if diverged else None)


def _check_settings(first: Found, other: Found) -> None:
    mine, yours = first[0]["settings"], other[0]["settings"]
    for name in sorted(mine.keys() | yours.keys()):
        if mine.get(name) != yours.get(name):
            raise ValueError(
                "`runs` must hold synthetic cells of the same settings, or fits of unlike budgets would be "
                f"compared; `{name}` is {mine.get(name)} in `{first[1]}` and {yours.get(name)} in "
                f"`{other[1]}`. Make a report of each."
            )


def _take_theory(results: Results, found: list[Found]) -> None:
    for record, path in found:
        rows = record.get("rows")
        whole = isinstance(rows, list) and all(
            isinstance(row, dict) and row.keys() >= set(ROW_NAMES) for row in rows
        )
        if not whole:
            reason = f"`rows` is no list of statements with {', '.join(ROW_NAMES)}"
            raise ValueError(not_whole(path, reason, "`uncork theory`"))
    if found:
        results.theory = max(found, key=lambda each: _started(each[0]))[0]
        results.unused_theory = [path for record, path in found if record != results.theory]


def _started(record: dict[str, Any]) -> str:
    provenance = record.get("provenance")
    return str(provenance.get("started") or "") if isinstance(provenance, dict) else ""
