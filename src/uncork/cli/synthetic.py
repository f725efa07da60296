"""`uncork synthetic`: the paper's synthetic experiment as a grid that can be killed and continued."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from uncork.report.reading import convergence_reading, verdict
from uncork.report.summary import LABELS, METRICS, comparisons, panels
from uncork.synthetic.bundle import bundle as write_bundle, check_bundle, unbundle
from uncork.synthetic.config import Settings
from uncork.synthetic.grid import Grid, Report, full_grid, run_grid


def synthetic(
    out: Path = Path("runs/synthetic"),
    full: bool = False,
    vocabularies: tuple[int, ...] = (),
    widths: tuple[int, ...] = (),
    concentrations: tuple[float, ...] = (),
    heads: tuple[str, ...] = (),
    seeds: tuple[int, ...] = (),
    contexts: int | None = None,
    device: str = "cpu",
    workers: int = 2,
    time_limit: float | None = None,
    tolerance: float | None = None,
    bundle: Path | None = None,
    resume: Path | None = None,
) -> None:
    """Fit every head to distributions drawn from Dir(alpha), for a grid of sizes; a few minutes on 2 cores.

    Args:
        out: Folder of the results; cells finished there are not run again.
        full: Start from the paper's grid: N = 100,000 and M up to 10,000. For a GPU.
        vocabularies: Vocabulary sizes M.
        widths: Widths D.
        concentrations: Dirichlet concentrations alpha.
        heads: Some of softmax, temperature, sigsoftmax, mos, monotone, plif.
        seeds: Seeds of distributions and starting points.
        contexts: Number of contexts N.
        device: Where to compute: cpu or cuda.
        workers: Processes side by side.
        time_limit: Start no cell that would end later than this many seconds from now.
        tolerance: A fall of the KL per pass below this share is a plateau.
        bundle: Also write all cells to this .jsonl file.
        resume: A bundle of an earlier run to go on from, if it exists.
    """
    from rich.console import Console

    chosen = {
        "vocabularies": vocabularies,
        "widths": widths,
        "concentrations": concentrations,
        "heads": heads,
        "seeds": seeds,
        "contexts": contexts,
    }
    given = {name: value for name, value in chosen.items() if value not in ((), None)}
    grid = replace(full_grid() if full else Grid(), **given)
    settings = Settings() if tolerance is None else Settings(tolerance=tolerance)
    console = Console()
    if resume and resume.exists():
        console.print(f"resuming from {unbundle(resume, out, settings)} cells of {resume}")
    if bundle:
        check_bundle(out, bundle)
    with progress_bar(console) as bar:
        outcome = run_grid(
            grid, out, settings, device=device, workers=workers, time_limit=time_limit, report=bar
        )
    print_summary(console, outcome.records)
    console.print(f"{outcome.found} cells found, {outcome.made} made, {outcome.left} left; results in {out}")
    if bundle:
        console.print(f"{write_bundle(out, bundle)} cells in {bundle}")


@contextmanager
def progress_bar(console: Any) -> Iterator[Report]:
    """A bar over cells, with what is going on beside it."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(30), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("starting", total=None)
        yield lambda done, total, text: progress.update(task, completed=done, total=total, description=text)


def print_summary(console: Any, records: list[dict[str, Any]]) -> None:
    """KL and mode matching for each setting, then the claim in words."""
    from rich.table import Table

    grouped = panels(records)
    for panel in grouped:
        setting = panel.setting
        table = Table(
            title=f"M = {setting.vocabulary:,}, alpha = {setting.concentration:g}: KL / modes matched"
        )
        table.add_column("head")
        for width in panel.widths:
            table.add_column(f"D = {width}", justify="right")
        for head in panel.heads:
            table.add_row(LABELS[head], *(_entry(panel, head, width) for width in panel.widths))
        console.print(table)
    for line in [*verdict(comparisons(grouped)), convergence_reading(records)]:
        console.print(line)


def _entry(panel: Any, head: str, width: int) -> str:
    texts = []
    for metric, pattern in zip(METRICS, ("{:.4f}", "{:.1f} %"), strict=True):
        found = panel.spread(head, width, metric)
        text = pattern.format(found.mean) if found else "-"
        texts.append(f"[bold]{text}[/bold]" if panel.best(width, metric) == head else text)
    return " / ".join(texts)
