"""Sums per knot of a table function on a GPU, two ways.

`IntegerSums` adds fixed-point integers with global atomics inside the Triton kernel: the same bits on every
run, and it runs in the interpreter. `SharedSums` is the fast one: a CUDA kernel, compiled at first use by the
NVRTC that comes with torch, keeps a window of knots in each block's shared memory and also writes dL/dz.
"""

import abc
import functools
import warnings
from pathlib import Path

import torch
from torch import Tensor

from uncork.ops.problem import Problem


SOURCE = Path(__file__).with_name("table_gradient.cu")
OUTPUTS = {torch.float32: "float", torch.bfloat16: "__nv_bfloat16", torch.float16: "__half"}
# Bits of headroom below 2^63 for the largest sum a knot can reach.
UNITS = 2.0**61
# The slots behind the knots hold gradient times distance beyond the table, in this many bounds.
BEYOND = 16384.0
# Knots in shared memory at the most: what it does not take is cache for the table itself.
WINDOW = 32_768


class Sums(abc.ABC):
    """Collects dL/dF of the k + 1 knots over chunks."""

    separate: bool  # whether the sums, and dL/dz, come from a kernel of their own

    def __init__(self, intervals: int, bound: float) -> None:
        self.intervals, self.bound = intervals, bound

    @abc.abstractmethod
    def begin(self, problem: Problem, logits_NKV: Tensor, row_scale_N: Tensor) -> tuple[Tensor, Tensor]:
        """Called before each chunk; the memory of the sums and their unit, for the Triton kernel."""

    @abc.abstractmethod
    def run(self, logits: Tensor, dlogits: Tensor, target: Tensor, stats: Tensor, pairs: Tensor) -> None:
        """The separate kernel, if there is one."""

    @abc.abstractmethod
    def slots(self) -> tuple[Tensor, Tensor]:
        """Float64 sums at the k + 1 knots, and gradient times distance below and above the table."""

    def knot_gradient(self) -> Tensor:
        """dL/dF: what lies beyond an end acts through that end's slope, so on its last two knots."""
        knots, beyond = self.slots()
        pull = beyond * (self.intervals / (2.0 * self.bound))
        knots[0] -= pull[0]
        knots[1] += pull[0]
        knots[-2] -= pull[1]
        knots[-1] += pull[1]
        return knots


def make_sums(problem: Problem, intervals: int, bound: float) -> Sums:
    """The fast sums on a GPU, unless torch was asked for deterministic algorithms."""
    device = problem.latent_NKD.device
    if (
        device.type != "cuda"
        or torch.are_deterministic_algorithms_enabled()
        or not _can_compile(device.index)
    ):
        return IntegerSums(intervals, bound, device)
    return SharedSums(problem, intervals, bound)


class IntegerSums(Sums):
    """Fixed-point sums: exact addition, so no order of threads can change a bit."""

    separate = False

    def __init__(self, intervals: int, bound: float, device: torch.device) -> None:
        super().__init__(intervals, bound)
        self.total = torch.zeros(intervals + 3, dtype=torch.float64, device=device)
        self.held: tuple[Tensor, Tensor] | None = None

    def begin(self, problem: Problem, logits_NKV: Tensor, row_scale_N: Tensor) -> tuple[Tensor, Tensor]:
        self._collect()
        # |g| summed over a row is at most twice the token's weight, and z-loss adds its own.
        reach_N = 2.0 * problem.token_weight_N()
        if problem.z_loss:
            reach_N = reach_N + 2.0 * problem.z_loss * logits_NKV.abs().amax((1, 2)).add(64.0)
        mass = (reach_N * row_scale_N).abs().nan_to_num(posinf=0.0).sum()
        unit = (UNITS / mass).clamp(max=1e37)  # a mass of 0 has nothing to measure
        ints = torch.zeros(self.intervals + 3, dtype=torch.int64, device=logits_NKV.device)
        self.held = (ints, unit)
        return self.held

    def run(self, logits: Tensor, dlogits: Tensor, target: Tensor, stats: Tensor, pairs: Tensor) -> None:
        raise AssertionError("the Triton kernel adds these sums itself")

    def _collect(self) -> None:
        if self.held is not None:
            ints, unit = self.held
            self.total += ints.double() / unit.double()
            self.held = None

    def slots(self) -> tuple[Tensor, Tensor]:
        self._collect()
        return self.total[:-2].clone(), self.total[-2:] * (self.bound * BEYOND)


class SharedSums(Sums):
    """A window of knots in shared memory, a copy per block; the rest in global memory."""

    separate = True

    def __init__(self, problem: Problem, intervals: int, bound: float) -> None:
        super().__init__(intervals, bound)
        device = problem.latent_NKD.device
        properties = torch.cuda.get_device_properties(device)
        self.blocks = properties.multi_processor_count
        room = min(WINDOW, properties.shared_memory_per_block_optin // 4)
        self.width = min(intervals + 1, room)
        self.copies = min(32, room // self.width)
        self.staging = torch.zeros(self.blocks, self.width, device=device)
        self.spill = torch.zeros(intervals, 2, device=device)
        self.beyond = torch.zeros(2, dtype=torch.float64, device=device)
        self.window: Tensor | None = None

    def begin(self, problem: Problem, logits_NKV: Tensor, row_scale_N: Tensor) -> tuple[Tensor, Tensor]:
        if self.window is None:  # chosen once: the copies of all chunks must be of the same knots
            middle = logits_NKV[0].mean().nan_to_num()
            start = (middle + self.bound) * (self.intervals / (2.0 * self.bound)) - self.width / 2
            self.window = start.clamp(0, self.intervals + 1 - self.width).to(torch.int32)
        return self.staging, self.staging

    def run(self, logits: Tensor, dlogits: Tensor, target: Tensor, stats: Tensor, pairs: Tensor) -> None:
        tokens, components, words = logits.shape
        shared = 4 * self.width * self.copies
        tiles = -(-words // 8192)
        each = -(-words // (1024 * tiles))  # no more than the row needs, in equal tiles
        kernel = _compiled(dlogits.dtype, each, shared, logits.device.index)
        assert self.window is not None
        kernel(
            (min(self.blocks, tokens * components), 1, 1),
            (1024, 1, 1),
            [
                logits, dlogits, logits.stride(1), dlogits.stride(1), target, target, stats, pairs,
                self.window, self.staging, self.spill, self.beyond, tokens * components, components,
                words, self.intervals, self.width, self.copies, int(target.is_floating_point()),
                float(self.bound),
            ],
            shared_mem=shared,
        )  # fmt: skip

    def slots(self) -> tuple[Tensor, Tensor]:
        knots = torch.zeros(self.intervals + 1, dtype=torch.float64, device=self.spill.device)
        knots[:-1] += self.spill[:, 0]
        knots[1:] += self.spill[:, 1]
        if self.window is not None:
            place = torch.arange(self.width, device=knots.device) + self.window
            knots.index_add_(0, place, self.staging.sum(0).double())
        return knots, self.beyond


@functools.cache
def _can_compile(device: int) -> bool:
    """Whether torch's run-time compiler works here; where it does not, the integer sums take over."""
    try:
        _compiled(torch.float32, 1, 1024, device)
    except (AttributeError, OSError, RuntimeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        warnings.warn(f"the fast sums of a learned function cannot be compiled here: {reason}", stacklevel=2)
        return False
    return True


@functools.cache
def _compiled(dtype: torch.dtype, each: int, shared_bytes: int, device: int):
    options = ["-std=c++17", f"-DEACH={each}"]
    with torch.cuda.device(device):
        kernel = torch.cuda._compile_kernel(
            SOURCE.read_text(), f"table_gradient<{OUTPUTS[dtype]}>", nvcc_options=options
        )
        kernel.set_shared_memory_config(shared_bytes)
    return kernel
