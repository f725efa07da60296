"""Which rows of a GPU benchmark are of which commit, as a table."""

from benchmarks.groups import MODES
from benchmarks.page import coordinates
from benchmarks.rows import Block, Row, by_block
from benchmarks.table import markdown


HEADINGS = ["rows", "commit", "note"]


def origins(rows: list[Row], notes: dict[str, str]) -> str:
    """A line for each commit, its note beside it; the one with most blocks has all that are not named."""
    by_commit: dict[str, list[Block]] = {}
    parts: dict[str, list[Block]] = {}
    for block, row_of in by_block(rows).items():
        # A run takes the place of whole blocks: see `benchmarks.rows.merged`.
        (commit,) = {dict(row.origin).get("commit", "") for row in row_of.values()}
        by_commit.setdefault(commit, []).append(block)
        parts.setdefault(_part(block), []).append(block)
    most, *others = sorted(by_commit, key=lambda commit: -len(by_commit[commit]))
    lines = [["all others" if others else "all", most, notes.get(most, "")]]
    for commit in others:
        shares = {name: [b for b in by_commit[commit] if b in whole] for name, whole in parts.items()}
        named = [_named(name, share, parts[name]) for name, share in shares.items() if share]
        lines.append(["; ".join(named), commit, notes.get(commit, "")])
    return markdown(HEADINGS, lines)


def _part(block: Block) -> str:
    """What a page shows together: a shape in a dtype, or an axis."""
    if block.axis:
        return f"scaling with {block.axis}"
    sizes = " x ".join(f"{size:,}" for size in block.sizes)
    return f"{'fixed order, ' if block.group == 'deterministic' else ''}{sizes} {block.dtype}"


def _named(name: str, share: list[Block], whole: list[Block]) -> str:
    """The name of a part, with what tells its share from the rest of it."""
    if len(share) == len(whole):
        return name
    modes = dict.fromkeys(block.mode for block in whole)
    told = [
        _told(
            MODES[mode] if len(modes) > 1 else "",
            [block for block in share if block.mode == mode],
            [block for block in whole if block.mode == mode],
        )
        for mode in modes
    ]
    return f"{name} ({'; '.join(filter(None, told))})"


def _told(mode: str, share: list[Block], whole: list[Block]) -> str:
    """A mode, with the spreads of a share and its points on an axis where the rest of the mode has others."""
    if not share:
        return ""
    words, chosen = [], whole
    for label, value in (("spread", lambda b: f"{b.spread:g}"), (share[0].axis, _point)):
        values = dict.fromkeys(map(value, share))
        if values.keys() != {value(block) for block in whole}:
            words.append(f"{label} {' and '.join(values)}")
            chosen = [block for block in chosen if value(block) in values]
    if len(chosen) != len(share):  # no product of spreads and points
        words = [str(block) for block in share]
    return " at ".join(filter(None, [mode, ", ".join(words)]))


def _point(block: Block) -> str:
    return f"{coordinates(block)[block.axis]:,}" if block.axis else ""
