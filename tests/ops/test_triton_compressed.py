"""Short rows under a compressed table on a GPU, against the same kernels under the table itself."""

import pytest
import torch

import uncork
from tests.helpers import DEVICE, TRITON, assert_same, gradients, make_case, our_loss, ours
from uncork.functions import PLIF
from uncork.heads import MixtureHead


# A stream that is being captured must see torch's own allocation functions.
pytestmark = [
    pytest.mark.usefixtures("tf32"),
    pytest.mark.traced,
    pytest.mark.skipif(DEVICE.type != "cuda", reason="needs a GPU, and UNCORK_TEST_DEVICE=cuda to use it"),
]
OPTIONS = {
    "plain": {},
    "all": {"weight": True, "z_loss": 0.1, "ignore_index": 3, "reduction": "none"},
    "wide": {"spread": 8.0},
}


@pytest.fixture
def launched(monkeypatch):
    """How often the statistics came from the compressed table."""
    from uncork.ops.triton.row_stats import RowStats

    calls, write = [], RowStats.write
    monkeypatch.setattr(RowStats, "write", lambda *arguments: calls.append(write(*arguments)))
    return calls


@pytest.mark.parametrize("words", [301, 10_000, 10_003, 20_000])
@pytest.mark.parametrize("option", [*OPTIONS, "dense"])
@pytest.mark.parametrize("components", [None, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=lambda d: str(d)[6:])
def test_as_under_the_table_itself(dtype, components, option, words, monkeypatch, launched):
    from uncork.ops.triton import compressed

    options = {"dense": True} if option == "dense" else OPTIONS[option]
    case = make_case((300,), 16, words, components, function="plif1e5", dtype=dtype, **options)
    if option != "dense":
        case.target[::7] = 3
    with TRITON.on(170 * words * 4 * (components or 1)):
        found = gradients(our_loss(case, "triton"), case)
        assert len(launched) >= 2  # chunks
        monkeypatch.setattr(compressed, "worth_it", lambda *_: False)
        expected = gradients(our_loss(case, "triton"), case)
    losses = (found.pop("loss"), expected.pop("loss"))
    torch.testing.assert_close(*losses, rtol=1e-6, atol=5e-6 if dtype == torch.float32 else 1e-2)
    assert_same(found, expected, rtol=2e-3 if dtype == torch.float32 else 1e-2, atol=1e-6)


def test_float32_products_are_exact_if_torch_was_told_so(launched):
    torch.set_float32_matmul_precision("highest")
    ours(make_case((300,), 16, 1003, 3, function="plif1e5", dtype=torch.float32), TRITON)
    assert not launched


@pytest.mark.parametrize("chunk", [10**9, 300 * 1003 * 4], ids=["one_chunk", "several"])
def test_a_graph_of_a_mixture(chunk, launched):
    """The window of the compressed table follows the logits of each replay."""
    torch.manual_seed(0)
    head = MixtureHead(64, 1003, components=3, function=PLIF(100_000, 20.0, "random", seed=0)).to(DEVICE)
    hidden = torch.randn(300, 64, device=DEVICE, requires_grad=True)
    target = torch.randint(0, 1003, (300,), device=DEVICE)
    inputs = [hidden, *head.parameters()]

    def step():
        loss = head(hidden, target, backend="triton")
        return dict(enumerate([loss.detach(), *torch.autograd.grad(loss, inputs)]))

    with uncork.chunk_bytes(chunk):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # compiles the kernels
            for _ in range(2):
                step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            results = step()
        assert launched
        for shift in (0.0, 6.0):
            with torch.no_grad():
                hidden.normal_()
                head.bias.fill_(shift)
            graph.replay()
            assert_same({key: x.clone() for key, x in results.items()}, step(), rtol=1e-5, atol=1e-6)
