"""How many operations and launches one call takes: at small sizes they, not the GPU, are its time.

Counted without a GPU, on fake tensors that say they are on one; kernels are counted instead of launched.
"""

import re
from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import uncork
from uncork import functions
from uncork.ops import chunked, custom, matmul, triton, validate


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
    from uncork.ops.triton import nvrtc

    names = []
    properties = SimpleNamespace(multi_processor_count=132, shared_memory_per_block_optin=232_448)
    launcher = lambda kernel, grid: lambda *_, **__: names.append(kernel.__name__)
    monkeypatch.setattr(runtime.KernelInterface, "__getitem__", launcher)
    monkeypatch.setattr(nvrtc, "compiled", lambda name, *_: lambda *_, **__: names.append(name))
    monkeypatch.setattr(nvrtc, "can_compile", lambda device: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    monkeypatch.setattr(torch.Tensor, "is_cpu", False)
    monkeypatch.setitem(chunked.DEFAULT_CHUNK_BYTES, "cpu", chunked.DEFAULT_CHUNK_BYTES["cuda"])
    monkeypatch.setattr(matmul, "TF32_ON", {"cpu"})
    monkeypatch.setattr(triton, "obstacle", lambda device: "")
    monkeypatch.setattr(validate, "values", lambda problem: None)
    monkeypatch.setattr(custom, "PLAIN", (*custom.PLAIN, FakeTensor))
    return names


def forward_and_backward(function, components, words=WORDS) -> Counter:
    """The operations of torch that a step takes."""
    with FakeTensorMode(), Operations() as operations_of_torch:
        shape = (TOKENS, WIDTH) if components is None else (TOKENS, components, WIDTH)
        x, weight = torch.empty(shape).requires_grad_(), torch.empty(words, WIDTH).requires_grad_()
        target = torch.empty(TOKENS, dtype=torch.int64)
        keywords = {"function": None if function is None else function(), "backend": "triton"}
        log_prior = None if components is None else torch.empty(shape[:2]).requires_grad_()
        operations_of_torch.counted.clear()
        if log_prior is None:
            loss = uncork.linear_cross_entropy(x, weight, target, **keywords)
        else:
            loss = uncork.mixture_cross_entropy(x, log_prior, weight, target, **keywords)
        loss.backward()
    assert operations_of_torch.counted["aten.mm.out"] + operations_of_torch.counted["aten.mm.default"] >= 2
    return operations_of_torch.counted


@pytest.mark.parametrize(
    ("function", "components", "operations", "kernels"),
    [
        (None, None, 21, 2),
        (functions.SigSoftmax, None, 21, 2),
        (functions.Scale, None, 32, 2),
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
        x, weight = (torch.empty(n, 64, dtype=dtype).requires_grad_() for n in (512, 40_000))
        target = torch.empty(512, dtype=torch.int64)
        loss = uncork.linear_cross_entropy(x, weight, target, function=functions.PLIF(), backend="triton")
        loss.backward()
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
        x = torch.empty((tokens, 2, 64) if mixture else (tokens, 64), dtype=dtype).requires_grad_()
        weight = torch.empty(words, 64, dtype=dtype).requires_grad_()
        target = torch.empty(tokens, words) if "dense" in kind else torch.empty(tokens, dtype=torch.int64)
        keywords = {"function": functions.PLIF(knots=knots), "backend": "triton"}
        if mixture:
            prior = torch.empty(tokens, 2).requires_grad_()
            loss = uncork.mixture_cross_entropy(x, prior, weight, target, **keywords)
        else:
            loss = uncork.linear_cross_entropy(x, weight, target, **keywords)
        loss.backward()
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
    mixture = kind.endswith("mixture")
    with FakeTensorMode():
        x = torch.empty((64, 2, 64) if mixture else (64, 64)).requires_grad_()
        weight = torch.empty(1000, 64).requires_grad_()
        target = torch.empty(64, 1000) if "dense" in kind else torch.empty(64, dtype=torch.int64)
        prior = [torch.empty(64, 2).requires_grad_()] if mixture else []
        loss_of = uncork.mixture_cross_entropy if mixture else uncork.linear_cross_entropy
        loss_of(x, *prior, weight, target, function=function(30.0), backend="triton").backward()
    evaluating = [given for name, given in options if "KIND" in given]
    assert evaluating and not any(given["enable_fp_fusion"] for given in evaluating)
