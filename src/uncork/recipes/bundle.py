"""`python -m uncork.recipes.bundle RUNS... -o FILE`: many run folders as one file, for moving and committing.

Reports read the file as they read the folders. It holds neither weights nor words. What each run changed in
its recipe is stored too: recipes may change, and the file then still says what was run.
"""

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from uncork.recipes.command import overrides
from uncork.recipes.front import exit_code
from uncork.results import find_runs, run_record, write_atomic


def bundle(runs: Iterable[str | Path], file: str | Path) -> tuple[int, int]:
    """Write every run at or under `runs` as one line of `file`; how many, and how many of them have ended."""
    folders = {folder.resolve(): None for run in runs for folder in _folders(Path(run))}
    if not folders:
        raise ValueError("`runs` must hold run folders of `uncork train`; found none.")
    records = [described(run_record(folder)) for folder in folders]
    # By what the run is, not by folder: the same runs give the same file wherever they lay.
    records.sort(key=lambda record: (record["config"]["name"], record["config"]["seed"], json.dumps(record)))
    lines = "".join(json.dumps(record, sort_keys=True) + "\n" for record in records)
    write_atomic(file, lines.encode())
    return len(records), sum(record["result"] is not None for record in records)


def described(record: dict[str, Any]) -> dict[str, Any]:
    """A run's record with its overrides, unless it has them."""
    return {"overrides": overrides(record["config"])} | record


def _folders(run: Path) -> list[Path]:
    if not run.is_dir():
        raise ValueError(f"`runs` must name existing folders; `{run}` is not one.")
    return find_runs(run)


def report_bundle(runs: Iterable[Path], output: Path) -> int:
    """Bundle, and say how many runs it were."""
    count, ended = bundle(runs, output)
    print(f"{output}: {count} runs, {ended} of them ended")
    return 0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m uncork.recipes.bundle", description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, help="run folders, or folders of them")
    parser.add_argument("-o", "--output", required=True, type=Path, help="the .jsonl file to write")
    options = parser.parse_args(arguments)
    return exit_code(lambda: report_bundle(options.runs, options.output))


if __name__ == "__main__":
    raise SystemExit(main())
