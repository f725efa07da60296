"""Which shapes are measured, with whom, by group."""

from dataclasses import dataclass, replace

from benchmarks import contenders as who
from benchmarks.rows import Block


SPREADS = (0.3, 3.5)
CALLS, GRAPH, GRAPHED = "calls", "CUDA graph", "graphed calls"
MODES = {CALLS: "calls", GRAPH: "graph", GRAPHED: "graphed"}  # and their names in narrow tables
COMPONENTS = 15  # of mixtures
KNOTS = 100_000  # of PLIF, where they are not what varies


@dataclass(frozen=True)
class Section:
    """One shape and dtype: its contenders are made once and measured at every spread and in every mode."""

    block: Block  # of the first spread and mode
    contenders: tuple[str, ...]
    spreads: tuple[float, ...] = SPREADS
    modes: tuple[str, ...] = (CALLS,)

    def blocks(self) -> list[Block]:
        return [replace(self.block, spread=s, mode=m) for m in self.modes for s in self.spreads]


def _block(
    group: str,
    sizes: tuple[int, int, int],
    dtype: str,
    knots: int = KNOTS,
    components: int = 0,
    axis: str = "",
) -> Block:
    return Block(group, axis, *sizes, knots, components, dtype, SPREADS[0], CALLS)


FLOOR = (who.COPY, who.PRODUCTS)
FUSED = (who.EAGER, who.COMPILED, who.LIGER, who.CCE)
PLAIN = (*FUSED, who.CCE_EXACT, who.SOFTMAX, who.PLIF_)
MIXTURES = (who.PRODUCTS_MOS, who.EAGER_MOS, who.MOS, who.MOS_PLIF)
LARGE, WIDE, PENN, WIKITEXT2 = (
    (8192, 4096, 128_256), (8192, 2048, 256_000), (1400, 400, 10_000), (2800, 400, 33_278),
)  # fmt: skip
SCALING = (8192, 1024, 32_768)


def _large() -> list[Section]:
    extra = (who.SIGSOFTMAX, who.SOFTCAP, who.SCALE)
    return [Section(_block("large", LARGE, "bf16"), (*FLOOR, who.PRODUCTS_PLIF, *PLAIN, *extra))]


def _wide() -> list[Section]:
    return [Section(_block("wide", WIDE, "bf16"), (*FLOOR, who.PRODUCTS_PLIF, *PLAIN))]


def _penn() -> list[Section]:
    all_of_them = (*FLOOR, *PLAIN, who.NAIVE, who.NAIVE_COMPILED, *MIXTURES)
    return [
        Section(_block("penn", PENN, dtype, components=COMPONENTS), all_of_them, modes=tuple(MODES))
        for dtype in ("tf32", "bf16")
    ]


def _wikitext2() -> list[Section]:
    block = _block("wikitext2", WIKITEXT2, "bf16", components=COMPONENTS)
    return [Section(block, FLOOR + PLAIN + MIXTURES, modes=(CALLS, GRAPH))]


def _scaling() -> list[Section]:
    """Time and memory against N, V and k, the others fixed."""
    tokens, width, words = SCALING
    point = lambda axis, sizes, knots=KNOTS: _block("scaling", sizes, "bf16", knots, axis=axis)
    ours = (who.SOFTMAX, who.PLIF_)
    along_n = [point("N", (n, width, words)) for n in (512, 2048, 8192, 32_768)]
    along_v = [point("V", (tokens, width, v)) for v in (4096, 16_384, 65_536, 262_144)]
    along_k = [point("k", SCALING, k) for k in (100, 1000, 10_000, 100_000, 1_000_000)]
    sections = [Section(block, FUSED + ours, spreads=SPREADS[1:]) for block in along_n + along_v]
    # The short ones first: where time is up, a few long ones are missing and not a whole axis. Replays too,
    # since knots cost less than the host makes calls of a few milliseconds vary by.
    return [Section(block, ours, modes=(GRAPH, CALLS)) for block in along_k] + sections


def _deterministic() -> list[Section]:
    blocks = [_block("deterministic", *s) for s in ((LARGE, "bf16"), (PENN, "tf32"), (PENN, "bf16"))]
    return [Section(block, (who.PLIF_, who.DETERMINISTIC, who.UNFILLED)) for block in blocks]


GROUPS = {
    "large": _large,
    "wide": _wide,
    "penn": _penn,
    "wikitext2": _wikitext2,
    "scaling": _scaling,
    "deterministic": _deterministic,
}


def sections(group: str, tiny: bool) -> list[Section]:
    """What a group measures; `tiny` shrinks every size so far that any machine can do it."""
    found = GROUPS[group]()
    return [replace(section, block=_shrunk(section.block)) for section in found] if tiny else found


def _shrunk(block: Block) -> Block:
    return replace(
        block,
        tokens=max(4, block.tokens // 128),
        width=8,
        words=max(16, block.words // 256),
        knots=max(4, block.knots // 25),
        components=min(block.components, 3),
    )
