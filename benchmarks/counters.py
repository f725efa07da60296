"""What bounds the kernels of a loss: their hardware counters, read by Nsight Compute (ncu).

ncu runs `python -m benchmarks once ...` and reads the kernels of the one step between that process's marks.
"""

import csv
import io
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from benchmarks import contenders as who, groups, losses, table
from benchmarks.gpu import DTYPES, precision_of
from benchmarks.measure import Step
from benchmarks.rows import Block


# One chunk of each: shape, tokens, contender, dtype, spread.
CASES = (
    ("large", 1024, who.SOFTMAX, "bf16", 3.5),
    ("large", 512, who.PLIF_, "bf16", 3.5),
    ("penn", 1400, who.PLIF_, "tf32", 3.5),
    ("penn", 128, who.MOS_PLIF, "tf32", 3.5),
)
SHAPES = {"large": groups.LARGE, "wide": groups.WIDE, "penn": groups.PENN, "wikitext2": groups.WIKITEXT2}
# Ours that read or write logits; the products are the library's.
KERNELS = "table_counts|table_gradient|row_gradient|row_stats|row_kernel|token_kernel"
METRICS = {
    "gpu__time_duration.sum": "us",
    "dram__bytes_read.sum": "read_mb",
    "dram__bytes_write.sum": "written_mb",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": "dram",
    "lts__throughput.avg.pct_of_peak_sustained_elapsed": "l2",
    "l1tex__throughput.avg.pct_of_peak_sustained_active": "l1",
    "smsp__issue_active.avg.pct_of_peak_sustained_active": "issue",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "warps",
}
# To microseconds and megabytes; ncu chooses units by size.
TIMES = {"s": 1e6, "ms": 1e3, "us": 1.0, "ns": 1e-3}
UNITS = {**TIMES, "Gbyte": 1e3, "Mbyte": 1.0, "Kbyte": 1e-3, "byte": 1e-6, "%": 1.0}
HEADINGS = ["kernel", "us", "MB read", "MB written", "DRAM %", "L2 %", "L1 %", "issue %", "warps %"]
NOTES = (
    "Percentages are of the chip's peak: bandwidth of the memory, of the second and of the first cache with "
    "shared memory; instructions issued; warps on the chip. One launch each, on one chunk of logits, with "
    "clocks as they are. Times under a profiler are not those of the benchmark."
)


@dataclass(frozen=True)
class Counters:
    """One launch of one kernel."""

    shape: str
    contender: str
    dtype: str
    spread: float
    tokens: int
    kernel: str
    us: float
    read_mb: float
    written_mb: float
    dram: float
    l2: float
    l1: float
    issue: float
    warps: float


def run(commit: str | None, out: Path) -> int:
    """Profile all cases and write after each; 1 if ncu gives nothing."""
    origin = table.origin_of(commit)
    name = table.dated_name("counters", origin["hardware"])
    rows: list[Counters] = []
    for case in CASES:
        try:
            found = _profiled(*case)
        except (OSError, subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            print(f"no counters of {case}: {error}", flush=True)
            continue
        if not found:
            print(f"no counters of {case}: none of our kernels ran", flush=True)
            continue
        rows += found
        table.write(out, name, _text(rows, origin), [asdict(row) | origin for row in rows])
    print("written:", out / f"{name}.csv" if rows else "nothing")
    return 0 if rows else 1


def once(shape: str, tokens: int, contender: str, dtype: str, spread: float) -> int:
    """Warm up, then one step between the marks a profiler looks for."""
    step = _step(shape, tokens, contender, dtype, spread)
    with precision_of(dtype):
        for _ in range(3):
            step()
        torch.cuda.synchronize()
        torch.cuda.profiler.start()
        step()
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()
    return 0


def _step(shape: str, tokens: int, contender: str, dtype: str, spread: float) -> Step:
    _, width, words = SHAPES[shape]
    components = groups.COMPONENTS if "MoS" in contender else 0
    block = Block(shape, "", tokens, width, words, 100_000, components, dtype, spread, groups.CALLS)
    problem = losses.make_problem(
        block.sizes, block.components, block.spread, dtype=DTYPES[dtype], device="cuda"
    )
    return losses.step_of(who.make_loss(contender, block, "cuda", "triton"), problem)


def _profiled(shape: str, tokens: int, contender: str, dtype: str, spread: float) -> list[Counters]:
    print(f"{contender}, {shape}, {dtype}, spread {spread:g}", flush=True)
    case = [shape, str(tokens), contender, dtype, str(spread)]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log.csv"
        command = [
            "ncu", "--clock-control", "none", "--profile-from-start", "off", "--kernel-name-base", "function",
            "--kernel-name", f"regex:{KERNELS}", "--csv", "--page", "raw", "--log-file", str(log),
            "--metrics", ",".join(METRICS), sys.executable, "-m", "benchmarks", "once", *case,
        ]  # fmt: skip
        subprocess.run(command, check=True, timeout=120)
        found = parsed(log.read_text())
    return [Counters(shape, contender, dtype, spread, tokens, **values) for values in found]


def parsed(text: str) -> list[dict]:
    """Kernels and their numbers from ncu's table, whose second line holds the units."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    if len(lines) < 2:  # no kernel of that name was launched
        return []
    names, units, *rows = csv.reader(io.StringIO("\n".join(lines)))
    found = []
    for row in rows:
        cells = dict(zip(names, zip(row, units, strict=True), strict=True))
        values: dict = {"kernel": cells["Kernel Name"][0].split("<")[0].split("(")[0].split()[-1]}
        for metric, field in METRICS.items():
            number, unit = cells[metric]
            values[field] = float(number.replace(",", "")) * UNITS[unit]
        found.append(values)
    return found


def _text(rows: list[Counters], origin: dict[str, str]) -> str:
    parts = ["# Hardware counters of the kernels", table.facts(origin)]
    cases: dict[str, list[Counters]] = {}
    for row in rows:
        _, width, words = SHAPES[row.shape]
        sizes = f"N {row.tokens}, D {width}, V {words}, {row.dtype}, spread {row.spread:g}"
        cases.setdefault(f"## {row.contender}: {sizes}", []).append(row)
    for heading, mine in cases.items():
        parts += [heading, table.markdown(HEADINGS, [_line(row) for row in mine])]
    return "\n\n".join([*parts, NOTES]) + "\n"


def _line(row: Counters) -> list[str]:
    numbers = (row.us, row.read_mb, row.written_mb, row.dram, row.l2, row.l1, row.issue, row.warps)
    return [row.kernel, *(f"{number:.1f}" for number in numbers)]
