"""How things are measured: in turn, so that drift hits all alike; memory in a process of its own."""

import contextlib
import gc
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor


Step = Callable[[], object]


@dataclass(frozen=True)
class Spread:
    """Median and outer quantiles of several measurements: 20 % and 80 %, or quartiles with `parts` of 4."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: list[float], parts: int = 5) -> "Spread":
        if len(values) < 2:
            return cls(values[0], values[0], values[0])
        cuts = statistics.quantiles(values, n=parts, method="inclusive")
        return cls(statistics.median(values), cuts[0], cuts[-1])


@dataclass
class Times:
    """Seconds of each round: on the clock, and of processor time over all threads."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)


def interleaved(steps: dict[str, Step], rounds: int, warm_up: int = 2) -> dict[str, Times]:
    """Run every step once per round, in turn."""
    times = {name: Times() for name in steps}
    for number in range(warm_up + rounds):
        for name, step in steps.items():
            gc.collect()
            wall, cpu = time.perf_counter(), time.process_time()
            step()
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            if number >= warm_up:
                times[name].wall.append(wall)
                times[name].cpu.append(cpu)
    return times


def peak_rise(warm_up: Step, step: Step) -> int:
    """Bytes by which `step` raises the resident size of this process at its peak."""
    warm_up()
    gc.collect()
    before = reset_peak()
    step()
    return peak() - before


def peak() -> int:
    """The largest resident size of this process since `reset_peak`, in bytes.

    On Linux from /proc: the figure getrusage gives is inherited from the process that started this one.
    """
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def reset_peak() -> int:
    """Forget what was larger before, where the system allows it; the peak from here on."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return peak()


def in_process(*arguments: str) -> dict[str, float]:
    """What `python -m benchmarks <arguments>` prints as JSON, in a fresh process."""
    command = [sys.executable, "-m", "benchmarks", *arguments]
    root = Path(__file__).parents[1]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=root)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr}")
    return json.loads(done.stdout)


@contextlib.contextmanager
def stopwatch(places: list[tuple[object, str, str]]) -> Iterator[dict[str, float]]:
    """Processor seconds inside the functions at `places` (owner, attribute, label), the outermost counted."""
    seconds: dict[str, float] = {}
    inside = [False]

    def timed(function: Callable, label: str) -> Callable:
        def call(*args, **kwargs):
            if inside[0]:
                return function(*args, **kwargs)
            inside[0] = True
            start = time.process_time()
            try:
                return function(*args, **kwargs)
            finally:
                seconds[label] = seconds.get(label, 0.0) + time.process_time() - start
                inside[0] = False

        return call

    originals = [(owner, name, getattr(owner, name)) for owner, name, _ in places]
    for (owner, name, original), (_, _, label) in zip(originals, places, strict=True):
        setattr(owner, name, timed(original, label))
    try:
        yield seconds
    finally:
        for owner, name, original in originals:
            setattr(owner, name, original)


MATRIX_PRODUCTS = [(torch, "mm"), (torch, "addmm"), (Tensor, "addmm_"), (Tensor, "__matmul__")]
