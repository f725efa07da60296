"""`uncork theory`: every statement of the paper's sections 3 and 4 put to a number."""

from pathlib import Path
from typing import TYPE_CHECKING

from uncork.results import check_target, provenance, read_json, write_json
from uncork.theory.demonstrations import Demonstration, demonstrations


if TYPE_CHECKING:  # rich is imported when a table is printed
    from rich.table import Table


def theory(seed: int = 0, json: Path | None = None) -> int:
    """Check each theorem numerically and print both sides.

    Args:
        seed: Seed of the random matrices and distributions.
        json: Also write the table to this result file, which `uncork report` reads.
    """
    from rich.console import Console

    if json:
        check_target("json", json, "a result file of this command", _is_theory)
    rows = list(demonstrations(seed))
    console = Console()
    console.print(table(rows))
    console.print(NOTES)
    if json:
        write_theory(json, rows, seed)
        console.print(f"written: {json}")
    wrong = [row.statement for row in rows if not row.as_expected]
    if wrong:
        console.print(f"[red]not as expected:[/red] {', '.join(wrong)}")
    return 1 if wrong else 0


NOTES = """\
Found wrong as printed, and implemented corrected:
  Theorem 1 sets a squared norm against a root; with the sum below 1 the printed bound is false.
  Theorem 2's first corollary holds as "never higher", not "lower": uniform P gives log V always.
  Theorem 2's minimum over h can be an infimum that no finite h reaches when P has zeros.
  Theorem 6 needs N >= 3: the square of a rank-1 2 x 2 matrix has rank 1, as Theorem 5 says.
  Theorem 7's constant 4RT/K is true and eight times the sharp one, RT/(2K)."""


def table(rows: list[Demonstration]) -> "Table":
    """The rows as a rich table."""
    from rich.table import Table

    result = Table(title="Statements of sections 3 and 4, checked", show_lines=False)
    for heading in ("statement", "computed"):
        result.add_column(heading, overflow="fold")
    result.add_column("left", justify="right", no_wrap=True)
    result.add_column("", no_wrap=True)
    result.add_column("right", justify="right", no_wrap=True)
    result.add_column("holds?", no_wrap=True)
    for row in rows:
        left, right = f"{row.left:.6g}", f"{row.right:.6g}"
        result.add_row(row.statement, row.computed, left, row.relation, right, verdict(row))
    return result


def verdict(row: Demonstration) -> str:
    """Yes, the expected no of a misprint, or a surprise."""
    if not row.as_expected:
        return f"[bold red]{'yes' if row.holds else 'no'}, unexpected[/bold red]"
    return "[yellow]no, misprint[/yellow]" if row.as_printed_false else "[green]yes[/green]"


def _is_theory(path: Path) -> bool:
    try:
        record = read_json(path)
    except ValueError:
        return False
    return isinstance(record, dict) and record.get("kind") == "theory"


def write_theory(path: Path, rows: list[Demonstration], seed: int) -> None:
    """The result file of this command."""
    records = [row.record() for row in rows]
    write_json(path, {"kind": "theory", "seed": seed, "rows": records, "provenance": provenance("cpu")})
