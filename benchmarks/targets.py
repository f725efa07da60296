"""What this project aims at on a GPU, and whether rows meet it."""

from dataclasses import dataclass
from typing import Literal

from benchmarks import contenders as who
from benchmarks.groups import CALLS
from benchmarks.rows import Block, Row, by_block


@dataclass(frozen=True)
class Target:
    """In every block of a group: time against the fastest of some contenders, or peak extra MiB."""

    group: str
    contender: str
    what: Literal["time", "memory"]
    limit: float
    against: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.what == "memory":
            return f"{self.contender}: at most {self.limit:g} MiB beyond the gradients"
        others = {who.PEERS: "the fastest peer", FUSED_PEERS: "the faster of Liger and CCE"}
        factor = f"{self.limit:.3g}x" if self.limit >= 1 else f"1/{1 / self.limit:.3g} of"
        return f"{self.contender}: at most {factor} {others.get(self.against, ', '.join(self.against))}"


FUSED_PEERS = (who.LIGER, who.CCE, who.CCE_EXACT)
EAGER, OURS = (who.EAGER,), (who.SOFTMAX,)

TARGETS = (
    Target("large", who.SOFTMAX, "time", 1.05, who.PEERS),
    Target("large", who.SOFTMAX, "memory", 300.0),
    Target("large", who.PLIF_, "time", 1.15, OURS),
    Target("large", who.PLIF_, "time", 1.0, FUSED_PEERS),
    Target("large", who.PLIF_, "memory", 302.0),
    Target("large", who.SIGSOFTMAX, "time", 1.03, OURS),
    Target("large", who.SOFTCAP, "time", 1.03, OURS),
    Target("large", who.SCALE, "time", 1.03, OURS),
    Target("wide", who.SOFTMAX, "time", 1.05, who.PEERS),
    Target("wide", who.PLIF_, "time", 1.2, OURS),
    Target("penn", who.PLIF_, "time", 1.25, EAGER),
    Target("penn", who.MOS, "time", 1 / 3, (who.EAGER_MOS,)),
    Target("penn", who.MOS, "memory", 150.0),
    Target("penn", who.MOS_PLIF, "time", 1.3, (who.MOS,)),
    Target("wikitext2", who.SOFTMAX, "time", 1.0, EAGER),
    Target("wikitext2", who.PLIF_, "time", 1.3, EAGER),
    Target("wikitext2", who.MOS, "time", 15.0, EAGER),
)


@dataclass(frozen=True)
class Verdict:
    """A target in one block: what was found, None where it could not be, and whether it is met.

    Without a block, nothing that was measured tells.
    """

    target: Target
    block: Block | None
    found: float | None
    note: str = ""
    own: Row | None = None
    rival: str = ""  # the fastest of those the target is against

    @property
    def met(self) -> bool | None:
        return None if self.found is None else self.found <= self.target.limit

    @property
    def word(self) -> str:
        if self.met is None:
            return f"not measured: {self.note}"
        return "met" if self.met else "missed"


def verdicts(rows: list[Row]) -> list[Verdict]:
    """Every target in every block of its group that tells, and once by itself where there is none."""
    blocks = by_block(rows)
    found = []
    for target in TARGETS:
        own = {block: row_of for block, row_of in blocks.items() if block.group == target.group}
        telling = {b: row_of for b, row_of in own.items() if target.what == "time" or b.mode == CALLS}
        found += [_verdict(target, block, row_of) for block, row_of in telling.items()]
        if not telling:
            missing = "no rows of calls, and CUDA graphs tell no memory" if own else "no rows of this shape"
            found.append(Verdict(target, None, None, missing))
    return found


def _verdict(target: Target, block: Block, row_of: dict[str, Row]) -> Verdict:
    own = row_of.get(target.contender)
    if own is None or own.ms is None:
        return Verdict(target, block, None, own.failure if own else f"no row of {target.contender}", own)
    if target.what == "memory":
        return Verdict(target, block, own.beyond_mib, "no allocator to ask on this device", own)
    rivals = [(row.ms, name) for name in target.against if (row := row_of.get(name)) and row.ms is not None]
    if not rivals:
        return Verdict(target, block, None, f"no time of {', '.join(target.against)}", own)
    fastest, rival = min(rivals)
    return Verdict(target, block, own.ms / fastest, own=own, rival=rival)
