"""The newest GPU benchmark and counters as sections of the documentation, between marks of a page."""

import csv
from pathlib import Path

from benchmarks.counters import SHAPES
from benchmarks.groups import COMPONENTS, MODES, SPREADS
from benchmarks.page import tally
from benchmarks.plots import AXES
from benchmarks.roofline import fixed_order, roofline
from benchmarks.rows import Block, Row, read
from benchmarks.table import markdown
from benchmarks.targets import Verdict, verdicts
from uncork.results import write_atomic


BENCHMARK, COUNTERS = "gpu", "counters"  # what a file's name begins with, and the marks of its section
HEADLINE, ROOFLINE, FIXED = "headline", "roofline", "fixed order"
HEADINGS = ["", "spread", "mode", "ms", "ratio", "target", "verdict", "extra MiB"]
COUNTED = [
    "kernel", "head", "logits", "dtype", "us", "MB read", "MB written", "DRAM %", "L2 %", "L1 %", "issue %",
    "warps %",
]  # fmt: skip
NUMBERS = ("us", "read_mb", "written_mb", "dram", "l2", "l1", "issue", "warps")
LEAST_MICROSECONDS = 20.0
FACTS = ("hardware", "torch", "CUDA", "triton", "liger-kernel", "cut-cross-entropy", "commit")


def run(results: Path, page: Path, readme: Path | None = None) -> int:
    """Write the sections into the page, and one table into the README; 1 if there is nothing to write."""
    path, counted = newest(results), newest(results, COUNTERS)
    if path is None:
        print(f"nothing to write: no gpu_*.csv in {results}")
        return 1
    text = filled(page.read_text(encoding="utf-8"), section(path))
    for kind, table in ((ROOFLINE, roofline), (FIXED, fixed_order)):
        if _marks(kind)[0] in text:
            text = filled(text, table(read(path)), kind)
    if counted is not None:
        text = filled(text, counters_section(counted), COUNTERS)
    write_atomic(page, text.encode())
    print("written:", page)
    if readme is not None:
        text = filled(readme.read_text(encoding="utf-8"), headline(path), HEADLINE)
        write_atomic(readme, text.encode())
        print("written:", readme)
    return 0


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


def headline(path: Path) -> str:
    """The largest shape of a CSV at the first spread: what the README shows, a row for each contender."""
    rows = [row for row in read(path) if row.block.group == "large" and row.block.spread == SPREADS[0]]
    lines = [
        [row.contender, f"{row.ms:.1f}", f"{row.beyond_mib:,.0f}"]
        for row in rows
        if row.ms is not None and row.beyond_mib is not None
    ]
    return markdown(["", f"ms, spread {SPREADS[0]:g}", "extra MiB"], lines)


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
    """Where the rows come from; several values where they come from several runs."""
    facts = [dict(row.origin) for row in rows]
    values = {key: " and ".join(dict.fromkeys(f[key] for f in facts if f.get(key))) for key in FACTS}
    return ", ".join(f"{key} {value}" for key, value in values.items() if value).removeprefix("hardware ")


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
