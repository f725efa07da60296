"""The newest GPU benchmark as a section of the documentation, between two marks of a page."""

from pathlib import Path

from benchmarks.groups import CALLS
from benchmarks.page import tally
from benchmarks.plots import AXES
from benchmarks.rows import Block, Row, read
from benchmarks.table import markdown
from benchmarks.targets import Verdict, verdicts
from uncork.results import write_atomic


START, END = "<!-- gpu table -->", "<!-- end of gpu table -->"
HEADINGS = ["", "spread", "mode", "ms", "ratio", "target", "verdict", "extra MiB"]
FACTS = ("hardware", "torch", "CUDA", "triton", "liger-kernel", "cut-cross-entropy", "commit")


def run(results: Path, page: Path) -> int:
    """Write the section into the page; 1 if there is nothing to write."""
    path = newest(results)
    if path is None:
        print(f"nothing to write: no gpu_*.csv in {results}")
        return 1
    write_atomic(page, filled(page.read_text(encoding="utf-8"), section(path)).encode())
    print("written:", page)
    return 0


def newest(results: Path) -> Path | None:
    """The CSV of the latest day, which ends the name of such a file."""
    return max(
        results.glob("gpu_*.csv"), key=lambda path: (path.stem.rsplit("_", 1)[-1], path.stem), default=None
    )


def section(path: Path) -> str:
    """What the page says of a CSV: its origin, a table of targets for each shape, and the figures."""
    rows = read(path)
    found = verdicts(rows)
    parts = [f"`benchmarks/results/{path.name}`: {_origin(rows)}."]
    if found:
        parts.append(tally(found))
    for shape in dict.fromkeys(_shape(verdict.block) for verdict in found):
        lines = [_line(verdict) for verdict in found if _shape(verdict.block) == shape]
        parts += [f"**{shape}**", markdown(HEADINGS, lines)]
    for axis, label in AXES.items():
        picture = path.with_name(f"{path.stem}_{axis}.png")
        if picture.exists():
            parts.append(
                f"![Time and peak extra memory against {label}](../benchmarks/results/{picture.name})"
            )
    return "\n\n".join(parts)


def filled(text: str, content: str) -> str:
    """A page with what stands between the marks replaced."""
    before, rest = text.split(START)
    _, after = rest.split(END)
    return f"{before}{START}\n\n{content}\n\n{END}{after}"


def stated(text: str) -> str:
    """What stands between the marks."""
    return text.split(START)[1].split(END)[0].strip()


def _origin(rows: list[Row]) -> str:
    """Where the rows come from; several values where they come from several runs."""
    facts = [dict(row.origin) for row in rows]
    values = {key: " and ".join(dict.fromkeys(f[key] for f in facts if f.get(key))) for key in FACTS}
    return ", ".join(f"{key} {value}" for key, value in values.items() if value).removeprefix("hardware ")


def _shape(block: Block) -> str:
    return f"{block.tokens:,} tokens, width {block.width:,}, {block.words:,} words, {block.dtype}"


def _line(verdict: Verdict) -> list[str]:
    block, target, own = verdict.block, verdict.target, verdict.own
    time = target.what == "time"
    return [
        target.contender.removeprefix("uncork "),
        f"{block.spread:g}",
        "graph" if block.mode != CALLS else block.mode,
        "" if own is None or own.ms is None else f"{own.ms:.3f}",
        "" if not time or verdict.found is None else f"{verdict.found:.3f}x {verdict.rival}",
        f"at most {target.limit:.3g}{'x' if time else ' MiB'}",
        verdict.word,
        "" if own is None or own.beyond_mib is None else f"{own.beyond_mib:.1f}",
    ]
