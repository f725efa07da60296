"""How many operations and launches one call takes: at small sizes they, not the GPU, are its time.

Counted without a GPU, on fake tensors that say they are on one; kernels are counted instead of launched.
"""

import re
from collections import Counter

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import uncork
from tests.fake_gpu import call_of, loss_of, pretend
from uncork import functions
from uncork.ops import matmul


runtime = pytest.importorskip("triton.runtime.jit")
pytestmark = pytest.mark.traced
TOKENS, WIDTH, WORDS = 1400, 400, 10_000  # a batch of the published models of Penn Treebank


class Operations(TorchDispatchMode):
    """Counts torch operations, views and allocations among them."""

    def __init__(self) -> None:
        super().__init__()
        self.counted = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "aten":
            self.counted[str(func)] += 1
        return func(*args, **(kwargs or {}))


@pytest.fixture
def launches(monkeypatch):
    """The names of kernels, appended as they are launched, on what looks like a GPU."""
    names = []
    pretend(
        monkeypatch,
        lambda kernel, *_: names.append(kernel.__name__),
        lambda source: names.append(source.stem),
    )
    return names


def forward_and_backward(function, components, words=WORDS) -> Counter:
    """The operations of torch that a step takes."""
    shape = (TOKENS, WIDTH) if components is None else (TOKENS, components, WIDTH)
    with FakeTensorMode(), Operations() as operations_of_torch:
        call = call_of(shape, words, function=None if function is None else function())
        operations_of_torch.counted.clear()
        call().backward()
    assert operations_of_torch.counted["aten.mm.out"] + operations_of_torch.counted["aten.mm.default"] >= 2
    return operations_of_torch.counted


@pytest.mark.parametrize(
    ("function", "components", "operations", "kernels"),
    [
        (None, None, 21, 2),
        (functions.SigSoftmax, None, 21, 2),
        (functions.Scale, None, 34, 2),
        (functions.PLIF, None, 33, 10),
        # Nine chunks.
        (None, 15, 112, 19),
        (functions.PLIF, 15, 112, 35),
    ],
    ids=["softmax", "sigsoftmax", "scale", "plif", "mos", "mos+plif"],
)
def test_forward_and_backward(launches, function, components, operations, kernels):
    counted = forward_and_backward(function, components)
    assert counted.total() == operations, counted
    assert len(launches) <= kernels, launches


@pytest.mark.parametrize(
    ("components", "operations", "kernels"), [(None, 38, 11), (15, 134, 35)], ids=["plif", "mos+plif"]
)
def test_a_compressed_table_is_made_with_the_table(launches, tf32, components, operations, kernels):
    """In the same launch, with two allocations more. One softmax has a kernel more, and room for what it
    finds: it sums rows faster than the token kernel, which otherwise does. And TF32 has operands copied.
    """
    counted = forward_and_backward(functions.PLIF, components)
    assert counted.total() == operations, counted
    assert len(launches) <= kernels, launches


@pytest.mark.parametrize(("components", "operations"), [(None, 27), (15, 134)], ids=["softmax", "mos"])
def test_padded_words(launches, monkeypatch, components, operations):
    """Two operations for the padded weight, two for its gradient; per chunk two more, views among them."""
    monkeypatch.setitem(matmul.PADDED_FROM, "cpu", 0)
    counted = forward_and_backward(None, components, WORDS + 1)
    assert counted["aten.cat.default"] >= 1
    assert counted.total() == operations, counted


@pytest.fixture
def sources(launches, monkeypatch):
    """The names of kernels as before, those in CUDA by their source; each gets the arguments it takes."""
    from uncork.ops.triton import nvrtc, row_gradient, row_stats, window_sums

    def compiled(source, *_):
        parameters = re.search(r"__global__[^(]*\([^)]*\)\s*\w+\(([^)]*)\)", source.read_text()).group(1)

        def launch(grid, block, arguments, shared_mem):
            assert len(arguments) == len(parameters.split(",")), source
            assert block == (1024, 1, 1) and grid == (132, 1, 1) and shared_mem <= 232_448
            launches.append(source.stem)

        return launch

    monkeypatch.setattr(nvrtc, "compiled", compiled)
    kernels = (
        (window_sums, "_count_kernel"), (window_sums, "_gradient_kernel"), (row_gradient, "_kernel"),
        (row_stats, "_kernel"),
    )  # fmt: skip
    for module, name in kernels:
        monkeypatch.setattr(module, name, getattr(module, name).__wrapped__)  # not kept for other tests
    return launches


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_long_rows_under_a_table(sources, dtype):
    """In half precision dL/dz has a kernel of its own."""
    with FakeTensorMode(), uncork.chunk_bytes(256 * 40_000 * 4):
        loss_of((512, 64), 40_000, function=functions.PLIF(), dtype=dtype).backward()
    each_chunk = ["table_counts", "token_kernel"] + ["row_gradient"] * (dtype != torch.float32)
    known = {"table_counts", "token_kernel", "row_gradient"}
    # Gradients in float16 come in the backward pass.
    forward = ["token_kernel"] * 2 if dtype == torch.float16 else []
    assert [name for name in sources if name in known] == forward + each_chunk * 2
    assert sources.count("growth_kernel") == (dtype != torch.float32)


@pytest.mark.parametrize("kind", ["one softmax", "mixture", "dense", "dense mixture"])
@pytest.mark.parametrize("precision", ["highest", "high", "bfloat16"])
@pytest.mark.parametrize("knots", [100_001, 1_001])
def test_short_rows_under_a_table(sources, request, kind, precision, knots):
    """Rounded gradients come from a compressed table if it is large, and exact ones from the table itself."""
    if precision == "high":
        request.getfixturevalue("tf32")
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    tokens, words, mixture = 1024, 5000, kind.endswith("mixture")
    with FakeTensorMode(), uncork.chunk_bytes(512 * words * (12 if mixture else 4)):
        shape = (tokens, 2, 64) if mixture else (tokens, 64)
        loss_of(shape, words, function=functions.PLIF(knots), dense="dense" in kind, dtype=dtype).backward()
    coarse = precision != "highest" and knots > 100_000
    rows = "row_stats" if coarse else "row_kernel"
    token = "distribution_kernel" if kind == "dense mixture" else "token_kernel"
    each_chunk = [rows] * (coarse or mixture) + [token, "table_gradient"]
    chunks = sources.count("table_gradient")
    assert chunks >= 2
    known = {"row_stats", "row_kernel", "token_kernel", "distribution_kernel", "table_gradient"}
    assert [name for name in sources if name in known] == each_chunk * chunks
    assert sources.count("compress_kernel") == coarse and sources.count("window_kernel") == 1


@pytest.mark.parametrize("kind", ["one softmax", "mixture", "dense", "dense mixture"])
@pytest.mark.parametrize("function", [functions.Scale, functions.SoftCap])
def test_a_product_is_rounded_before_the_highest_is_subtracted(launches, monkeypatch, function, kind):
    """Fused into one instruction, two equal products of huge logits would differ by their rounding error."""
    options = []
    launcher = lambda kernel, grid: lambda *_, **given: options.append((kernel.__name__, given))
    monkeypatch.setattr(runtime.KernelInterface, "__getitem__", launcher)
    shape = (64, 2, 64) if kind.endswith("mixture") else (64, 64)
    with FakeTensorMode():
        loss_of(shape, 1000, function=function(30.0), dense="dense" in kind).backward()
    evaluating = [given for name, given in options if "KIND" in given]
    assert evaluating and not any(given["enable_fp_fusion"] for given in evaluating)
