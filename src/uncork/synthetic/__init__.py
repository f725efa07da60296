"""Section 5.1 of Ganea et al. (2019): how well each head represents many unrelated distributions."""

from uncork.synthetic.bundle import bundle, unbundle
from uncork.synthetic.cells import run_cell
from uncork.synthetic.config import HEADS, Cell, Settings
from uncork.synthetic.grid import Grid, Outcome, full_grid, run_grid
from uncork.synthetic.tasks import Task


__all__ = [
    "HEADS",
    "Cell",
    "Grid",
    "Outcome",
    "Settings",
    "Task",
    "bundle",
    "full_grid",
    "run_cell",
    "run_grid",
    "unbundle",
]
