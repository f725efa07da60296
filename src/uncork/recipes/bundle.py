"""`python -m uncork.recipes.bundle RUNS... -o FILE`: many run folders as one file, for moving and committing.

Reports read the file as they read the folders. It holds neither weights nor words. What each run changed in
its recipe is stored too: recipes may change, and the file then still says what was run. The runs of other
such files can be taken over.
"""

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from uncork.lm.config_io import FREE_FIELDS, GONE, flat
from uncork.recipes.command import overrides
from uncork.recipes.front import exit_code
from uncork.results import RUN_KIND, find_runs, read_jsonl, run_record, write_atomic


# Fields that change no number, or rounding alone, and those that only older runs have.
FREE = (*FREE_FIELDS, *GONE)


def bundle(runs: Iterable[str | Path], file: str | Path) -> tuple[int, int]:
    """Write every run at or under `runs` as one line of `file`; returns how many, and how many have ended.

    `runs` are run folders, folders of them, and bundles; `file` may be one of those bundles.
    """
    if Path(file).suffix != ".jsonl":
        raise ValueError(
            f"`output` must end in .jsonl, by which bundles are known; got `{file}`. "
            f"Write to `{Path(file).with_suffix('.jsonl')}`."
        )
    records = each_once(record for run in runs for record in _records(Path(run)))
    if not records:
        raise ValueError("`runs` must hold run folders of `uncork train`; found none. Name other folders.")
    # By what the run is, not by folder: the same runs give the same file wherever they lay.
    records.sort(key=lambda each: (each["config"]["name"], each["config"]["seed"], json.dumps(each)))
    write_atomic(file, "".join(json.dumps(each, sort_keys=True) + "\n" for each in records).encode())
    return len(records), sum(record["result"] is not None for record in records)


def each_once(records: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of a run that was read twice, in a folder and in a bundle, the one that got further."""
    found: dict[str, dict[str, Any]] = {}
    for record in records:
        key = json.dumps([deciding(record["config"]), record["provenance"].get("started")], sort_keys=True)
        found[key] = max(found.get(key, record), record, key=_progress)
    return list(found.values())


def _progress(record: dict[str, Any]) -> tuple[bool, int]:
    return record["result"] is not None, len(record["metrics"])


def deciding(config: dict[str, Any]) -> dict[str, Any]:
    """A configuration as `path: value`, without the fields that change no number.

    Nor those that are None, which configurations from before there was such a field do not have.
    """
    return {path: value for path, value in flat(config).items() if path not in FREE and value is not None}


def described(record: dict[str, Any]) -> dict[str, Any]:
    """A run's record with its overrides, unless it has them."""
    return {"overrides": overrides(record["config"])} | record


def _records(run: Path) -> list[dict[str, Any]]:
    if not run.exists():
        raise ValueError(f"`runs` must name existing folders or bundles; `{run}` does not exist.")
    if run.is_dir():
        return [described(folder_record(folder)) for folder in find_runs(run)]
    records = list(read_jsonl(run)) if run.suffix == ".jsonl" else []
    if not records or any(not isinstance(each, dict) or each.get("kind") != RUN_KIND for each in records):
        raise ValueError(f"`runs` must name run folders or bundles of `uncork bundle`; `{run}` is neither.")
    return [described(_whole(record, run)) for record in records]


def folder_record(folder: Path) -> dict[str, Any]:
    """`run_record`, with an error that names the folder where its files are JSON and not a run's."""
    try:
        record = run_record(folder)
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(not_whole(folder, f"`config.json` lacks {error}")) from error
    return _whole(record, folder)


def _whole(record: dict[str, Any], path: Path) -> dict[str, Any]:
    """The record, if it has what runs are told apart and sorted by."""
    config = record.get("config")
    lost = [name for name in ("name", "seed", "data") if not isinstance(config, dict) or name not in config]
    if lost:
        raise ValueError(not_whole(path, f"its config lacks {', '.join(lost)}"))
    for part, kind in (("provenance", dict), ("metrics", list), ("result", dict | None)):
        if part not in record or not isinstance(record[part], kind):
            raise ValueError(not_whole(path, f"{part} is missing or of another kind"))
    return record


def not_whole(path: Path, reason: str, kind: str = "runs") -> str:
    """The error message for a file that is JSON, but not what it should be."""
    return (
        f"`runs` must hold whole records of {kind}; of `{path}` {reason}. Leave it out, or take it from "
        "where it was made."
    )


def report_bundle(runs: Iterable[Path], output: Path) -> int:
    """Bundle, and print how many runs there are."""
    count, ended = bundle(runs, output)
    print(f"{output}: {count} runs, {ended} of them ended")
    return 0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m uncork.recipes.bundle", description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, help="run folders, folders of them, or bundles")
    parser.add_argument("-o", "--output", required=True, type=Path, help="the .jsonl file to write")
    options = parser.parse_args(arguments)
    return exit_code(lambda: report_bundle(options.runs, options.output))


if __name__ == "__main__":
    raise SystemExit(main())
