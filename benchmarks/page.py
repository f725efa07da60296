"""Rows of the GPU benchmark as a Markdown page, from the CSV alone."""

from collections.abc import Callable

from benchmarks import contenders as who
from benchmarks.groups import CALLS, GRAPH, GRAPHED
from benchmarks.rows import Block, Row, by_block
from benchmarks.table import markdown
from benchmarks.targets import Verdict, verdicts


TITLE = "# Losses on a GPU, forward + backward"
NOTES = f"""## What the columns mean

- **ms**: forward and backward of the mean loss, with gradients of input (or latents and log-priors), weight
  and the function's parameters. Median and quartiles of samples taken in turn with all other rows of the same
  table, in random order, by CUDA events. Each is taken right after an untimed call of its own, as steps of a
  training loop follow each other; where **sampled** is not recorded, the device was idle in between, and what
  the host does before its first launch counts. A sample of a short step is several calls, caches warm.
- **{CALLS}** are ordinary calls from Python; **{GRAPH}** is a replay of the same step; **{GRAPHED}** are
  ordinary calls of a loss that went through `torch.cuda.make_graphed_callables`, with hidden states and
  targets copied in. Small shapes are bound by launches, and a training loop may run them in a graph. A
  contender that waits for the device cannot be one.
- **peak MiB**: the most that was allocated during a step, less what was before it. **extra**: the same less
  the gradients of input, weight, latents and log-priors, which are results; those of a function's parameters
  count as extra. Memory is that of calls: a graph keeps its own.
- **floor**: the three matrix products alone at full size, plus reading every logit once and writing the
  gradient of every logit once, in the dtype of the operands, at the bandwidth of a copy of 1 GiB. Products
  and copy are rows of the same table.
- Inputs and weights are normal, scaled so that logits have the standard deviation **spread**; targets follow
  Zipf's law; seeds are fixed. No bias. PLIF has a bound of {who.BOUND:g}, and the identity plus noise of
  {who.NOISE:g} in v. Eager and compiled losses take float32 logits into cross_entropy. tf32 is float32 with
  TF32 products. CCE skips small gradients by default; CCE exact does not.
- **loss** is the value computed: contenders for one loss agree to the rounding of their dtype.
"""


# What a group's times are divided by, where it is not eager and our softmax.
BASES = {"deterministic": (who.PLIF_,)}


def text(rows: list[Row], figures: tuple[tuple[str, str], ...] = ()) -> str:
    """The page; `figures` are pairs of a text alternative and a file name."""
    blocks = by_block(rows)
    several = len({_run_of(row) for row in rows}) > 1
    parts = [TITLE, _facts(rows), "## Targets", _targets(verdicts(rows))]
    for group in dict.fromkeys(block.group for block in blocks):
        own = {block: row_of for block, row_of in blocks.items() if block.group == group}
        parts.append(f"## {group}")
        if group == "scaling":
            parts += [f"![{alt}]({name})" for alt, name in figures]
            parts += _scaling(own, several)
        else:
            for block, row_of in own.items():
                parts.append(f"### {block}")
                parts += [f"{run}." for run in dict.fromkeys(map(_run_of, row_of.values())) if several]
                parts.append(_block(row_of, BASES.get(group, (who.EAGER, who.SOFTMAX))))
    return "\n\n".join([*parts, NOTES.rstrip()]) + "\n"


def _facts(rows: list[Row]) -> str:
    """Where the rows come from; several values where they come from several runs."""
    values: dict[str, dict[str, None]] = {}
    for row in rows:
        for key, value in row.origin:
            values.setdefault(key, {})[value or "not recorded"] = None
    return "\n".join(f"- {key}: {', '.join(found)}" for key, found in values.items())


def _run_of(row: Row) -> str:
    """What tells a block's run from the others of the file."""
    facts = dict(row.origin)
    known = {name: facts.get(name) or "not recorded" for name in ("commit", "sampled")}
    return "Commit {commit}, sampled: {sampled}".format(**known)


def _targets(found: list[Verdict]) -> str:
    lines = [
        [
            v.target.group,
            str(v.target),
            "" if v.block is None else v.block.setting,
            "" if v.found is None else _amount(v),
            v.word,
        ]
        for v in found
    ]
    return f"{tally(found)}\n\n{markdown(['shape', 'target', 'setting', 'found', 'verdict'], lines)}"


def tally(found: list[Verdict]) -> str:
    """How many targets are met, in a sentence."""
    met = sum(bool(verdict.met) for verdict in found)
    missed = sum(verdict.met is False for verdict in found)
    return f"{met} met, {missed} missed, {len(found) - met - missed} not measured."


def _amount(verdict: Verdict) -> str:
    return f"{verdict.found:.3f}x" if verdict.target.what == "time" else f"{verdict.found:.1f} MiB"


def floor_ms(row: Row, row_of: dict[str, Row]) -> float | None:
    """The least this loss could take: its products, and its logits moved once in and once out."""
    products = row_of.get(who.PRODUCTS_MOS if "MoS" in row.contender else who.PRODUCTS)
    copy = row_of.get(who.COPY)
    if row.contender in who.FLOORS or not (row.moved_bytes and products and copy):
        return None
    if products.ms is None or copy.ms is None or not copy.moved_bytes:
        return None
    return products.ms + copy.ms * row.moved_bytes / copy.moved_bytes


def _block(row_of: dict[str, Row], bases: tuple[str, ...]) -> str:
    lines = [_line(row, row_of, bases) for row in row_of.values() if row.ms is not None]
    ratios = [f"/ {base}" for base in (*bases, "floor")]
    headings = ["", "ms (quartiles)", *ratios, "peak MiB", "extra MiB", "loss"]
    absent = [f"- {row.contender}: not measured, {row.failure}" for row in row_of.values() if row.ms is None]
    parts = [_least(row_of), markdown(headings, lines), "\n".join(absent)]
    return "\n\n".join(part for part in parts if part)


def _line(row: Row, row_of: dict[str, Row], bases: tuple[str, ...]) -> list[str]:
    assert row.ms is not None
    floor = floor_ms(row, row_of)
    return [
        row.contender,
        f"{row.ms:.3f} ({row.ms_25:.3f}-{row.ms_75:.3f})",
        *("" if row.contender in who.FLOORS else _ratio(row, row_of.get(base)) for base in bases),
        "" if floor is None else f"{row.ms / floor:.2f}x",
        "" if row.peak_mib is None else f"{row.peak_mib:.0f}",
        "" if row.beyond_mib is None else f"{row.beyond_mib:.1f}",
        "" if row.loss is None else f"{row.loss:.5f}",
    ]


def _ratio(row: Row, other: Row | None) -> str:
    return f"{row.ms / other.ms:.2f}x" if row.ms and other and other.ms else ""


def _least(row_of: dict[str, Row]) -> str:
    """The floor of softmax in words."""
    copy, products, own = (row_of.get(name) for name in (who.COPY, who.PRODUCTS, who.SOFTMAX))
    if not (copy and products and own and copy.ms and products.ms and copy.moved_bytes and own.moved_bytes):
        return ""
    speed = copy.moved_bytes / copy.ms * 1e-9
    passing = copy.ms * own.moved_bytes / copy.moved_bytes
    return (
        f"Floor of a softmax: products {products.ms:.3f} ms, and {own.moved_bytes * 1e-9:.3g} GB of logits "
        f"at {speed:.3g} TB/s, {passing:.3f} ms."
    )


def _scaling(blocks: dict[Block, dict[str, Row]], several: bool) -> list[str]:
    """One table of times, and one of extra memory where that is known, per axis, spread and mode."""
    parts = []
    for axis, spread, mode in dict.fromkeys((block.axis, block.spread, block.mode) for block in blocks):
        wanted = axis, spread, mode
        own = {b: row_of for b, row_of in blocks.items() if (b.axis, b.spread, b.mode) == wanted}
        names = list(dict.fromkeys(name for row_of in own.values() for name in row_of))
        first = next(iter(own))
        fixed = ", ".join(f"{k} {v}" for k, v in coordinates(first).items() if k != axis)
        points = [f"{axis} = {coordinates(block)[axis]}" for block in own]
        parts.append(f"Against {axis}, with {fixed}, {first.dtype}, spread {spread:g}, {mode}:")
        if several:
            parts.append(_runs_of(points, own))
        for what, pick in (("ms", lambda row: row.ms), ("extra MiB", lambda row: row.beyond_mib)):
            cells = [[_cell(row_of.get(name), pick) for row_of in own.values()] for name in names]
            if what == "ms" or any(cell != "-" for line in cells for cell in line):
                lines = [[name, *line] for name, line in zip(names, cells, strict=True)]
                parts.append(markdown([what, *points], lines))
    reasons = {
        f"- {row.contender}: {row.failure}"
        for row_of in blocks.values()
        for row in row_of.values()
        if row.failure
    }
    return parts + (["\n".join(sorted(reasons))] if reasons else [])


def _runs_of(points: list[str], blocks: dict[Block, dict[str, Row]]) -> str:
    """Which points of a table are of which run."""
    found: dict[str, list[str]] = {}
    for point, row_of in zip(points, blocks.values(), strict=True):
        found.setdefault(_run_of(next(iter(row_of.values()))), []).append(point)
    return " ".join(f"{run} ({', '.join(of)})." for run, of in found.items())


def coordinates(block: Block) -> dict[str, int]:
    """The axes of the scaling plots."""
    return {"N": block.tokens, "D": block.width, "V": block.words, "k": block.knots}


def _cell(row: Row | None, pick: Callable[[Row], float | None]) -> str:
    value = None if row is None else pick(row)
    return "-" if value is None else f"{value:.3f}" if value < 10 else f"{value:.1f}"
