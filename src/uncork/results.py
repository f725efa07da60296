"""Run folders: files that survive a kill, and a record of where a result came from.

Every experiment writes a folder of JSON files through these functions, and every report reads
them back. A file is either the old one or the new one, never half of each.
"""

import json
import math
import os
import platform
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO


def write_atomic(path: str | os.PathLike[str], data: bytes) -> None:
    """Replace the file `path` by `data`; whatever happens, a reader sees the old or the new one."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Beside the target, since a rename is atomic only within one file system; opened by hand, since
    # `tempfile` would leave a result that only its owner can read.
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:TAG]}.tmp")
    try:
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):  # of a full disk it names no file, of a rename the temporary one
            raise OSError(error.errno, error.strerror or str(error), str(path)) from error
        raise
    _sync_folder(path.parent)


TAG = 8


def remove_leftovers(folder: Path, names: Iterable[str]) -> None:
    """What saves of these files left in `folder` that were killed; nobody may be writing them."""
    for name in names:
        for leftover in folder.glob(f".{name}.{TAG * '[0-9a-f]'}.tmp"):
            leftover.unlink()


def _sync_folder(folder: Path) -> None:
    if os.name != "posix":  # a folder cannot be opened for fsync elsewhere
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# RecursionError: of brackets nested by the thousand.
UNREADABLE = (json.JSONDecodeError, UnicodeDecodeError, RecursionError)


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Write `value` as indented JSON, atomically."""
    write_atomic(path, (json.dumps(value, indent=2, sort_keys=True) + "\n").encode())


def read_json(path: str | os.PathLike[str]) -> Any:
    """Read one JSON file; a damaged one is named in the error."""
    try:
        return json.loads(Path(path).read_bytes())
    except UNREADABLE as error:
        raise ValueError(
            f"`{path}` must be a JSON file, but it cannot be read ({error}). {_remedy(Path(path))}"
        ) from error


def _remedy(path: Path) -> str:
    # Not to be deleted: the folder could then be continued under another configuration.
    if path.name == "config.json":
        return "Put it back from a copy, or choose a new folder (--out)."
    return "Delete it and run again, or restore it from a copy."


def append_jsonl(path: str | os.PathLike[str], record: dict[str, Any]) -> None:
    """Add one line to a metrics file and make it durable."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab+") as file:
        _mend_last_line(file)
        file.write(json.dumps(record, sort_keys=True).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def _mend_last_line(file: BinaryIO) -> None:
    """End the last line if it is a whole record, drop it if a kill tore it, as the reader does."""
    if file.seek(0, os.SEEK_END) == 0:
        return
    file.seek(-1, os.SEEK_END)
    if file.read(1) == b"\n":
        return
    file.seek(0)
    content = file.read()
    start = content.rfind(b"\n") + 1
    try:
        json.loads(content[start:])
    except ValueError:
        file.truncate(start)
    else:
        file.write(b"\n")


def read_jsonl(path: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    """Yield the records of a metrics file; a last line torn by a kill is left out."""
    lines = Path(path).read_bytes().split(b"\n")
    for number, line in enumerate(lines, start=1):
        if not line:
            continue
        try:
            yield json.loads(line)
        except UNREADABLE as error:
            if number == len(lines):
                return
            raise ValueError(
                f"`{path}` must hold one JSON record a line, but line {number} cannot be read "
                f"({error}). {remedy_of_line(Path(path))}"
            ) from error


def remedy_of_line(path: Path) -> str:
    """What can be done about a line that is damaged or lacks something."""
    if path.name == "metrics.jsonl":
        return (
            "Restore the file from a copy. Without one, delete that line: reports then lack its epoch, and a "
            "run that has not ended goes on only from a state saved before that epoch."
        )
    return "Delete that line, or restore the file from a copy."


RUN_KIND = "language_model_run"
# Beside what is unpacked until all of it is: the hash of the packed file.
UNPACKING = "unpacking.json"
# Numbers that a line of metrics.jsonl has, beside `averaging`, and those that result.json has.
LINE_NAMES = ("epoch", "step", "valid_nll", "valid_perplexity", "train_seconds", "seconds")
RESULT_NAMES = ("parameters", "steps", "epochs", "valid_perplexity", "test_perplexity")
# What is known of where a run was made; None where its provenance.json was lost.
ORIGIN = ("uncork", "commit", "torch", "python", "hardware", "started")


def find_runs(folder: str | os.PathLike[str]) -> list[Path]:
    """The run folders of language models at or under `folder`, finished or not."""
    places = [path.parent for path in Path(folder).rglob("config.json")]
    for path in Path(folder).rglob(UNPACKING):
        if path.parent not in places:
            raise ValueError(without_config(path.parent, UNPACKING, "move the folder elsewhere"))
    for path in Path(folder).rglob("metrics.jsonl"):
        if path.parent not in places and (path.parent / "words.json").exists():
            raise ValueError(without_config(path.parent, "metrics.jsonl", "move the folder elsewhere"))
    return sorted(filter(_is_run, places))


def without_config(folder: Path, trace: str, instead: str) -> str:
    """The error message for what is left of a run, or not all there yet."""
    remedy = "Put config.json back"
    if (folder / UNPACKING).exists():
        remedy = "Its unpacking goes on or was interrupted: wait, unpack the same file there again"
    return (
        f"`{folder}` must have the config.json of its run, but it has {trace} without it. {remedy}, or "
        f"{instead}."
    )


def check_target(name: str, path: str | os.PathLike[str], what: str, is_one: Callable[[Path], bool]) -> None:
    """Refuse to write `what` where it would replace anything else; `is_one` tells whether a file is one.

    `name` is the argument. Of a run no file may be replaced, whatever it is.
    """
    path = Path(path)
    check_outside(name, path)
    if path.is_dir():
        raise ValueError(f"`{name}` must be a file, but `{path}` is a folder. Give the name of a file in it.")
    if path.exists() and not path.is_file():  # a rename would put a file in the place of a device
        raise ValueError(f"`{name}` must be a file, but `{path}` is a device or the like. Write to a file.")
    if path.exists() and not is_one(path):
        raise ValueError(f"`{name}` must be a new file or {what}; `{path}` is neither. Write to another.")


def check_outside(name: str, path: Path) -> None:
    """Refuse a file or folder within a run, or a run itself."""
    place = next((place for place in (path.resolve(), *path.resolve().parents) if _is_run(place)), None)
    if place is not None:
        raise ValueError(
            f"`{name}` must lie outside of runs, whose files could be replaced; got `{path}`. Write beside "
            f"the folder of the run, e.g. into `{place.parent}`."
        )


def lost_of_line(line: Any) -> list[str]:
    """What a line of metrics.jsonl should have, and has not or not as what it should be."""
    lost = _not_numbers(line, LINE_NAMES)
    whole = isinstance(line, dict) and isinstance(line.get("averaging"), bool)
    return lost if whole else [*lost, "averaging"]


def lost_of_result(result: Any) -> list[str]:
    """What result.json should have as a number and has not."""
    return _not_numbers(result, RESULT_NAMES)


def _not_numbers(record: Any, names: tuple[str, ...]) -> list[str]:
    values = record if isinstance(record, dict) else {}
    return [name for name in names if not is_number(values.get(name))]


def is_number(value: Any) -> bool:
    """JSON as Python reads it has infinities, NaN and whole numbers of any length: none of them counts.

    Nor do true and false, which Python takes for numbers.
    """
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def perplexity(nll: float) -> float:
    """exp(nll), or the most a number can be: a run that diverged must not end what shows it."""
    return math.exp(min(nll, 700.0))


# A guess among a million words, more than any text here has: what lies beyond has diverged.
DIVERGED = 1e6


def perplexity_text(value: float, pattern: str = ".2f") -> str:
    """A perplexity, or with a sign the difference of two, for people; of one that diverged no digits."""
    if not abs(value) > DIVERGED:
        return format(value, pattern)
    if not pattern.startswith("+"):
        return "over 1e6"
    return "over +1e6" if value > 0.0 else "under -1e6"


def spread_text(mean: float, deviation: float | None) -> str:
    """The mean of perplexities, and the deviation where it is known and tells anything."""
    text = perplexity_text(mean)
    return text if deviation is None or mean > DIVERGED else f"{text} ± {deviation:.2f}"


def _is_run(place: Path) -> bool:
    """Told by files that other experiments do not write; each may have been lost or not been copied."""
    if not (place / "config.json").exists():
        return False
    if any((place / name).exists() for name in ("provenance.json", "words.json", "metrics.jsonl", "state")):
        return True
    result = read_json(place / "result.json") if (place / "result.json").exists() else None
    return isinstance(result, dict) and result.get("kind") == "language_model"


def run_record(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """A run folder as one record without weights and words; `result` is None before the run has ended.

    A lost `provenance.json` is one in which nothing is known.
    """
    folder = Path(folder)
    metrics, result = folder / "metrics.jsonl", folder / "result.json"
    origin = folder / "provenance.json"
    config = read_json(folder / "config.json")
    # Where one machine keeps its corpora is no part of the run.
    config["data"] = {name: value for name, value in config["data"].items() if name != "root"}
    return {
        "kind": RUN_KIND,
        "config": config,
        "metrics": list(read_jsonl(metrics)) if metrics.exists() else [],
        "provenance": read_json(origin) if origin.exists() else dict.fromkeys(ORIGIN),
        # A file that holds null is no run that goes on.
        "result": (read_json(result) or {}) if result.exists() else None,
    }


def provenance(device: Any = "auto") -> dict[str, Any]:
    """What a result file must say of its origin: versions, commit, hardware, time of start.

    `device` is the one that computes; "auto" is a GPU where there is one.
    """
    import torch

    from uncork import __version__

    return {
        "uncork": __version__,
        "commit": _commit(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "hardware": hardware(device),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def hardware(device: Any = "auto") -> str:
    """The name of a GPU, or the processor's with its thread count."""
    import torch

    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{_processor()}, {torch.get_num_threads()} threads"


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _commit(file: Path = Path(__file__)) -> str | None:
    """The commit `file` belongs to, if it is tracked at all: a package may lie in somebody else's repository.

    "+changes" says that what runs is not quite what was committed.
    """
    if _git(file, "ls-files", "--error-unmatch", file.name) is None:
        return None
    return _git(file, "describe", "--always", "--abbrev=12", "--exclude=*", "--dirty=+changes")


def _git(file: Path, *arguments: str) -> str | None:
    try:
        answer = subprocess.run(
            ["git", *arguments], cwd=file.parent, capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() if answer.returncode == 0 and answer.stdout.strip() else None
