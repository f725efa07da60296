"""How far the losses are from the least they could take, and what a fixed order of sums costs, as tables."""

from dataclasses import replace

from benchmarks import contenders as who
from benchmarks.groups import GRAPH, MODES, SPREADS
from benchmarks.page import floor_ms
from benchmarks.rows import Block, Row, by_block
from benchmarks.table import markdown


OURS = (who.SOFTMAX, who.PLIF_, who.MOS, who.MOS_PLIF)
ROOFLINE = [
    "tokens x width x words", "dtype", "head", "products, ms", "logits, GB", "at TB/s", "logits, ms",
    "floor, ms", "measured, ms", "measured / floor",
]  # fmt: skip
FIXED = [
    "tokens x width x words", "dtype", "spread", "mode", "any order, ms", "fixed order, ms", "ratio",
    "extra MiB, any", "extra MiB, fixed",
]  # fmt: skip


def roofline(rows: list[Row]) -> str:
    """The three products, the bytes of the logits at the speed of a copy, and what the whole took.

    As a CUDA graph, where that was measured.
    """
    lines, blocks = [], by_block(rows)
    for block, row_of in blocks.items():
        # What waits for the host says nothing of the GPU.
        replayed = block.mode != GRAPH and replace(block, mode=GRAPH) in blocks
        if block.spread == SPREADS[-1] and not block.axis and not replayed:
            lines += [line for name in OURS if (line := _floor_line(block, name, row_of))]
    return markdown(ROOFLINE, lines)


def fixed_order(rows: list[Row]) -> str:
    """PLIF after `torch.use_deterministic_algorithms(True)` beside PLIF as it is."""
    lines, blocks = [], by_block(rows)
    # Rows of several runs come in no order of spreads.
    shapes = list(dict.fromkeys((block.sizes, block.dtype) for block in blocks))
    place = lambda block: (shapes.index((block.sizes, block.dtype)), block.spread)
    for block, row_of in sorted(blocks.items(), key=lambda item: place(item[0])):
        free, fixed = row_of.get(who.PLIF_), row_of.get(who.DETERMINISTIC)
        if free and fixed and free.ms and fixed.ms:
            memory = ["" if row.beyond_mib is None else f"{row.beyond_mib:.0f}" for row in (free, fixed)]
            ratio = f"{fixed.ms / free.ms:.2f}x"
            setting = [_sizes(block), block.dtype, f"{block.spread:g}", MODES[block.mode]]
            lines.append([*setting, _ms(free.ms), _ms(fixed.ms), ratio, *memory])
    return markdown(FIXED, lines)


def _floor_line(block: Block, name: str, row_of: dict[str, Row]) -> list[str] | None:
    row, copy = row_of.get(name), row_of.get(who.COPY)
    floor = floor_ms(row, row_of) if row else None
    if not (row and row.ms and row.moved_bytes and copy and copy.ms and copy.moved_bytes and floor):
        return None
    passing = copy.ms * row.moved_bytes / copy.moved_bytes
    return [
        _sizes(block), block.dtype, name.removeprefix("uncork "), _ms(floor - passing),
        f"{row.moved_bytes * 1e-9:.2f}", f"{copy.moved_bytes / copy.ms * 1e-9:.1f}", _ms(passing),
        _ms(floor), _ms(row.ms), f"{row.ms / floor:.2f}x",
    ]  # fmt: skip


def _sizes(block: Block) -> str:
    return " x ".join(f"{size:,}" for size in block.sizes)


def _ms(value: float) -> str:
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 1 else f"{value:.3f}"
