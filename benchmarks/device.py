"""Time and memory of steps on one device: CUDA events and its allocator, or the clock alone on CPU."""

import contextlib
import gc
import math
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from benchmarks.measure import Step


WARM_UP = 3
# A sample is of at least this long: as many calls in a row as it takes.
SAMPLE_SECONDS = 2e-3
MOST_CALLS = 50
LEAST_SAMPLES, MOST_SAMPLES = 10, 200
# A row this slow is content with half as many.
SLOW_SECONDS = 0.1


@dataclass
class Samples:
    """Seconds per call of each sample, and how many calls a sample is of."""

    calls: int = 1
    seconds: list[float] = field(default_factory=list)
    failure: str = ""
    value: float = math.nan

    @property
    def spent(self) -> float:
        return sum(self.seconds) * self.calls


class Device:
    """Where steps run. `name` is "cuda" or "cpu"."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.cuda = name == "cuda"

    def wait(self) -> None:
        if self.cuda:
            torch.cuda.synchronize()

    def seconds(self, step: Step, calls: int = 1, warm: bool = False) -> float:
        """Of one call, in a row of `calls` started on an idle device.

        With `warm` on one that is still busy with a call of the same, as in a training loop: what the host
        does before its first launch then costs nothing, unless the host is slower than the device.
        """
        self.wait()
        if warm:
            step()
        if not self.cuda:
            start = time.perf_counter()
            for _ in range(calls):
                step()
            return (time.perf_counter() - start) / calls
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        for _ in range(calls):
            step()
        last.record()
        last.synchronize()
        return first.elapsed_time(last) * 1e-3 / calls

    def peak_bytes(self, step: Step) -> int | None:
        """The most that was allocated during `step`, less what was before it; None on CPU."""
        if not self.cuda:
            return None
        gc.collect()
        self.wait()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step()
        self.wait()
        return torch.cuda.max_memory_allocated() - before

    def captured(self, step: Step) -> Step:
        """A replay of `step` as a CUDA graph; raises where it cannot be one. On CPU the step itself."""
        if not self.cuda:
            return step
        # A capture that fails halfway leaves the allocator in a bad state: what would fail is found before.
        with _no_synchronisation():
            step()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                step()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            value = step()

        def replay(_held: Step = step) -> object:  # what a step made for itself must outlast it
            graph.replay()
            return value

        replay()
        self.wait()  # what a graph does wrong must fail here, by name, and not among the others
        return replay

    def forget(self) -> None:
        """Give back all memory nobody holds."""
        gc.collect()
        if self.cuda:
            torch.cuda.empty_cache()


@contextlib.contextmanager
def _no_synchronisation() -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def reason(error: BaseException) -> str:
    """One line of what went wrong."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:200].rstrip(": ")


def in_turn(device: Device, steps: dict[str, Step], seconds: float, least: int) -> dict[str, Samples]:
    """Samples of every step, in rounds of random order; each step gets an equal share of `seconds`.

    A chip that just idled runs faster than one that just multiplied, so no step may always follow the same
    other one, and each sample follows right after an untimed call of its own step. A step with its share
    and `least` samples leaves the rounds; one that raises leaves with the reason.
    """
    order = random.Random(0)
    samples = {name: Samples() for name in steps}
    gc.collect()
    enough = dict.fromkeys(steps, least)
    share = seconds / max(len(steps), 1)
    active = []
    for name, step in steps.items():
        with _failing(device, name, samples[name]):
            once = min(device.seconds(step) for _ in range(2))
            samples[name].calls = max(1, min(MOST_CALLS, math.ceil(SAMPLE_SECONDS / once)))
            enough[name] = least if once < SLOW_SECONDS else (least + 1) // 2
            active.append(name)
    for _ in range(MOST_SAMPLES):
        for name in order.sample(active, len(active)):
            with _failing(device, name, samples[name]):
                samples[name].seconds.append(device.seconds(steps[name], samples[name].calls, warm=True))
        active = [n for n in active if not samples[n].failure and not _done(samples[n], enough[n], share)]
        if not active:
            break
    for name, step in steps.items():
        if not samples[name].failure:
            value = step()
            samples[name].value = float(value) if isinstance(value, Tensor) else math.nan
    return samples


def _done(samples: Samples, enough: int, share: float) -> bool:
    return len(samples.seconds) >= enough and samples.spent >= share


@contextlib.contextmanager
def _failing(device: Device, name: str, samples: Samples) -> Iterator[None]:
    """A step that raises is a row with a reason; a device that no longer answers ends the run by name."""
    try:
        yield
    except Exception as error:
        samples.failure = reason(error)
        try:
            device.wait()
        except Exception as lost:
            raise RuntimeError(f"the device no longer answers after {name}: {reason(lost)}") from error
