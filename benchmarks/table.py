"""Results as CSV, for machines, and as a dated Markdown file, for people."""

import csv
import io
import re
from pathlib import Path
from typing import Any

from uncork.results import write_atomic


def markdown(headings: list[str], rows: list[list[str]]) -> str:
    """A table, its columns padded so that the source reads as well."""
    widths = [max(len(row[i]) for row in [headings, *rows]) for i in range(len(headings))]
    line = lambda cells: "| " + " | ".join(c.ljust(w) for c, w in zip(cells, widths, strict=True)) + " |"
    rule = "|" + "|".join("-" * (w + 2) for w in widths) + "|"
    return "\n".join([line(headings), rule, *map(line, rows)])


def write(folder: Path, name: str, text: str, records: list[dict[str, Any]]) -> tuple[Path, Path]:
    """`name`.md and `name`.csv in `folder`."""
    buffer = io.StringIO()
    columns = dict.fromkeys(column for record in records for column in record)
    writer = csv.DictWriter(buffer, list(columns), restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    paths = folder / f"{name}.md", folder / f"{name}.csv"
    write_atomic(paths[0], text.encode())
    write_atomic(paths[1], buffer.getvalue().encode())
    return paths


def slug(text: str) -> str:
    """A file name's worth of `text`."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
