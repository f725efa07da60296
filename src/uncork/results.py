"""Run folders: files that survive a kill, and a record of where a result came from.

Every experiment writes a folder of JSON files through these functions, and every report reads
them back. A file is either the old one or the new one, never half of each.
"""

import json
import os
import platform
import subprocess
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO


def write_atomic(path: str | os.PathLike[str], data: bytes) -> None:
    """Replace the file `path` by `data`; whatever happens, a reader sees the old or the new one."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Beside the target, since a rename is atomic only within one file system; opened by hand, since
    # `tempfile` would leave a result that only its owner can read.
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    if os.name != "posix":  # a folder cannot be opened for fsync elsewhere
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Write `value` as indented JSON, atomically."""
    write_atomic(path, (json.dumps(value, indent=2, sort_keys=True) + "\n").encode())


def read_json(path: str | os.PathLike[str]) -> Any:
    """Read one JSON file; a damaged one is named in the error."""
    try:
        return json.loads(Path(path).read_bytes())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
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
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            if number == len(lines):
                return
            raise ValueError(
                f"`{path}` must hold one JSON record a line, but line {number} cannot be read "
                f"({error}). Delete that line, or restore the file from a copy."
            ) from error


RUN_KIND = "language_model_run"


def find_runs(folder: str | os.PathLike[str]) -> list[Path]:
    """The run folders of language models at or under `folder`, finished or not."""
    places = [path.parent for path in Path(folder).rglob("config.json")]
    return sorted(place for place in places if (place / "provenance.json").exists())


def run_record(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """A run folder as one record without weights and words; `result` is None before the run has ended."""
    folder = Path(folder)
    metrics, result = folder / "metrics.jsonl", folder / "result.json"
    config = read_json(folder / "config.json")
    # Where one machine keeps its corpora is no part of the run.
    config["data"] = {name: value for name, value in config["data"].items() if name != "root"}
    return {
        "kind": RUN_KIND,
        "config": config,
        "metrics": list(read_jsonl(metrics)) if metrics.exists() else [],
        "provenance": read_json(folder / "provenance.json"),
        "result": read_json(result) if result.exists() else None,
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
