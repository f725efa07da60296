"""What only a GPU can show: torch.compile, CUDA graphs, no waiting for the device, real sizes.

UNCORK_TEST_DEVICE=cuda pytest -k triton tests/ops tests/heads tests/functions
"""

import pytest
import torch
from torch.nn.functional import cross_entropy

import uncork
from tests.helpers import (
    DEVICE,
    TRITON,
    Judged,
    assert_as_accurate_as_torch,
    assert_no_worse,
    assert_same,
    gradients,
    make_case,
    our_loss,
    ours,
    over_functions,
    rms,
    truth,
)
from uncork.functions import PLIF, Scale
from uncork.heads import MixtureHead, MonotonicHead, SoftmaxHead
from uncork.ops.triton import nvrtc


# A tracer, and a stream that is being captured, must see torch's own allocation functions.
pytestmark = [
    pytest.mark.traced,
    pytest.mark.skipif(DEVICE.type != "cuda", reason="needs a GPU, and UNCORK_TEST_DEVICE=cuda to use it"),
]

N, D, V = 300, 64, 1003
HEADS = {
    "softmax": lambda: SoftmaxHead(D, V),
    "scale": lambda: MonotonicHead(D, V, Scale(1.2)),
    "plif": lambda: MonotonicHead(D, V, PLIF(1001, 3.0, "random", seed=0)),
    "plif1e5": lambda: MonotonicHead(D, V, PLIF()),
    "mos": lambda: MixtureHead(D, V, components=3),
    # Not with random slopes: a compiler may round latent vectors in another way, and a logit next to a knot
    # is then read on its other side, where the slope is another.
    "mos_plif": lambda: MixtureHead(D, V, components=3, function=PLIF(1001, 3.0)),
}
over_heads = pytest.mark.parametrize("name", HEADS)
over_reductions = pytest.mark.parametrize("reduction", ["mean", "none"])


def batch(seed, tokens=N, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(tokens, D, generator=generator)
    return hidden.to(DEVICE, dtype), torch.randint(0, V, (tokens,), generator=generator).to(DEVICE)


def head_of(name, dtype=torch.float32):
    torch.manual_seed(0)
    head = HEADS[name]().to(DEVICE, dtype)
    with torch.no_grad():
        head.weight.mul_(4.0)  # spread the logits
    return head


def step(call, head, hidden, target, **keywords):
    """The loss and the gradients of the hidden states and every parameter, by name."""
    leaf = hidden if hidden.requires_grad else hidden.clone().requires_grad_()
    loss = call(leaf, target, backend="triton", **keywords)
    grads = torch.autograd.grad(2.5 * loss.sum(), [leaf, *head.parameters()])
    names = ["loss", "hidden", *(name for name, _ in head.named_parameters())]
    return dict(zip(names, [loss.detach(), *grads], strict=True))


@pytest.mark.filterwarnings("ignore")  # what torch's compiler warns of is torch's own
@over_reductions
@over_heads
def test_compile(name, reduction):
    torch._dynamo.reset()
    head = head_of(name)
    compiled = torch.compile(head, fullgraph=True)
    for seed in range(2):
        hidden, target = batch(seed)
        expected = step(head, head, hidden, target, reduction=reduction)
        found = step(compiled, head, hidden, target, reduction=reduction)
        assert_same(found, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["plif", "mos_plif"])
def test_compile_for_any_batch_size(name):
    torch._dynamo.reset()
    head = head_of(name)
    compiled = torch.compile(head, fullgraph=True, dynamic=True)
    for tokens in (9, 300, 17):
        hidden, target = batch(0, tokens)
        expected = step(head, head, hidden, target)
        assert_same(step(compiled, head, hidden, target), expected, rtol=1e-5, atol=1e-7)


@over_reductions
@over_heads
def test_autocast(name, reduction):
    """bfloat16 operands: the loss and every gradient no worse than torch's own under autocast."""
    head, (hidden, target) = head_of(name), batch(0)

    def by_torch(dtype):
        copied = head_of(name).to(dtype)
        leaf = hidden.detach().to(dtype).requires_grad_()
        with torch.autocast("cuda", torch.bfloat16, enabled=dtype == torch.float32):
            loss = cross_entropy(copied(leaf), target, reduction=reduction)
        grads = torch.autograd.grad(2.5 * loss.sum(), [leaf, *copied.parameters()])
        names = ["loss", "hidden", *(n for n, _ in copied.named_parameters())]
        return dict(zip(names, [loss.detach(), *grads], strict=True))

    with torch.autocast("cuda", torch.bfloat16):
        found = step(head, head, hidden, target, reduction=reduction)
    assert all(value.dtype == torch.float32 for value in found.values())
    right, torchs = by_torch(torch.float64), by_torch(torch.float32)
    for key, value in right.items():
        assert rms(found[key] - value) <= 1.5 * rms(torchs[key] - value) + 2e-3 * rms(value), key


def captured(head, hidden, target, **keywords):
    """A CUDA graph of one training step, and its results. Capturing fails where the host has to wait."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # compiles the kernels
        for _ in range(2):
            step(head, head, hidden, target, **keywords)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = step(head, head, hidden, target, **keywords)
    return graph, results


@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream")
@over_heads
def test_graphed_callables(name):
    """What docs/howto/small-batches.md advises: calls that replay one graph forward and one backward."""
    head, graphed = head_of(name), head_of(name)
    sample, target = batch(0)
    torch.cuda.make_graphed_callables(graphed, (sample.requires_grad_(), target))
    call = lambda hidden, target, backend: graphed(hidden, target)
    for seed in (1, 2):
        hidden, target = batch(seed)
        expected = step(head, head, hidden, target)
        assert_same(step(call, graphed, hidden, target), expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("chunk", [10**9, 300_000], ids=["one_chunk", "several"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=lambda d: str(d)[6:])
@over_reductions
@over_heads
def test_cuda_graph(name, reduction, dtype, chunk):
    """A replay with new hidden states and targets copied in gives what an eager step gives for them."""
    head, (hidden, target) = head_of(name, dtype), batch(0, dtype=dtype)
    hidden.requires_grad_()
    with uncork.chunk_bytes(chunk):
        graph, results = captured(head, hidden, target, reduction=reduction)
        for seed in (1, 2):
            new_hidden, new_target = batch(seed, dtype=dtype)
            with torch.no_grad():
                hidden.copy_(new_hidden)
                target.copy_(new_target)
            graph.replay()
            replayed = {key: value.clone() for key, value in results.items()}
            expected = step(head, head, hidden, target, reduction=reduction)
            tolerance = 1e-5 if dtype == torch.float32 else 1e-2
            assert_same(replayed, expected, rtol=tolerance, atol=1e-7)


@pytest.mark.parametrize(
    "option",
    [
        {},
        {"weight": True, "z_loss": 0.1, "ignore_index": 3},
        {"weight": True, "label_smoothing": 0.1, "ignore_index": 3},
    ],
    ids=["plain", "all", "smoothed"],
)
def test_a_graph_of_an_optimizer_step(option):
    """Parameters that change in place between replays are read again: twenty steps train as eager ones do."""

    def train(use_graph):
        head, (hidden, target) = head_of("plif"), batch(0)
        weight = torch.rand(V, generator=torch.Generator().manual_seed(0)).to(DEVICE)
        options = option | ({"weight": weight} if "weight" in option else {})
        run = lambda: step(head, head, hidden, target, **options)
        graph, results = captured(head, hidden, target, **options) if use_graph else (None, {})
        for _ in range(20):
            if graph is not None:
                graph.replay()
            found = results if graph is not None else run()
            with torch.no_grad():
                for key, parameter in head.named_parameters():
                    parameter.sub_(0.1 * found[key])
        return {key: p.detach().clone() for key, p in head.named_parameters()}

    assert_same(train(True), train(False), rtol=1e-4, atol=1e-6)


@pytest.fixture
def waiting_is_an_error():
    """A context in which whatever makes the host wait for the device raises."""

    class Strict:
        def __enter__(self):
            torch.cuda.set_sync_debug_mode("error")

        def __exit__(self, *_):
            torch.cuda.set_sync_debug_mode("default")

    return Strict()


SYNC_OPTIONS = {
    "plain": {},
    "all_but_smoothed": {"weight": True, "z_loss": 0.1, "ignore_index": 3},
    "smoothed": {"label_smoothing": 0.1},
    "dense": {"dense": True},
    "mixture": {"components": 3},
}


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_a_synchronisation_would_be_noticed(waiting_is_an_error):
    x = torch.ones(3, device=DEVICE)
    with waiting_is_an_error, pytest.raises(RuntimeError, match="synchronizing"):
        x.sum().item()


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=lambda d: str(d)[6:])
@pytest.mark.parametrize("option", SYNC_OPTIONS)
@over_reductions
@over_functions
def test_nothing_waits_for_the_device(function, reduction, option, dtype, waiting_is_an_error):
    case = make_case(
        (20,), 8, 37, function=function, dtype=dtype, reduction=reduction, **SYNC_OPTIONS[option]
    )
    expected = ours(case, TRITON)  # compiles the kernels, which does wait
    with TRITON.on(), waiting_is_an_error:
        found = gradients(our_loss(case, "triton"), case)
    assert_same(found, expected, rtol=1e-5 if dtype == torch.float32 else 1e-2, atol=1e-6)


@pytest.mark.parametrize("function", [None, "scale", "softcap", "plif1001", "plif1e5", "network"])
def test_bfloat16_in_several_chunks(function):
    """4096 x 20011 logits in bfloat16 take 156 MiB: with 32 MiB to use, the loss is as accurate as torch."""
    tokens, words = 4096, 20_011
    case = make_case((tokens,), 64, words, function=function, dtype=torch.bfloat16, reduction="none")
    for chunk in (32 * 2**20, 2**33):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        with TRITON.on(chunk):
            gradients(our_loss(case, "triton"), case)
        extra = torch.cuda.max_memory_allocated() - before
        assert (extra < 2 * tokens * words) == (chunk < 2**33), f"{extra / 2**20:.0f} MiB"
        assert_as_accurate_as_torch(case, TRITON, chunk=chunk)


LONG_OPTIONS = {
    "plain": {},
    "all": {"weight": True, "z_loss": 0.1, "ignore_index": 3, "reduction": "none"},
    "wide": {"spread": 8.0},
    "smoothed": {"label_smoothing": 0.1, "weight": True, "ignore_index": 3},
}


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("words", [40_003, 40_960])
@pytest.mark.parametrize("option", LONG_OPTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=lambda d: str(d)[6:])
@pytest.mark.parametrize("function", ["plif1e5", "network"])
def test_long_rows_under_a_table(function, dtype, option, words, waiting_is_an_error):
    """Rows that are counted, and in half precision take dL/dz from a compressed table."""
    case = make_case((300,), 16, words, function=function, dtype=dtype, **LONG_OPTIONS[option])
    case.target[::7] = 3
    chunk = 170 * words * 4
    assert_as_accurate_as_torch(case, TRITON, chunk=chunk)
    # In the same chunks: others may multiply in another order, and a logit next to a knot lie behind it.
    with TRITON.on(chunk):
        expected = gradients(our_loss(case, "triton"), case)
    with TRITON.on(chunk), waiting_is_an_error:
        found = gradients(our_loss(case, "triton"), case)
    assert_same(found, expected, rtol=1e-5 if dtype == torch.float32 else 1e-2, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=lambda d: str(d)[6:])
def test_a_graph_of_long_rows_under_a_table(dtype):
    """The window of the compressed table follows the logits of each replay."""
    torch.manual_seed(0)
    head = MonotonicHead(D, 40_003, PLIF(100_000, 20.0, "random", seed=0)).to(DEVICE, dtype)
    hidden, target = batch(0, dtype=dtype)
    hidden.requires_grad_()
    graph, results = captured(head, hidden, target)
    for shift in (0.0, 6.0):
        with torch.no_grad():
            hidden.copy_(batch(1, dtype=dtype)[0])
            head.bias.fill_(shift)
        graph.replay()
        replayed = {key: value.clone() for key, value in results.items()}
        assert_same(replayed, step(head, head, hidden, target), rtol=1e-2, atol=1e-6)


@pytest.mark.parametrize("knots", [2, 100, 1_000, 100_000, 1_000_000])
@pytest.mark.parametrize("equal", [False, True], ids=["spread", "equal"])
def test_contention_at_a_real_size(equal, knots):
    """Ten million logits and few knots, or all in one interval: the sums of the knots keep their digits."""
    case = make_case((512,), 32, 20_011, function=PLIF(knots, 20.0, "random", seed=0), dtype=torch.float32)
    if equal:
        with torch.no_grad():
            case.input.fill_(0.25)
            case.weight.fill_(0.125)
            case.bias.zero_()
    right, found = truth(case), ours(case, TRITON)
    assert abs(found["loss"] - right["loss"]) <= 1e-5 * abs(right["loss"])
    moved = (found["function.v"] - right["function.v"]).double().cumsum(0).abs().max()
    # All equal, the pushes of words and targets cancel: 1 up and 1 down, times the length of the table.
    gross = 2.0 * 40.0 if equal else 1.0
    assert moved <= 1e-4 * right["function.v"].abs().sum() + 1e-6 * gross


@pytest.mark.parametrize("function", [None, "plif1001"])
def test_more_logits_than_32_bits_can_count(function):
    """One chunk of 2.6e9 logits: no index into it may be a 32-bit number."""
    tokens, words = 20_001, 128_256
    case = make_case((tokens,), 8, words, function=function, dtype=torch.bfloat16, reduction="none")
    with TRITON.on(2**36):
        found = gradients(our_loss(case, "triton"), case)
    with TRITON.on(2**30):
        expected = gradients(our_loss(case, "triton"), case)
    assert_same(found, expected, rtol=1e-2, atol=1e-5)
    torch.testing.assert_close(found["loss"], expected["loss"], rtol=1e-6, atol=1e-6)
    # Row by row: a wrong index would spoil whole rows, while one number of a row may cancel to nothing.
    apart_N = (found["input"] - expected["input"]).float().norm(dim=1)
    assert (apart_N <= 1e-2 * expected["input"].float().norm(dim=1)).all()


@pytest.mark.parametrize("components", [None, 3])
@pytest.mark.parametrize("function", ["plif7", "plif1001", "plif1e5", "network", "users_own"])
def test_without_a_runtime_compiler(function, components, monkeypatch):
    """The integer sums take over, say so once, and give the same."""
    case = make_case((20,), 8, 301, components, function=function, dtype=torch.float32, z_loss=0.1)
    expected = ours(case, TRITON)

    def refuse(*_):
        raise RuntimeError("no NVRTC")

    monkeypatch.setattr(nvrtc, "compiled", refuse)
    nvrtc.can_compile.cache_clear()
    try:
        with pytest.warns(UserWarning, match=r"\(no NVRTC\)\. Gradients .* slower\. Check .* NVRTC"):
            found = ours(case, TRITON)
        again = ours(case, TRITON)  # in silence
    finally:
        nvrtc.can_compile.cache_clear()
    assert_same(found, expected, rtol=2e-6, atol=1e-6)
    assert_same(again, found, rtol=0, atol=0)


@over_heads
def test_as_accurate_as_torch_at_a_real_size(name):
    head = head_of(name)
    hidden, target = batch(0, 2048)
    found = step(head, head, hidden, target)

    def by_torch(dtype):
        copied, leaf = head_of(name).to(dtype), hidden.to(dtype).requires_grad_()
        scores = copied(leaf)
        loss = cross_entropy(scores, target)
        grads = torch.autograd.grad(2.5 * loss, [scores, leaf, *copied.parameters()])
        names = ["loss", "hidden", *(n for n, _ in copied.named_parameters())]
        mass = (grads[0].abs() * scores.abs().clamp(min=1)).sum().item()
        return dict(zip(names, [loss.detach(), *grads[1:]], strict=True)), mass

    right, mass = by_torch(torch.float64)
    assert_no_worse([Judged(found, by_torch(torch.float32)[0], right, mass)])
