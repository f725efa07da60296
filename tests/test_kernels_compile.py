"""Triton kernels compile for real GPUs, on a machine without one.

The interpreter that runs them in the other tests is Python: it takes types, masks and branches that the
compiler refuses. Here losses and steps of training are called on tensors that hold nothing, and each kernel
they would launch is compiled, with those arguments, to machine code.
"""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import uncork
from tests.fake_gpu import loss_of, pretend
from uncork import functions


triton = pytest.importorskip("triton")
CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
SOURCES = Path(uncork.__file__).parent
# An A100 and an H200.
CAPABILITIES = (80, 90)
PAIR, TRIO = (40, 24), (40, 3, 24)
SHORT, LONG = 507, 33_001
FEW_BYTES, MOST_REGISTERS = 16, 224


class Compiler:
    """Takes launches, and keeps what they were compiled to."""

    def __init__(self, capability: int) -> None:
        from triton.backends.compiler import GPUTarget

        self.capability, self.target = capability, GPUTarget("cuda", capability, 32)
        self.compiled = []

    def __call__(self, kernel, grid, given, named) -> None:
        self.compiled.append(kernel.warmup(*map(without_memory, given), grid=grid, **named))

    # What Triton asks of a driver before a launch.
    def get_current_target(self):
        return self.target

    def get_current_device(self) -> int:
        return self.capability

    def get_current_stream(self, device: int) -> int:
        return 0


def without_memory(given):
    """An argument that the compiler can ask for its type, and whether its address is a multiple of 16."""
    from triton.runtime.jit import MockTensor

    if isinstance(given, tuple):
        return tuple(map(without_memory, given))
    return MockTensor(given.dtype) if isinstance(given, torch.Tensor) else given


def losses() -> dict[str, Callable[[], torch.Tensor]]:
    """By name: what a kernel may meet."""
    plif = lambda: functions.PLIF(100_000)
    return {
        "softmax": lambda: loss_of(PAIR, SHORT),
        "softmax, weights and bias": lambda: loss_of(
            PAIR,
            SHORT,
            weight=torch.empty(SHORT),
            linear_bias=torch.empty(SHORT).requires_grad_(),
            z_loss=1e-4,
        ),
        "softmax, one by one": lambda: loss_of(PAIR, SHORT, reduction="none").sum(),
        "softmax, long rows in bfloat16": lambda: loss_of(PAIR, LONG, dtype=torch.bfloat16),
        "softmax, float16": lambda: loss_of(PAIR, LONG, dtype=torch.float16),
        "scale": lambda: loss_of(PAIR, SHORT, function=functions.Scale()),
        "scale, long rows in bfloat16": lambda: loss_of(
            PAIR, LONG, function=functions.Scale(), dtype=torch.bfloat16
        ),
        "sigsoftmax": lambda: loss_of(PAIR, SHORT, function=functions.SigSoftmax()),
        "sigsoftmax, long rows in bfloat16": lambda: loss_of(
            PAIR, LONG, function=functions.SigSoftmax(), dtype=torch.bfloat16
        ),
        "generalized sigsoftmax, a mixture": lambda: loss_of(
            TRIO, SHORT, function=functions.GeneralizedSigSoftmax(0.5, 3.0)
        ),
        "softcap": lambda: loss_of(PAIR, SHORT, function=functions.SoftCap(30.0)),
        "softcap, a mixture": lambda: loss_of(TRIO, SHORT, function=functions.SoftCap(30.0)),
        "PLIF": lambda: loss_of(PAIR, SHORT, function=plif()),
        "PLIF, bfloat16": lambda: loss_of(PAIR, SHORT, function=plif(), dtype=torch.bfloat16),
        "PLIF, long rows": lambda: loss_of(PAIR, LONG, function=plif()),
        "PLIF, long rows in bfloat16": lambda: loss_of(PAIR, LONG, function=plif(), dtype=torch.bfloat16),
        "two knots": lambda: loss_of(PAIR, SHORT, function=functions.PLIF(2)),
        "a million knots": lambda: loss_of(PAIR, SHORT, function=functions.PLIF(1_000_000)),
        "distributions": lambda: loss_of(PAIR, SHORT, dense=True),
        "distributions, PLIF": lambda: loss_of(PAIR, SHORT, dense=True, function=plif()),
        "distributions, a mixture": lambda: loss_of(TRIO, SHORT, dense=True),
        "distributions, a mixture, scale": lambda: loss_of(
            TRIO, SHORT, dense=True, function=functions.Scale()
        ),
        "distributions, a mixture, PLIF": lambda: loss_of(TRIO, SHORT, dense=True, function=plif()),
        "smoothed": lambda: loss_of(PAIR, SHORT, label_smoothing=0.1),
        "smoothed and weighted, a mixture": lambda: loss_of(
            TRIO, SHORT, label_smoothing=0.1, weight=torch.empty(SHORT)
        ),
        "a mixture": lambda: loss_of(TRIO, SHORT),
        "a mixture, bfloat16": lambda: loss_of(TRIO, SHORT, dtype=torch.bfloat16, z_loss=1e-4),
        "a mixture, float16": lambda: loss_of(TRIO, SHORT, dtype=torch.float16),
        "a mixture, PLIF": lambda: loss_of(TRIO, SHORT, function=plif()),
    }


def operands() -> None:
    """What persistent layers need around products, with and without masks, biases and dropped weights."""
    from uncork.lm import operand_kernels

    width, gates = 72, 4 * 24
    seed = torch.empty((), dtype=torch.int64)
    source, weight = torch.empty(60, width), torch.empty(gates, width)
    product = torch.empty(gates, 128)
    operand_kernels.input_operand(source, None)
    operand_kernels.input_operand(source.bfloat16(), torch.empty(20, width))
    operand_kernels.weight_operand(weight, torch.empty(gates), torch.empty(gates))
    operand_kernels.weight_gradients(product, width)
    operand_kernels.dropped(torch.empty(gates, 24), 0.5, seed)
    operand_kernels.dropped_gradient(product, 24, 0.5, seed)
    operand_kernels.dropped_gradient(product, 24, 0.5, None)


def updates() -> None:
    """With averages and without, clipped or not, at a pace that falls or at none, divided by sizes or not."""
    from uncork.lm.update_kernel import MeanSquare, Moved, update

    number = torch.empty(())
    for size, averages, divided in ((3, False, False), (8, True, False), (9, True, True), (8, False, True)):
        average, square = (torch.empty(500) if there else None for there in (averages, divided))
        moved = [Moved(torch.empty(500), torch.empty(500), average, square, 0.5, 1e-6)] * size
        update(
            moved,
            number if size > 3 else None,
            number if size > 8 else None,
            number if averages else None,
            MeanSquare(0.999, number, 1e-9) if divided else None,
        )


def in_fixed_order(loss: Callable[[], torch.Tensor]) -> None:
    torch.use_deterministic_algorithms(True)
    try:
        loss().backward()
    finally:
        torch.use_deterministic_algorithms(False)


WORK = {name: lambda loss=loss: loss().backward() for name, loss in losses().items()}
WORK |= {
    f"{name}, fixed order": lambda loss=loss: in_fixed_order(loss)
    for name, loss in losses().items()
    if "PLIF" in name or "knots" in name
}
WORK |= {"operands of layers": operands, "updates": updates}


def launch(monkeypatch, work, launched) -> None:
    with monkeypatch.context() as patch, FakeTensorMode():
        pretend(patch, launched, lambda source: None)
        work()


@pytest.fixture
def compiler(monkeypatch, tmp_path, request):
    from triton import knobs
    from triton.runtime import driver

    compiler = Compiler(request.param)
    monkeypatch.setattr(knobs.cache, "dir", str(tmp_path))
    monkeypatch.setattr(driver, "_active", compiler)
    return compiler


@pytest.mark.parametrize("compiler", CAPABILITIES, indirect=True, ids=lambda c: f"sm_{c}")
@pytest.mark.parametrize("name", WORK)
def test_it_compiles(monkeypatch, compiler, tmp_path, name):
    """With room in the registers: kernels that spill, or that fill a chip's with few threads, are slow."""
    launch(monkeypatch, WORK[name], compiler)
    assert compiler.compiled
    for kernel in compiler.compiled:
        registers, stack = usage(kernel, tmp_path / "kernel.cubin")
        assert stack <= FEW_BYTES, (kernel.name, stack)
        assert registers <= MOST_REGISTERS, (kernel.name, registers)


def usage(kernel, file: Path) -> tuple[int, int]:
    """The registers of a thread, and the bytes of memory it has for what they have no room for."""
    file.write_bytes(kernel.asm["cubin"])
    command = [CUOBJDUMP, "-res-usage", file]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    registers, stack = re.search(r"REG:(\d+) STACK:(\d+)", said).groups()
    return int(registers), int(stack)


def test_every_kernel_that_is_launched_is_among_them(monkeypatch):
    names = set()
    for work in WORK.values():
        launch(monkeypatch, work, lambda kernel, *_: names.add(kernel.__name__))
    launches = re.compile(r"(\w+_kernel)\[\(")
    written = {name for source in SOURCES.rglob("*.py") for name in launches.findall(source.read_text())}
    assert names == written
