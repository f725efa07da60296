"""Many cell files as one, for moving and committing; reports read either."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from uncork.results import read_json, read_jsonl, write_atomic
from uncork.synthetic.cells import KIND, save
from uncork.synthetic.config import Cell


def bundle(folder: Path, file: Path) -> int:
    """Write every cell of `folder` as one line of `file`, sorted by name; returns the number of cells."""
    records = [read_json(path) for path in sorted((Path(folder) / "cells").glob("*.json"))]
    lines = "".join(json.dumps(record, sort_keys=True) + "\n" for record in records)
    write_atomic(file, lines.encode())
    return len(records)


def unbundle(file: Path, folder: Path) -> int:
    """Write the cells of a bundle back as files, so that a grid goes on from them; returns their number."""
    count = 0
    for record in _cells(file):
        try:
            cell = Cell(**record["cell"])
        except (KeyError, TypeError) as error:
            raise ValueError(
                f"`{file}` must hold whole records of cells, but the cell of one is missing or damaged "
                f"({error}). Remove that line, or take the file from where it was made."
            ) from error
        save(Path(folder), cell, record)
        count += 1
    return count


def _cells(file: Path) -> Iterator[dict[str, Any]]:
    for record in read_jsonl(file):
        kind = record.get("kind") if isinstance(record, dict) else None
        if kind != KIND:
            raise ValueError(
                f"`{file}` must hold synthetic cells; found kind {kind!r}. Give a file made with --bundle."
            )
        yield record
