"""Results as CSV, for machines, and as a dated Markdown file, for people."""

import csv
import io
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from uncork.results import provenance, write_atomic


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


def dated_name(kind: str, hardware: str) -> str:
    """A file name without ending: what was measured, on what, and on which day."""
    return f"{kind}_{slug(hardware)}_{datetime.now(UTC):%Y-%m-%d}"


def slug(text: str) -> str:
    """`text` as a part of a file name."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def origin_of(commit: str | None) -> dict[str, Any]:
    """Where measurements come from; `commit` is the one measured, where there is no git to ask."""
    origin = provenance()
    return origin | {"commit": commit or origin["commit"] or "unknown"}


def facts(origin: dict[str, Any]) -> str:
    """The origin as a list."""
    return "\n".join(f"- {key}: {value}" for key, value in origin.items())
