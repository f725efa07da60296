"""One process at a time works in a run folder; the kernel releases the lock when that process dies."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from uncork.results import UNPACKING, remove_leftovers


try:
    import fcntl
except ImportError:  # not on Windows, where a run folder is left unguarded
    fcntl = None


# A trainer that was just told to stop may still be saving its state.
PATIENCE_SECONDS = 10.0
# What its holder writes.
WRITTEN = (
    "config.json", "words.json", "provenance.json", "metrics.jsonl", "packed.json", "result.json",
    "model.safetensors", UNPACKING,
)  # fmt: skip


@contextmanager
def folder_lock(folder: str | Path, enabled: bool = True) -> Iterator[None]:
    """Hold `folder` as its only trainer; another holder that does not end soon is an error.

    What saves that were killed left behind is removed: it may be as large as the model.
    """
    if not enabled or fcntl is None:
        yield
        return
    path = Path(folder) / "state" / "lock"
    with _empty_again(Path(folder)), _opened(path) as file:
        patience_ends = time.monotonic() + PATIENCE_SECONDS
        while not _take(file):
            if time.monotonic() > patience_ends:
                raise ValueError(
                    f"`{folder}` must be used by one process at a time, but another one is at work in it. "
                    "Stop that one or wait until it ends, or give another folder."
                )
            time.sleep(0.1)
        # Not those of evaluations, which are written without the lock.
        remove_leftovers(Path(folder), WRITTEN)
        yield  # closing the file releases the lock


def _opened(path: Path) -> IO[str]:
    path.parent.mkdir(parents=True, exist_ok=True)
    return open(path, "a")


@contextmanager
def _empty_again(folder: Path) -> Iterator[None]:
    """A folder that is new, and gets nothing but its lock before something is refused, does not stay."""
    new = not folder.exists()
    try:
        yield
    except BaseException:
        if new and [path for path in folder.rglob("*") if path.is_file()] == [folder / "state" / "lock"]:
            (folder / "state" / "lock").unlink()
            (folder / "state").rmdir()
            folder.rmdir()
        raise


def _take(file: IO[str]) -> bool:
    assert fcntl is not None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
