"""One measurement on a GPU: the schema of the CSV, read and written here."""

import csv
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from benchmarks.losses import Sizes


MIB = 2**20


@dataclass(frozen=True, order=True)
class Block:
    """Rows measured in turn with each other: what may be compared."""

    group: str
    axis: str  # of a scaling plot: N, V or k
    tokens: int
    width: int
    words: int
    knots: int
    components: int
    dtype: str
    spread: float
    mode: str

    @property
    def sizes(self) -> Sizes:
        return self.tokens, self.width, self.words

    def __str__(self) -> str:
        return f"N {self.tokens}, D {self.width}, V {self.words}, {self.setting}"

    @property
    def setting(self) -> str:
        knots = f", k {self.knots}" if self.axis == "k" else ""
        return f"{self.dtype}, spread {self.spread:g}, {self.mode}{knots}"


@dataclass(frozen=True)
class Row:
    """A contender in a block. Without samples, `failure` says why."""

    block: Block
    contender: str
    failure: str = ""
    ms: float | None = None
    ms_25: float | None = None
    ms_75: float | None = None
    samples: int = 0
    calls: int = 0
    loss: float | None = None
    peak_bytes: int | None = None
    gradient_bytes: int | None = None
    moved_bytes: int | None = None
    origin: tuple[tuple[str, str], ...] = ()

    @property
    def peak_mib(self) -> float | None:
        """Allocated at the peak, gradients included."""
        return None if self.peak_bytes is None else self.peak_bytes / MIB

    @property
    def beyond_mib(self) -> float | None:
        """Peak extra memory: beyond the gradients of input and weight, which are results."""
        if self.peak_bytes is None or self.gradient_bytes is None:
            return None
        return (self.peak_bytes - self.gradient_bytes) / MIB


_OWN = {f.name: f.type for f in fields(Row) if f.name not in ("block", "origin")}


def record(row: Row) -> dict[str, Any]:
    """A row as the CSV has it."""
    own = asdict(row.block) | {name: getattr(row, name) for name in _OWN}
    origin = dict(row.origin)
    assert not own.keys() & origin.keys(), "a fact of the run would stand in the place of a measurement"
    return own | origin


def parse(cells: dict[str, str]) -> Row:
    """The inverse of `record`."""
    block = {f.name: _value(cells.pop(f.name), f.type) for f in fields(Block)}
    own = {name: _value(cells.pop(name), kind) for name, kind in _OWN.items()}
    return Row(Block(**block), **own, origin=tuple(cells.items()))


def _value(cell: str, kind: Any) -> Any:
    if kind is str:
        return cell
    if cell == "":
        return None
    return float(cell) if kind in (float, float | None) else int(cell)


def read(path: Path) -> list[Row]:
    """The rows of a CSV file; none if it is not there."""
    if not path.exists():
        return []
    with open(path, newline="") as file:
        return [parse(cells) for cells in csv.DictReader(file)]


def merged(old: list[Row], new: list[Row], order: tuple[str, ...]) -> list[Row]:
    """`new` in place of the old rows of the same blocks, in the order of groups.

    Whole blocks: rows of two runs are not compared with each other.
    """
    fresh = {row.block for row in new}
    rows = [row for row in old if row.block not in fresh] + new
    place = {block: i for i, block in enumerate(dict.fromkeys(row.block for row in old + new))}
    group = lambda row: order.index(row.block.group) if row.block.group in order else len(order)
    return sorted(rows, key=lambda row: (group(row), place[row.block]))


def by_block(rows: list[Row]) -> dict[Block, dict[str, Row]]:
    """Rows by block and contender, in order of appearance."""
    blocks: dict[Block, dict[str, Row]] = {}
    for row in rows:
        blocks.setdefault(row.block, {})[row.contender] = row
    return blocks
