"""torch.compile sees one opaque call: same losses and gradients, no graph breaks, any batch size."""

import pytest
import torch
from torch import nn
from torch._dynamo.exc import Unsupported

import uncork
from tests.helpers import Bend, assert_same
from uncork.functions import PLIF, MonotoneNetwork, Scale, SoftCap, Tabulated
from uncork.heads import MixtureHead, MonotonicHead, SoftmaxHead


pytestmark = pytest.mark.traced

D, V = 6, 13
HEADS = {
    "softmax": lambda: SoftmaxHead(D, V),
    "scale": lambda: MonotonicHead(D, V, Scale(1.2)),
    "softcap": lambda: MonotonicHead(D, V, SoftCap(2.0), bias=False),
    "plif": lambda: MonotonicHead(D, V, PLIF(50, 3.0, "random", seed=0)),
    "network": lambda: MonotonicHead(D, V, MonotoneNetwork(3, knots=200)),
    "tabulated": lambda: MonotonicHead(D, V, Tabulated(Bend(), knots=200)),
    "mos_plif": lambda: MixtureHead(D, V, components=3, function=PLIF(50, 3.0, "random", seed=0)),
}


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()


def loss_and_gradients(step, head, hidden, target, **keywords):
    """Of one training step, by name."""
    head.zero_grad()
    leaf = hidden.clone().requires_grad_()
    loss = step(leaf, target, **keywords)
    (2.5 * loss.sum()).backward()
    grads = {name: p.grad.clone() for name, p in head.named_parameters()}
    return {"loss": loss.detach(), "hidden": leaf.grad} | grads


def batch(tokens):
    return torch.randn(tokens, D), torch.randint(0, V, (tokens,))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("name", HEADS)
def test_loss_and_gradients(name, reduction):
    head = HEADS[name]()
    compiled = torch.compile(head, fullgraph=True, backend="aot_eager")
    hidden, target = batch(9)
    expected = loss_and_gradients(head, head, hidden, target, reduction=reduction)
    found = loss_and_gradients(compiled, head, hidden, target, reduction=reduction)
    assert_same(found, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", ["plif", "mos_plif"])
def test_dynamic_shapes(name):
    """One compilation serves every batch size."""
    head = HEADS[name]()
    compiled = torch.compile(head, fullgraph=True, backend="aot_eager", dynamic=True)
    for tokens in (9, 4, 17):
        hidden, target = batch(tokens)
        expected = loss_and_gradients(head, head, hidden, target)
        assert_same(loss_and_gradients(compiled, head, hidden, target), expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", ["plif", "mos_plif"])
def test_no_grad_and_scores(name):
    head = HEADS[name]()
    compiled = torch.compile(head, fullgraph=True, backend="aot_eager")
    hidden, target = batch(5)
    with torch.no_grad():
        torch.testing.assert_close(compiled(hidden, target), head(hidden, target))
        torch.testing.assert_close(compiled(hidden), head(hidden))


@pytest.mark.parametrize("name", ["plif", "mos_plif"])
def test_predict_is_one_graph_for_any_number_of_tokens(name):
    """A graph of chunks would grow with the tokens, and so would the time to compile it."""
    head = HEADS[name]()
    nodes = []

    def count(graph, inputs):
        nodes.append(len(graph.graph.nodes))
        return graph.forward

    for tokens in (3, 60):
        torch._dynamo.reset()
        hidden, _ = batch(tokens)
        words = torch.compile(head.predict, fullgraph=True, backend=count, dynamic=False)(hidden)
        assert torch.equal(words, head.predict(hidden))
    assert len(nodes) == 2 and nodes[0] == nodes[1]
    torch._dynamo.reset()
    compiled = torch.compile(head.predict, fullgraph=True, backend=count, dynamic=True)
    for tokens in (9, 4, 17):
        hidden, _ = batch(tokens)
        assert torch.equal(compiled(hidden), head.predict(hidden))
    assert len(nodes) == 3


def test_a_whole_model_and_its_optimizer():
    """Three steps of a compiled model train as three steps of the plain one."""

    def train(wrap):
        torch.manual_seed(1)
        body, head = nn.Linear(D, D), HEADS["plif"]()
        step = wrap(lambda x, y: head(torch.tanh(body(x)), y))
        optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.5)
        losses = []
        for _ in range(3):
            loss = step(*batch(8))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    plain = train(lambda f: f)
    compiled = train(lambda f: torch.compile(f, fullgraph=True, backend="aot_eager"))
    assert plain[-1] < plain[0]
    torch.testing.assert_close(torch.tensor(compiled), torch.tensor(plain))


def test_options_and_budget_under_compile():
    head = HEADS["plif"]()
    keywords = {"label_smoothing": 0.1, "z_loss": 0.1, "ignore_index": 2, "weight": torch.rand(V)}
    compiled = torch.compile(head, fullgraph=True, backend="aot_eager")
    hidden, target = batch(9)
    expected = loss_and_gradients(head, head, hidden, target, **keywords)
    with uncork.chunk_bytes(2_000):
        found = loss_and_gradients(compiled, head, hidden, target, **keywords)
    assert_same(found, expected, rtol=1e-6, atol=1e-7)


# Where a graph breaks torch looks for .grad everywhere, and hides the warning from all but error filters.
@pytest.mark.filterwarnings("ignore:The .grad attribute")
def test_a_users_module_breaks_the_graph_and_says_why():
    head = MonotonicHead(D, V, Bend())
    hidden, target = batch(7)
    expected = loss_and_gradients(head, head, hidden, target)
    compiled = torch.compile(head, backend="aot_eager")
    assert_same(loss_and_gradients(compiled, head, hidden, target), expected, rtol=1e-6, atol=1e-7)
    torch._dynamo.reset()
    with pytest.raises(Unsupported, match="uncork.functions.Tabulated"):
        torch.compile(head, fullgraph=True, backend="aot_eager")(hidden, target)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")  # torch's own imports
def test_inductor():
    """The default compiler, once: it writes and builds C++, which takes a while."""
    head = HEADS["plif"]()
    compiled = torch.compile(head, fullgraph=True)
    hidden, target = batch(9)
    expected = loss_and_gradients(head, head, hidden, target)
    assert_same(loss_and_gradients(compiled, head, hidden, target), expected, rtol=1e-5, atol=1e-6)
