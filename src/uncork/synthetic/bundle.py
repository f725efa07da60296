"""Many cell files as one, for moving and committing; reports read either."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from uncork.results import check_outside, check_target, read_json, read_jsonl, write_atomic
from uncork.synthetic.cells import KIND, cell_path, made_with, save
from uncork.synthetic.config import Cell, Settings


def check_bundle(folder: Path, file: Path) -> None:
    """Refuse a file that holds anything but cells, or some that `folder` lacks, which would be lost.

    To know it before a grid runs, which may take hours.
    """
    check_target("bundle", file, "a bundle of synthetic cells", _is_bundle)
    lost = _names(file) - {path.stem for path in _cell_files(folder)} if Path(file).exists() else set()
    if lost:
        raise ValueError(
            f"`bundle` must not lose cells, but `{file}` has {len(lost)} that `{folder}` lacks, such as "
            f"{min(lost)}. Go on from it with --resume, or write to another file."
        )


def _cell_files(folder: Path) -> list[Path]:
    return sorted((Path(folder) / "cells").glob("*.json"))


def _is_bundle(file: Path) -> bool:
    try:
        return sum(1 for _ in _cells(file)) > 0
    except (ValueError, OSError):
        return False


def bundle(folder: Path, file: Path) -> int:
    """Write every cell of `folder` as one line of `file`, sorted by name; returns the number of cells."""
    check_bundle(folder, file)
    records = [read_json(path) for path in _cell_files(folder)]
    if not records:
        raise ValueError(f"`folder` must have finished cells, but `{folder}` has none. Run the grid first.")
    lines = "".join(json.dumps(record, sort_keys=True) + "\n" for record in records)
    write_atomic(file, lines.encode())
    return len(records)


def unbundle(file: Path, folder: Path, settings: Settings | None = None) -> int:
    """Write the cells of a bundle back as files, so that a grid goes on from them; returns their number.

    A cell that `folder` has already stays as it is. With `settings`, all must have been made with them.
    """
    check_outside("folder", Path(folder))
    found = []
    for record in _cells(file):
        try:
            cell = Cell(**record["cell"])
        except (KeyError, TypeError) as error:
            raise ValueError(
                f"`{file}` must hold whole records of cells, but the cell of one is missing or damaged "
                f"({error}). Remove that line, or take the file from where it was made."
            ) from error
        if settings is not None and not made_with(record, settings):
            raise ValueError(
                f"`{file}` must hold cells of the settings asked for, but {cell.name} was made with others. "
                "Ask for those, or start without it."
            )
        found.append((cell, record))
    for cell, record in found:
        if not cell_path(Path(folder), cell).exists():
            save(Path(folder), cell, record)
    return len(found)


def _names(file: Path) -> set[str]:
    return {Cell(**record["cell"]).name for record in _cells(file)}


def _cells(file: Path) -> Iterator[dict[str, Any]]:
    for record in read_jsonl(file):
        kind = record.get("kind") if isinstance(record, dict) else None
        if kind != KIND:
            raise ValueError(
                f"`{file}` must hold synthetic cells; found kind {kind!r}. Give a file made with --bundle."
            )
        yield record
