"""Losses of output layers on a GPU, forward and backward, against torch and other libraries.

Needs torch and Triton alone. Rows go to a CSV file after every block, so a run that is killed keeps what it
has, and a run of other groups on the same day adds to the file.
"""

import contextlib
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path

import torch

from benchmarks import contenders as who, groups, losses, page, table
from benchmarks.device import LEAST_SAMPLES, WARM_UP, Device, Samples, in_turn, reason
from benchmarks.losses import Loss, Problem
from benchmarks.measure import Spread, Step
from benchmarks.rows import MIB, Block, Row, merged, read, record
from uncork.ops import triton


DTYPES = {"bf16": torch.bfloat16, "tf32": torch.float32}
# Rows are measured for about a second each where the group's time allows.
ROW_SECONDS = 1.0
# Of the time left to a group this share goes to samples; the rest to making contenders and to memory.
SAMPLING = 0.6
SPREADS, MODES = groups.SPREADS, tuple(groups.MODES)
# How a sample is started; see `Device.seconds`. Older rows do not say.
SAMPLED = "right after a call"
GATED = (who.SOFTMAX, who.PLIF_, who.SIGSOFTMAX, who.SOFTCAP, who.SCALE, who.MOS, who.MOS_PLIF)
# How wrong a gradient may be beside twice torch's own error: in the low ones two roundings.
TOLERANCE = {"float32": 1e-4, "tf32": 2.0**-9, "bf16": 2.0**-6}


@dataclass(frozen=True)
class Options:
    """What the command line chose."""

    groups: tuple[str, ...] = tuple(groups.GROUPS)
    device: str = "cuda"
    tiny: bool = False
    seconds: float = 60.0
    commit: str | None = None
    name: str | None = None
    spreads: tuple[float, ...] = SPREADS
    modes: tuple[str, ...] = MODES
    leave_out: tuple[str, ...] = ()

    @property
    def backend(self) -> str:
        """uncork's, asked for by name so that nothing else can run in its place."""
        return "chunked" if triton.obstacle(torch.device(self.device)) else "triton"


def run(options: Options, out: Path) -> int:
    """Gate, then measure block after block and write after each. 1 if nothing could be measured."""
    if nothing := _refused(options):
        print(f"no measurement: {nothing}")
        return 1
    if options.device == "cuda" and not torch.cuda.is_available():
        print("no measurement: torch sees no GPU here. For a dry run: --device cpu --tiny")
        return 1
    if options.device == "cuda" and options.backend != "triton":
        print("no measurement: Triton is not installed")
        return 1
    if red := gate(options):
        print("no measurement: these are not right\n" + "\n".join(red))
        return 1
    origin = _origin(options)
    name = options.name or table.dated_name("dry-run" if options.tiny else "gpu", dict(origin)["hardware"])
    for group in options.groups:
        for rows in _measure_group(group, options):
            rows = [replace(row, origin=origin) for row in rows]
            all_rows = merged(read(out / f"{name}.csv"), rows, tuple(groups.GROUPS))
            table.write(out, name, page.text(all_rows), [record(row) for row in all_rows])
    print("written:", out / f"{name}.csv", out / f"{name}.md", flush=True)
    return 0


def gate(options: Options) -> list[str]:
    """Our losses that are not those of plain torch in float64; empty when all is well."""
    red = []
    for block in gate_blocks(options.tiny):
        with precision_of(block.dtype):
            red += [f"{line} ({block})" for line in _wrong(block, options)]
    return red


def gate_blocks(tiny: bool) -> tuple[Block, ...]:
    """Between them every kernel that is timed runs, but for `tiny`, which any machine can do.

    Long rows in bfloat16 are counted, or folded, and short ones have a compressed table.
    """
    words, knots = (2_000, 4_000) if tiny else (40_000, 100_000)
    plain = Block("gate", "", 64, 16, 301, 999, 3, "float32", 3.5, groups.CALLS)
    short = replace(plain, knots=knots)
    long = replace(short, words=words, components=0, dtype="bf16")
    return plain, long, replace(short, dtype="tf32"), replace(short, dtype="bf16")


def _wrong(block: Block, options: Options) -> list[str]:
    dtype = DTYPES.get(block.dtype, torch.float32)
    drawn = _problem(block, options.device, torch.float32)
    own, single, wide = (losses.on_grid(drawn, t) for t in (dtype, torch.float32, torch.float64))
    red = []
    for name in GATED:
        if "MoS" in name and not block.components:
            continue
        loss = who.make_loss(name, block, options.device, options.backend)
        exact, plain = (who.truth(name, block, options.device) for _ in range(2))
        # A table reads logits of float32, whatever the input's dtype.
        yardstick = plain.float(), single if "PLIF" in name else own
        red += losses.disagreement(name, loss, exact, own, wide, TOLERANCE[block.dtype], yardstick)
    return red


def _problem(block: Block, device: str, dtype: torch.dtype) -> Problem:
    return losses.make_problem(block.sizes, block.components, block.spread, dtype=dtype, device=device)


def _origin(options: Options) -> tuple[tuple[str, str], ...]:
    facts = table.origin_of(options.commit)
    facts["CUDA"] = torch.version.cuda or "none"
    for package in ("triton", "liger-kernel", "cut-cross-entropy"):
        try:
            facts[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            facts[package] = "absent"
    facts["backend"] = options.backend
    facts["sampled"] = SAMPLED
    return tuple((key, str(value)) for key, value in facts.items())


def _measure_group(group: str, options: Options) -> Iterator[list[Row]]:
    """The rows of each block in turn; blocks that the group's time does not reach are left out, aloud."""
    deadline = time.monotonic() + options.seconds
    sections = [_chosen(section, options) for section in groups.sections(group, options.tiny)]
    left = sum(len(section.blocks()) for section in sections)
    for section in sections:
        if section.blocks():
            torch.compiler.reset()  # each shape is compiled for itself
        makers = _Makers(section.block, options)
        for block in section.blocks():
            share = max(0.0, SAMPLING * (deadline - time.monotonic()) / left)
            left -= 1
            if not share:
                print(f"not measured, {group} had {options.seconds:g} s: {block}", flush=True)
                continue
            print(f"{group}: {block}", flush=True)
            seconds = min(share, ROW_SECONDS * len(section.contenders))
            with precision_of(block.dtype), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # peers' and deterministic mode's, on every call
                yield _measure(block, section.contenders, makers, 0.0 if options.tiny else seconds, options)


def _refused(options: Options) -> str:
    """Why the choice makes no sense; empty if it does."""
    sections = [section for group in options.groups for section in groups.sections(group, options.tiny)]
    known = {name for section in sections for name in section.contenders}
    if unknown := set(options.leave_out) - known:
        return f"there is no contender {min(unknown)!r} to leave out. There are: {'; '.join(sorted(known))}"
    if not any(_chosen(section, options).blocks() for section in sections):
        return f"{', '.join(options.groups)} has no block of that spread and mode"
    return ""


def _chosen(section: groups.Section, options: Options) -> groups.Section:
    """What of a section the command line asks for."""
    return replace(
        section,
        contenders=tuple(name for name in section.contenders if name not in options.leave_out),
        spreads=tuple(spread for spread in section.spreads if spread in options.spreads),
        modes=tuple(mode for mode in section.modes if mode in options.modes),
    )


class _Makers:
    """The losses of a section, each made once; a reason where that is impossible."""

    def __init__(self, block: Block, options: Options) -> None:
        self.block, self.options = block, options
        self.made: dict[str, Loss | str] = {}

    def loss(self, name: str) -> Loss:
        if name not in self.made:
            compiler = "eager" if self.options.tiny else "inductor"
            try:
                self.made[name] = who.make_loss(
                    name, self.block, self.options.device, self.options.backend, compiler
                )
            except Exception as error:
                self.made[name] = reason(error)
        loss = self.made[name]
        if isinstance(loss, str):
            raise Unavailable(loss)
        return loss


class Unavailable(Exception):
    """A contender cannot be made here."""


@contextlib.contextmanager
def precision_of(dtype: str) -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _measure(
    block: Block, names: tuple[str, ...], makers: _Makers, seconds: float, options: Options
) -> list[Row]:
    device = Device(options.device)
    problem = _problem(block, options.device, DTYPES[block.dtype])
    rows, steps = {}, {}
    for name in names:
        start = time.monotonic()
        rows[name] = Row(block, name)
        try:
            rows[name], steps[name] = _prepared(rows[name], problem, makers, device)
        except Exception as error:
            failure = str(error) if isinstance(error, Unavailable) else reason(error)
            rows[name] = replace(rows[name], failure=failure)
            device.wait()  # a device that no longer answers ends the run
            device.forget()
        if (took := time.monotonic() - start) > 5.0:
            print(f"  {name}: ready after {took:.0f} s", flush=True)
    samples = in_turn(device, steps, seconds, 2 if options.tiny else LEAST_SAMPLES)
    found = [_with_samples(row, samples.get(name)) for name, row in rows.items()]
    for row in found:
        print("  " + _line(row), flush=True)
    del problem, steps
    device.forget()
    return found


def _prepared(row: Row, problem: Problem, makers: _Makers, device: Device) -> tuple[Row, Step]:
    """A step ready for timing, and its row with what is known before."""
    block, name, tiny = row.block, row.contender, makers.options.tiny
    if name in who.FLOORS:
        size = MIB if tiny else who.COPY_BYTES
        step = who.floor_step(name, problem, size)
        row = replace(row, moved_bytes=2 * size if name == who.COPY else None)
    else:
        loss = makers.loss(name)
        if block.mode == groups.GRAPHED and device.cuda:
            loss = losses.Graphed(loss, problem)
        step = losses.step_of(loss, problem, who.AROUND.get(name, contextlib.nullcontext))
        # The least a loss moves beside its products: every logit read once, every gradient written once.
        logits = block.tokens * block.words * (block.components if "MoS" in name else 1)
        moved = 2 * logits * DTYPES[block.dtype].itemsize
        row = replace(row, moved_bytes=moved, gradient_bytes=losses.gradient_bytes(loss, problem))
    for _ in range(WARM_UP):
        step()
    if block.mode == groups.GRAPH:
        return row, device.captured(step)
    if block.mode == groups.CALLS and name not in who.FLOORS:
        row = replace(row, peak_bytes=device.peak_bytes(step))
    return row, step


def _with_samples(row: Row, samples: Samples | None) -> Row:
    if samples is None:
        return row
    if samples.failure:
        return replace(row, failure=samples.failure)
    spread = Spread.of(samples.seconds, parts=4)
    return replace(
        row,
        ms=spread.median * 1e3,
        ms_25=spread.low * 1e3,
        ms_75=spread.high * 1e3,
        samples=len(samples.seconds),
        calls=samples.calls,
        loss=None if row.contender in who.FLOORS else samples.value,
    )


def _line(row: Row) -> str:
    if row.ms is None:
        return f"{row.contender}: not measured, {row.failure}"
    memory = "" if row.peak_mib is None else f", peak {row.peak_mib:.0f} MiB"
    beyond = "" if row.beyond_mib is None else f" ({row.beyond_mib:.1f} beyond gradients)"
    count = f"{row.samples} samples of {row.calls}"
    return f"{row.contender}: {row.ms:.3f} ms ({row.ms_25:.3f}-{row.ms_75:.3f}), {count}{memory}{beyond}"
