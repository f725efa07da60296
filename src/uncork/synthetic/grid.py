"""The grid of cells: which ones, in which order, and a run that can be killed and continued at any time.

Each finished cell is one file, written atomically; a run skips the cells whose file is there. With a time
limit no cell is started that would, judged by its kind so far, end after it.
"""

import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import torch

from uncork.results import check_outside, write_json
from uncork.synthetic.cells import load_finished, run_cell, save
from uncork.synthetic.config import HEADS, Cell, Settings, at_least
from uncork.synthetic.fit import Progress
from uncork.synthetic.tasks import Task


@dataclass(frozen=True, kw_only=True)
class Grid:
    """All combinations of these, in an order in which a run cut short is still worth having."""

    vocabularies: tuple[int, ...] = (100, 300)
    """Vocabulary sizes M, in order of importance."""
    widths: tuple[int, ...] = (2, 4, 8)
    """Widths D."""
    concentrations: tuple[float, ...] = (0.1, 0.01, 1.0)
    """Dirichlet concentrations alpha, in order of importance."""
    contexts: int = 1000
    """Number of contexts N."""
    heads: tuple[str, ...] = HEADS
    """Heads compared."""
    seeds: tuple[int, ...] = (0, 1)
    """Seeds; all cells of the first seed come before any of the second."""

    def __post_init__(self) -> None:
        for name in ("vocabularies", "widths", "concentrations", "heads", "seeds"):
            values = getattr(self, name)
            if not values or len(set(values)) != len(values):
                raise ValueError(f"`{name}` must hold at least one value and none twice; got {values}.")
        list(self.cells())  # each cell checks itself

    def cells(self) -> Iterator[Cell]:
        """Seed by seed, vocabulary by vocabulary; cells on the same distributions follow each other."""
        order = product(self.seeds, self.vocabularies, self.concentrations, self.widths, self.heads)
        for seed, vocabulary, concentration, width, head in order:
            yield Cell(
                vocabulary=vocabulary,
                width=width,
                concentration=concentration,
                contexts=self.contexts,
                head=head,
                seed=seed,
            )


def full_grid() -> Grid:
    """The paper's size: N = 100,000, M up to 10,000, alpha in {0.01, 0.1, 1}, the largest vocabulary first.

    The paper prints neither its widths nor its numbers of words: those here are this project's choice.
    """
    return Grid(
        vocabularies=(10_000, 1_000, 100),
        widths=(2, 4, 8, 16, 32),
        contexts=100_000,
        seeds=(0, 1, 2),
    )


@dataclass
class Outcome:
    """Records of all finished cells, and how many were found, made and left."""

    records: list[dict[str, Any]] = field(default_factory=list)
    found: int = 0
    made: int = 0
    left: int = 0


Report = Callable[[int, int, str], None]  # cells done, cells in all, what is going on
CACHE_BYTES = {"cpu": 2**30, "cuda": 16 * 2**30}


def run_grid(
    grid: Grid,
    folder: Path,
    settings: Settings | None = None,
    *,
    device: str = "cpu",
    workers: int = 1,
    time_limit: float | None = None,
    report: Report = lambda done, total, text: None,
) -> Outcome:
    """Run every cell that has no file in `folder` yet; with `workers` > 1 in as many processes."""
    settings = settings or Settings()
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"`folder` (--out) must be a folder; `{folder}` is a file. Choose another name.")
    check_outside("folder", folder)
    at_least("workers", workers, 1)
    _check_device(device)
    if time_limit is not None and not time_limit >= 0.0:
        raise ValueError(f"`time_limit` must be at least 0 seconds, or None; got {time_limit}. Leave it out.")
    cells = list(grid.cells())
    outcome = Outcome()
    waiting = []
    for cell in cells:
        record = load_finished(folder, cell, settings)
        if record is None:
            waiting.append(cell)
        else:
            outcome.records.append(record)
    # After the loop, which raises if a cell in the folder was made with other settings.
    write_json(folder / "config.json", {"kind": "synthetic", "settings": vars(settings)})
    outcome.found = len(outcome.records)
    tell = lambda text: report(outcome.found + outcome.made, len(cells), text)
    tell("starting")
    maker, clock = _Maker(folder, settings, device), _Clock(time_limit)
    if workers == 1:
        made = _make_here(waiting, maker, clock, tell)
    else:
        made = _make_in_processes(waiting, maker, clock, workers)
    for record in made:
        outcome.records.append(record)
        outcome.made += 1
        tell(_line(record))
    outcome.left = len(cells) - outcome.found - outcome.made
    return outcome


def _check_device(device: str) -> None:
    try:
        place = torch.device(device)
    except RuntimeError:
        place = None
    if place is None or place.type not in CACHE_BYTES:
        raise ValueError(
            f"`device` must be cpu, cuda, or cuda and a number; got {device!r}. Use cuda:0 or cpu."
        )
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if place.type == "cuda" and (place.index or 0) >= count:
        raise ValueError(
            f"`device` must be available here, where torch sees {count} GPUs; got {device!r}. "
            f"Use {'a lower number or ' if count else ''}cpu."
        )


class _Clock:
    """Decides whether a cell can still end in time, by the longest cell of its size and head so far."""

    def __init__(self, limit: float | None) -> None:
        self.limit, self.began = limit, time.perf_counter()
        self.longest: dict[tuple[int, str], float] = {}

    def allows(self, cell: Cell) -> bool:
        if self.limit is None:
            return True
        expected = self.longest.get((cell.vocabulary, cell.head), 0.0)
        return time.perf_counter() - self.began + expected < self.limit

    def learn(self, record: dict[str, Any]) -> None:
        key = record["cell"]["vocabulary"], record["cell"]["head"]
        self.longest[key] = max(self.longest.get(key, 0.0), record["seconds"])


@dataclass(frozen=True)
class _Maker:
    """Fits cells and saves their records; workers get a copy of it."""

    folder: Path
    settings: Settings
    device: str

    def task(self, cell: Cell) -> Task:
        return Task(cell, self.device, CACHE_BYTES[torch.device(self.device).type])

    def make(self, cell: Cell, task: Task, tell: Progress = lambda text: None) -> dict[str, Any]:
        record = run_cell(cell, task, self.settings, tell)
        save(self.folder, cell, record)
        return record

    def make_alone(self, cell: Cell) -> dict[str, Any]:
        return self.make(cell, self.task(cell))


def _make_here(waiting: list[Cell], maker: _Maker, clock: _Clock, tell: Progress) -> Iterator[dict[str, Any]]:
    task = None
    for cell in waiting:
        if not clock.allows(cell):
            continue
        if task is None or not task.serves(cell):
            task = None  # free the old distributions before making new ones
            task = maker.task(cell)
        record = maker.make(cell, task, tell)
        clock.learn(record)
        yield record


def _make_in_processes(
    waiting: list[Cell], maker: _Maker, clock: _Clock, workers: int
) -> Iterator[dict[str, Any]]:
    # spawn: a forked process must not inherit torch's threads or a CUDA context.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_start_worker) as pool:
        queue, running = list(reversed(waiting)), set()
        while queue or running:
            while queue and len(running) < workers:
                cell = queue.pop()
                if clock.allows(cell):
                    running.add(pool.submit(maker.make_alone, cell))
            if not running:
                return
            future = next(as_completed(running))
            running.remove(future)
            clock.learn(future.result())
            yield future.result()


def _start_worker() -> None:
    torch.set_num_threads(1)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A parent that was terminated cannot tell its workers, which would wait for cells for ever."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)  # cell files are written atomically, so nothing is torn


def _line(record: dict[str, Any]) -> str:
    cell = Cell(**record["cell"])
    measured = record["metrics"]
    if measured is None:
        return f"{cell.name}: diverged"
    return (
        f"{cell.name}: KL {measured['kl']:.4f}, modes {measured['mode_matching']:.1f} %, "
        f"{record['stopped']} after {record['passes']} passes, {record['seconds']:.1f} s"
    )
