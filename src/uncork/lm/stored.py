"""The files of a run folder besides its tensors, checked when they are read.

JSON that reads may be another file's, or have been edited: it is named then, with what can be done.
"""

from pathlib import Path
from typing import Any

from uncork.lm.config import Config
from uncork.lm.config_io import from_dict
from uncork.results import ORIGIN, lost_of_line, lost_of_result, read_json, read_jsonl, remedy_of_line


COPY = "Put it back from a copy"


def stored_config(folder: Path) -> dict[str, Any]:
    """What `config.json` holds, not yet checked against this version's fields."""
    path = folder / "config.json"
    values = read_json(path)
    if not isinstance(values, dict):
        raise ValueError(_other(path, "a JSON object", values, f"{COPY}, or choose a new folder (--out)."))
    return values


def run_config(folder: Path) -> Config:
    """The configuration of a run; one of another version, or that was edited, is named."""
    try:
        return from_dict(Config, stored_config(folder))
    except ValueError as error:
        path = folder / "config.json"
        if str(path) in str(error):
            raise
        raise ValueError(
            f"`{path}` must hold a configuration of this version, but it does not: {error} {COPY}."
        ) from error


def stored_words(folder: Path) -> list[str]:
    """The words the model knows, in the order of its weights."""
    path = folder / "words.json"
    if not path.exists():
        raise FileNotFoundError(
            f"`{folder}` must have the words of its run, but it has no words.json. {COPY}."
        )
    words = read_json(path)
    if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
        raise ValueError(_other(path, "a list of words", words, f"{COPY}."))
    return words


def stored_origin(folder: Path) -> dict[str, Any] | None:
    """Where the run was made and went on; None where that was lost."""
    path = folder / "provenance.json"
    if not path.exists():
        return None
    origin = read_json(path)
    resumed = origin.get("resumed", []) if isinstance(origin, dict) and origin.keys() >= {*ORIGIN} else None
    if not isinstance(resumed, list) or not all(isinstance(each, dict) for each in resumed):
        remedy = f"{COPY}, or delete it: it is then unknown where the run was made."
        raise ValueError(_other(path, "where a run was made", origin, remedy))
    return origin


def stored_packings(folder: Path) -> list[dict[str, Any]]:
    """Each time the run was carried elsewhere with a loss; empty for one that continued exactly."""
    path = folder / "packed.json"
    notes = read_json(path) if path.exists() else []
    if not isinstance(notes, list) or not all(isinstance(note, dict) for note in notes):
        raise ValueError(_other(path, "a list of what was lost by packing", notes, f"{COPY}."))
    return notes


def stored_metrics(folder: Path) -> list[dict[str, Any]]:
    """A line per epoch, each whole; none before the first has ended."""
    path = folder / "metrics.jsonl"
    lines = list(read_jsonl(path)) if path.exists() else []
    for number, line in enumerate(lines, start=1):
        if lost := lost_of_line(line):
            raise ValueError(
                f"`{path}` must give `{lost[0]}` as a number in every line, but line {number} does not. "
                f"{remedy_of_line(path)}"
            )
    return lines


def stored_result(folder: Path) -> dict[str, Any] | None:
    """What came out; None before the run has ended."""
    path = folder / "result.json"
    if not path.exists():
        return None
    result = read_json(path)
    if lost := lost_of_result(result):
        raise ValueError(
            f"`{path}` must give `{lost[0]}` as a number, but does not. Restore the file from a copy, "
            "or delete it and run again."
        )
    return result


def _other(path: Path, what: str, got: Any, remedy: str) -> str:
    return f"`{path}` must hold {what}, but it holds {str(got)[:40] or 'nothing'}. {remedy}"
