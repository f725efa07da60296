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

from uncork.lm.config_io import FREE_FIELDS, GONE, OLDER, flat
from uncork.recipes.command import overrides
from uncork.recipes.front import exit_code
from uncork.recipes.whole import not_whole, whole_run
from uncork.results import RUN_KIND, check_target, find_runs, read_jsonl, run_record, write_atomic


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
    _keep_what_is_there(Path(file), records)
    # By what the run is, not by folder: the same runs give the same file wherever they lay.
    records.sort(
        key=lambda each: (each["config"]["name"], each["config"]["seed"], json.dumps(each, sort_keys=True))
    )
    write_atomic(file, "".join(json.dumps(each, sort_keys=True) + "\n" for each in records).encode())
    return len(records), sum(record["result"] is not None for record in records)


def _keep_what_is_there(file: Path, records: list[dict[str, Any]]) -> None:
    """Refuse to write over another file, or over a bundle that says more of a run than these do."""
    check_target("output", file, "a bundle", _is_bundle)
    there = [described(whole_run(each, file)) for each in read_jsonl(file)] if file.exists() else []
    kept = [_told(each) for each in records]
    lost = sum(_told(each) not in kept for each in each_once([*records, *there]))
    if lost:
        raise ValueError(
            f"`output` must not lose runs: {lost} of `{file}` are not among `runs`, or got further there. "
            "Name it among them too, or write to another file."
        )


def _told(record: dict[str, Any]) -> str:
    """What a record says of its run that nothing else would bring back."""
    parts = deciding(record["config"]), record["metrics"], record["result"], _started(record)
    return json.dumps(parts, sort_keys=True)


def each_once(records: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of a run that was read twice, in a folder and in a bundle, the one that got further."""
    found: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        same = found.setdefault(json.dumps(deciding(record["config"]), sort_keys=True), [])
        twin = next((n for n, other in enumerate(same) if _one_run(record, other)), None)
        if twin is None:
            same.append(record)
            continue
        less, further = sorted((same[twin], record), key=_progress)
        known = less if _started(less) and not _started(further) else further
        same[twin] = further | {"provenance": known["provenance"]}
    return [record for same in found.values() for record in same]


SECONDS = ("train_seconds", "seconds")
SCORES = ("epochs", "valid_perplexity", "test_perplexity")


def _one_run(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Of two records of one configuration: whether they began at once and measured the same since.

    A run that was carried elsewhere may have gone on in both places, with a loss in one of them. Where it is
    not known when they began, they must agree to the time it took.
    """
    known = bool(_started(one) and _started(other))
    if known and _started(one) != _started(other):
        return False
    free = SECONDS if known else ()
    mine, yours = ({line["epoch"]: _text(line, free) for line in each["metrics"]} for each in (one, other))
    both = mine.keys() & yours.keys()
    results = [each["result"] for each in (one, other) if each["result"] is not None]
    if known:
        results = [[each[name] for name in SCORES] for each in results]
    alike = all(mine[epoch] == yours[epoch] for epoch in both) and len({_text(each) for each in results}) < 2
    return alike and (known or bool(both))


def _text(value: Any, without: tuple[str, ...] = ()) -> str:
    """To compare by: NaN is not equal to itself."""
    kept = {n: v for n, v in value.items() if n not in without} if isinstance(value, dict) else value
    return json.dumps(kept, sort_keys=True)


def _started(record: dict[str, Any]) -> str | None:
    return record["provenance"].get("started")


def _progress(record: dict[str, Any]) -> tuple[bool, int, bool, str]:
    """Further is later; of equals the one that no file took digits from, in whatever order they came."""
    ended, lines = record["result"] is not None, len(record["metrics"])
    return ended, lines, not was_carried(record["result"]), _text(record)


def was_carried(result: dict[str, Any] | None) -> bool:
    """Whether a run has gone on from a file that loses digits."""
    return bool((result or {}).get("packed"))


def deciding(config: dict[str, Any]) -> dict[str, Any]:
    """A configuration as `path: value`, without the fields that change no number.

    Nor those that are None: configurations from before there was such a field do not have them. What else
    those lack is filled in.
    """
    values = OLDER | flat(config)
    return {path: value for path, value in values.items() if path not in FREE and value is not None}


def described(record: dict[str, Any]) -> dict[str, Any]:
    """A run's record with its overrides, unless it has them."""
    return {"overrides": overrides(record["config"])} | record


def _is_bundle(file: Path) -> bool:
    lines = list(read_jsonl(file))
    return bool(lines) and all(isinstance(each, dict) and each.get("kind") == RUN_KIND for each in lines)


def _records(run: Path) -> list[dict[str, Any]]:
    if not run.exists():
        raise ValueError(f"`runs` must name existing folders or bundles; `{run}` does not exist.")
    if run.is_dir():
        return [described(folder_record(folder)) for folder in find_runs(run)]
    if run.suffix != ".jsonl" or not _is_bundle(run):
        raise ValueError(f"`runs` must name run folders or bundles of `uncork bundle`; `{run}` is neither.")
    return [described(whole_run(record, run)) for record in read_jsonl(run)]


def folder_record(folder: Path) -> dict[str, Any]:
    """`run_record`, with an error that names the folder where its files are JSON and not a run's."""
    try:
        record = run_record(folder)
    except KeyError as error:
        raise ValueError(not_whole(folder, f"`config.json` lacks {error}")) from error
    except (AttributeError, TypeError) as error:
        raise ValueError(not_whole(folder, "`config.json` holds no configuration")) from error
    return whole_run(record, folder)


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
