"""`uncork demo`: the whole story in minutes: theory checks, a small grid, learned functions, a report."""

from pathlib import Path

from uncork.cli.synthetic import print_summary, progress_bar
from uncork.cli.theory import table, write_theory
from uncork.report import write_report
from uncork.results import check_outside
from uncork.synthetic import Grid, Settings, run_grid
from uncork.theory.demonstrations import demonstrations


def demo(
    out: Path = Path("demo"),
    vocabulary: int = 100,
    widths: tuple[int, ...] = (2, 4, 8),
    contexts: int = 600,
    seeds: tuple[int, ...] = (0, 1),
    workers: int = 2,
    tolerance: float = 1e-3,
    time_limit: float = 200.0,
) -> int:
    """Check the theory, fit every head to small synthetic problems, and write a report; two to three minutes.

    Args:
        out: Folder of results and report; a second run goes on where the first was.
        vocabulary: Number of words M.
        widths: Widths D of the embeddings.
        contexts: Number of distributions N.
        seeds: Seeds of distributions and starting points.
        workers: Processes side by side.
        tolerance: A fall of the KL per pass below this share is a plateau.
        time_limit: Seconds for the grid; on a slow machine cells of later seeds are left for the next run.
    """
    from rich.console import Console

    check_outside("out", out)
    grid = Grid(vocabularies=(vocabulary,), widths=widths, contexts=contexts, seeds=seeds)
    list(grid.cells())  # what is wrong with it shows now, not after the theory
    console = Console()
    console.rule("1. The theory, checked")
    rows = list(demonstrations())
    console.print(table(rows))
    write_theory(out / "theory.json", rows, seed=0)
    console.rule("2. Every head on distributions that a narrow softmax cannot represent")
    with progress_bar(console) as bar:
        outcome = run_grid(
            grid,
            out / "synthetic",
            Settings(tolerance=tolerance),
            workers=workers,
            time_limit=time_limit,
            report=bar,
        )
    print_summary(console, outcome.records)
    if outcome.left:
        console.print(f"{outcome.left} cells were left out for time: run this again to go on.")
    console.rule("3. The report")
    page = write_report([out], out / "report.html")[0]
    console.print("Figures, tables, learned functions and their reading:")
    console.print(str(page.resolve()), soft_wrap=True)
    return 0 if all(row.as_expected for row in rows) else 1
