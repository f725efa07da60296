"""The newest GPU benchmark and counters as sections of the documentation, between marks of its pages."""

import csv
import json
from collections.abc import Sequence
from pathlib import Path

from benchmarks import contenders as who
from benchmarks.counters import SHAPES
from benchmarks.groups import COMPONENTS, GRAPH, KNOTS, MODES, SPREADS
from benchmarks.origins import origins
from benchmarks.page import tally
from benchmarks.plots import AXES
from benchmarks.roofline import fixed_order, roofline
from benchmarks.rows import Block, Row, by_block, read
from benchmarks.table import markdown
from benchmarks.targets import Verdict, verdicts
from uncork.results import write_atomic


BENCHMARK, COUNTERS = "gpu", "counters"  # what a file's name begins with, and the marks of its section
HEADLINE, RATIOS, ORIGINS = "headline", "ratio", "origins"
ROOFLINE, FIXED = "roofline", "fixed order"
NOTES = "notes.json"  # beside the CSV: what a reader must know of the rows of a commit
HEADINGS = ["", "spread", "mode", "ms", "ratio", "target", "verdict", "extra MiB"]
COUNTED = [
    "kernel", "head", "logits", "dtype", "us", "MB read", "MB written", "DRAM %", "L2 %", "L1 %", "issue %",
    "warps %",
]  # fmt: skip
NUMBERS = ("us", "read_mb", "written_mb", "dram", "l2", "l1", "issue", "warps")
LEAST_MICROSECONDS = 20.0
FACTS = ("hardware", "torch", "CUDA", "triton", "liger-kernel", "cut-cross-entropy", "commit")


def run(results: Path, pages: Sequence[Path]) -> int:
    """Fill what the pages have marks for; 1 if there is nothing to write."""
    path, counted = newest(results), newest(results, COUNTERS)
    if path is None:
        print(f"nothing to write: no gpu_*.csv in {results}")
        return 1
    content = sections(path) | ({COUNTERS: counters_section(counted)} if counted else {})
    for page in pages:
        text = page.read_text(encoding="utf-8")
        marked = [kind for kind in content if _marks(kind)[0] in text]
        if not marked:
            print(f"no marks to write between: {page}")
            return 1
        for kind in marked:
            text = filled(text, content[kind], kind)
        write_atomic(page, text.encode())
        print("written:", page)
    return 0


def sections(path: Path) -> dict[str, str]:
    """What pages state of a CSV, by the marks it stands between."""
    rows = read(path)
    return {
        BENCHMARK: section(path),
        HEADLINE: headline(path),
        RATIOS: ratios(rows),
        ORIGINS: origins(rows, notes(path)),
        ROOFLINE: roofline(rows),
        FIXED: fixed_order(rows),
    }


def newest(results: Path, kind: str = BENCHMARK) -> Path | None:
    """The CSV of the latest day, which ends the name of such a file."""
    return max(
        results.glob(f"{kind}_*.csv"),
        key=lambda path: (path.stem.rsplit("_", 1)[-1], path.stem),
        default=None,
    )


def section(path: Path) -> str:
    """What the page says of a CSV: its origin, a table of targets for each shape, and the figures."""
    rows = read(path)
    found = verdicts(rows)
    parts = [f"`benchmarks/results/{path.name}`: {_origin(rows)}.", tally(found)]
    shapes: dict[str, list[list[str]]] = {}
    for verdict in found:
        if verdict.block is not None:
            shapes.setdefault(_shape(verdict.block), []).append(_line(verdict, verdict.block))
    for shape, lines in shapes.items():
        parts += [f"**{shape}**", markdown(HEADINGS, lines)]
    if alone := [f"- {v.target.group}, {v.target}; {v.word}." for v in found if v.block is None]:
        parts.append("\n".join(alone))
    for axis, label in AXES.items():
        picture = path.with_name(f"{path.stem}_{axis}.png")
        if picture.exists():
            parts.append(
                f"![Time and peak extra memory against {label}](../benchmarks/results/{picture.name})"
            )
    return "\n\n".join(parts)


def notes(path: Path) -> dict[str, str]:
    """By commit."""
    file = path.with_name(NOTES)
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}


def headline(path: Path) -> str:
    """The largest shape of a CSV at the first spread: what the README shows, a row for each contender."""
    rows = [row for row in read(path) if row.block.group == "large" and row.block.spread == SPREADS[0]]
    lines = [
        [row.contender, f"{row.ms:.1f}", f"{row.beyond_mib:,.0f}"]
        for row in rows
        if row.ms is not None and row.beyond_mib is not None
    ]
    return markdown(["", f"ms, spread {SPREADS[0]:g}", "extra MiB"], lines)


def ratios(rows: list[Row]) -> str:
    """What PLIF takes against our softmax at each shape, the widest first: least and most over the spreads.

    As a CUDA graph, where that was measured: what waits for the host says nothing of the GPU.
    """
    found: dict[tuple[int, str], dict[str, list[float]]] = {}
    for block, row_of in by_block(rows).items():
        plif, softmax = row_of.get(who.PLIF_), row_of.get(who.SOFTMAX)
        # The other axes have sizes of their own; numbers of knots are compared elsewhere.
        shown = not block.axis or (block.axis == "k" and block.knots == KNOTS)
        if shown and plif and softmax and plif.ms and softmax.ms:
            modes = found.setdefault((-block.width, _shape(block)), {})
            modes.setdefault(block.mode, []).append(plif.ms / softmax.ms)
    lines = []
    for (_, shape), modes in sorted(found.items(), key=lambda item: item[0][0]):
        told = modes.get(GRAPH) or next(iter(modes.values()))
        ends = dict.fromkeys(f"{ratio:.2f}" for ratio in (min(told), max(told)))
        lines.append([f"{shape}{', CUDA graph' if GRAPH in modes else ''}", " to ".join(ends)])
    return markdown(["shape", "PLIF / softmax"], lines)


def counters_section(path: Path) -> str:
    """Where the time of the kernels goes: those that take a share of it worth naming."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if float(row["us"]) >= LEAST_MICROSECONDS]
    origin = f"{rows[0]['hardware']}, torch {rows[0]['torch']}, commit {rows[0]['commit']}"
    lines = [
        [f"`{row['kernel']}`", row["contender"].removeprefix("uncork "), _rows_of(row), row["dtype"]]
        + [f"{float(row[name]):.0f}" for name in NUMBERS]
        for row in rows
    ]
    return f"`benchmarks/results/{path.name}`: {origin}.\n\n{markdown(COUNTED, lines)}"


def filled(text: str, content: str, kind: str = BENCHMARK) -> str:
    """A page with what stands between the marks replaced."""
    start, end = _marks(kind)
    before, rest = text.split(start)
    _, after = rest.split(end)
    return f"{before}{start}\n\n{content}\n\n{end}{after}"


def stated(text: str, kind: str = BENCHMARK) -> str:
    """What stands between the marks."""
    start, end = _marks(kind)
    return text.split(start)[1].split(end)[0].strip()


def _marks(kind: str) -> tuple[str, str]:
    return f"<!-- {kind} table -->", f"<!-- end of {kind} table -->"


def _rows_of(row: dict[str, str]) -> str:
    """How many rows of logits of how many words a launch has."""
    components = COMPONENTS if "MoS" in row["contender"] else 1
    return f"{int(row['tokens']) * components:,} x {SHAPES[row['shape']][2]:,}"


def _origin(rows: list[Row]) -> str:
    """Where the rows come from; several values where they come from several runs.

    Of several commits a table of their own tells, and a run without a library has no row of it.
    """
    facts = [dict(row.origin) for row in rows]
    values = {key: dict.fromkeys(f[key] for f in facts if f.get(key)) for key in FACTS}
    if len(values["commit"]) > 1:
        del values["commit"]
    told = {key: [v for v in found if v != "absent"] or list(found) for key, found in values.items()}
    return ", ".join(f"{key} {' and '.join(v)}" for key, v in told.items() if v).removeprefix("hardware ")


def _shape(block: Block) -> str:
    return f"{block.tokens:,} tokens, width {block.width:,}, {block.words:,} words, {block.dtype}"


def _line(verdict: Verdict, block: Block) -> list[str]:
    target, own = verdict.target, verdict.own
    time = target.what == "time"
    return [
        target.contender.removeprefix("uncork "),
        f"{block.spread:g}",
        MODES[block.mode],
        "" if own is None or own.ms is None else f"{own.ms:.3f}",
        "" if not time or verdict.found is None else f"{verdict.found:.3f}x {verdict.rival}",
        f"at most {target.limit:.3g}{'x' if time else ' MiB'}",
        verdict.word,
        "" if own is None or own.beyond_mib is None else f"{own.beyond_mib:.1f}",
    ]
