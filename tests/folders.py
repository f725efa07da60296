"""Folders as tests of what is replaced need them."""

from pathlib import Path

from uncork.results import write_json


def like_a_run(folder: Path) -> Path:
    """With the files by which a run of a language model is told."""
    write_json(folder / "config.json", {"name": "mine"})
    write_json(folder / "words.json", ["a", "b"])
    return folder


def files(folder: Path) -> dict[Path, bytes]:
    """Every file at or under it, and what it holds."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
