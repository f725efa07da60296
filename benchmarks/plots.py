"""Figures of the scaling group, from the CSV alone: on any machine with matplotlib."""

import io
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import contenders as who, page
from benchmarks.groups import GRAPH
from benchmarks.page import coordinates
from benchmarks.rows import Row, read
from uncork.results import write_atomic


if TYPE_CHECKING:  # matplotlib is imported when a figure is drawn
    from matplotlib.axes import Axes


# Okabe and Ito's palette: told apart by readers who do not see all colours; markers differ as well.
STYLES = {
    who.EAGER: ("#000000", "o"),
    who.COMPILED: ("#E69F00", "s"),
    who.LIGER: ("#009E73", "^"),
    who.CCE: ("#CC79A7", "v"),
    who.SOFTMAX: ("#0072B2", "P"),
    who.PLIF_: ("#D55E00", "D"),
}
AXES = {"N": "tokens N", "V": "words V", "k": "knots k"}
PANELS = (("time of forward + backward (ms)", "ms"), ("peak extra memory (MiB)", "beyond_mib"))
DPI = 110


def run(path: Path) -> int:
    """One PNG per axis beside the CSV, and the page again, with them."""
    rows = read(path)
    if not rows:
        print(f"no figures: {path} has no rows")
        return 1
    figures = []
    for axis in AXES:
        own = [row for row in rows if row.block.axis == axis and row.ms is not None]
        if len({coordinates(row.block)[axis] for row in own}) > 1:  # one point is no curve
            name = f"{path.stem}_{axis}.png"
            write_atomic(path.with_name(name), _picture(axis, own))
            figures.append((f"Time and peak extra memory against {AXES[axis]}", name))
            print("written:", path.with_name(name))
    write_atomic(path.with_suffix(".md"), page.text(rows, tuple(figures)).encode())
    print("written:", path.with_suffix(".md"))
    return 0


def _picture(axis: str, rows: list[Row]) -> bytes:
    # The object interface: nothing is shown, and no backend is chosen for the process.
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, NullFormatter

    figure = Figure(figsize=(9.2, 3.9), layout="constrained")
    panels = figure.subplots(1, 2)
    for panel, (label, field) in zip(panels, PANELS, strict=True):
        _curves(panel, axis, rows, field)
        panel.set(xscale="log", yscale="log", xlabel=AXES[axis], ylabel=label)
        _at_least_a_decade(panel)
        panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
        panel.yaxis.set_minor_formatter(NullFormatter())
        panel.grid(True, which="major", color="#dddddd", linewidth=0.6)
        panel.spines[["top", "right"]].set_visible(False)
    figure.suptitle(_title(axis, rows), fontsize=10)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=6, frameon=False, fontsize=9)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI)
    return buffer.getvalue()


def _curves(panel: "Axes", axis: str, rows: list[Row], field: str) -> None:
    spreads = sorted({row.block.spread for row in rows})
    for name, (colour, marker) in STYLES.items():
        for spread, line in zip(spreads, ("--", "-") if len(spreads) == 2 else ("-",), strict=False):
            own = [
                row
                for row in rows
                if (row.contender, row.block.spread) == (name, spread) and getattr(row, field) is not None
            ]
            points = sorted((coordinates(row.block)[axis], getattr(row, field)) for row in best_known(own))
            # An allocator that held nothing has no place on a logarithmic axis.
            points = [(x, y) for x, y in points if y > 0]
            label = name if len(spreads) == 1 else f"{name}, spread {spread:g}"
            if points:
                panel.plot(*zip(*points, strict=True), color=colour, marker=marker, linestyle=line,
                           label=label, markersize=5, linewidth=1.5)  # fmt: skip


def best_known(rows: list[Row]) -> list[Row]:
    """Those of replays, which the host has no part in, where there are any; their memory is that of calls."""
    return [row for row in rows if row.block.mode == GRAPH] or rows


def _at_least_a_decade(panel: "Axes") -> None:
    """A difference of a few per cent shall look like one."""
    low, high = panel.get_ylim()
    if high / low < 10.0:
        middle = (low * high) ** 0.5
        panel.set_ylim(middle / 10.0, middle * 10.0)


def _title(axis: str, rows: list[Row]) -> str:
    block = rows[0].block
    fixed = [f"{k} = {v:,}" for k, v in coordinates(block).items() if k != axis]
    spreads = sorted({row.block.spread for row in rows})
    spread = [f"logits of standard deviation {spreads[0]:g}"] if len(spreads) == 1 else []
    replays = ["times of CUDA graphs"] if any(row.block.mode == GRAPH for row in rows) else []
    return ", ".join([dict(rows[0].origin).get("hardware", ""), block.dtype, *fixed, *spread, *replays])
