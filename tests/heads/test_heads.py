"""What every head is: one distribution, the same for scores, log-probabilities, losses and predictions."""

import copy

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import cross_entropy

import uncork
from tests.helpers import (
    ALL_HEADS,
    DEVICE,
    Judged,
    as_read,
    assert_no_worse,
    assert_same,
    over_backends,
    over_heads,
)
from uncork.functions import PLIF, Identity, Scale, SoftCap
from uncork.heads import MixtureHead, MonotonicHead, SoftmaxHead


D, V = 6, 17


def make(name, dtype=torch.float64):
    head = ALL_HEADS[name](D, V).to(DEVICE, dtype)
    with torch.no_grad():
        head.weight.mul_(4.0)  # spread the logits
    return head


def hidden_of(shape, dtype=torch.float64):
    return torch.randn(*shape, D, dtype=dtype).to(DEVICE)


def targets_of(shape):
    return torch.randint(0, V, shape).to(DEVICE)


def read_by(head, backend):
    """A copy of the head with the function this backend evaluates: of a smooth one it may be a table."""
    copied = copy.deepcopy(head)
    if getattr(copied, "function", None) is not None:
        copied.function = as_read(copied.function, backend)
    return copied


over_shapes = pytest.mark.parametrize("shape", [(), (5,), (2, 3), (0,)], ids=str)


@over_shapes
@over_heads
def test_probabilities_sum_to_one(name, shape):
    head, hidden = make(name), hidden_of(shape)
    log_p = head.log_prob(hidden)
    assert log_p.shape == (*shape, V)
    torch.testing.assert_close(
        log_p.exp().sum(-1), torch.ones(shape, dtype=torch.float64, device=DEVICE), rtol=1e-12, atol=1e-12
    )


@over_shapes
@over_heads
def test_scores_are_logits_of_the_distribution(name, shape):
    head, hidden = make(name), hidden_of(shape)
    torch.testing.assert_close(head(hidden).softmax(-1), head.log_prob(hidden).exp(), rtol=1e-12, atol=1e-12)


@over_backends
@over_heads
def test_loss_is_minus_log_prob(name, backend):
    head, hidden, target = make(name), hidden_of((2, 7)), targets_of((2, 7))
    log_p = read_by(head, backend).log_prob(hidden).gather(-1, target[..., None])[..., 0]
    with backend.on():
        losses = {r: head(hidden, target, reduction=r, backend=backend.name) for r in ("none", "sum", "mean")}
    torch.testing.assert_close(losses["none"], -log_p, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(losses["sum"], -log_p.sum(), rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(losses["mean"], -log_p.mean(), rtol=1e-11, atol=1e-11)


def gradients_of(loss, head, hidden):
    """The loss and the gradients of the hidden states and of every parameter, by name."""
    names = [name.replace("function.function.", "function.") for name, _ in head.named_parameters()]
    grads = torch.autograd.grad(loss, [hidden, *head.parameters()])
    return dict(zip(["loss", "hidden", *names], [loss.detach(), *grads], strict=True))


@over_backends
@over_heads
def test_as_accurate_as_torch(name, backend):
    """float32, where the kernels are: loss and every gradient against float64, no worse than torch's own."""
    head, hidden = make(name, torch.float32), hidden_of((3, 7), torch.float32).requires_grad_()
    target = targets_of((3, 7))
    with backend.on():
        found = gradients_of(head(hidden, target, backend=backend.name), head, hidden)

    def by_torch(dtype):
        copied, states = read_by(head, backend).to(dtype), hidden.detach().to(dtype).requires_grad_()
        scores = copied(states)
        loss = cross_entropy(scores.flatten(0, 1), target.flatten())
        (g,) = torch.autograd.grad(loss, scores, retain_graph=True)
        return gradients_of(loss, copied, states), (g.abs() * scores.abs().clamp(min=1)).sum().item()

    right, mass = by_torch(torch.float64)
    assert_no_worse([Judged(found, by_torch(torch.float32)[0], right, mass)])


@over_heads
def test_options_are_those_of_cross_entropy(name):
    """Scores through torch's cross_entropy, every keyword of it, against the head's own loss."""
    head, hidden = make(name), hidden_of((9,))
    if name == "network":
        head.function.tabulate = False
    target = torch.randint(0, V, (9,))
    target[3] = 2
    keywords = {"weight": torch.rand(V, dtype=torch.float64), "ignore_index": 2, "label_smoothing": 0.1}
    for reduction in ("mean", "sum", "none"):
        expected = cross_entropy(head(hidden), target, reduction=reduction, **keywords)
        torch.testing.assert_close(head(hidden, target, reduction=reduction, **keywords), expected)
    p = torch.rand(9, V, dtype=torch.float64).softmax(-1)
    torch.testing.assert_close(head(hidden, p), cross_entropy(head(hidden), p))


@over_heads
def test_gradients_of_scores_where_a_word_is_masked(name):
    """A bias of -inf takes a word out: a loss of one's own over scores trains as the head's own does."""
    head, hidden, target = make(name), hidden_of((9,)).requires_grad_(), targets_of((9,)) % (V - 1)
    if head.bias is None:
        head.bias = torch.nn.Parameter(torch.zeros(V, dtype=torch.float64, device=DEVICE))
    with torch.no_grad():
        head.bias[V - 1] = -torch.inf
    own = gradients_of(head(hidden, target, backend="reference"), head, hidden)
    found = gradients_of(cross_entropy(head(hidden), target), head, hidden)
    assert all(gradient.isfinite().all() for gradient in found.values())
    assert_same(found, own, rtol=1e-12, atol=1e-15)


def test_detect_nonfinite_names_the_token_of_a_mixture():
    """Its components are no tokens."""
    head, hidden = MixtureHead(D, V, components=2), torch.randn(2, 3, D)
    with uncork.detect_nonfinite():
        head(hidden)
    hidden[1, 1, 0] = torch.nan
    with uncork.detect_nonfinite(), pytest.raises(FloatingPointError, match="token 4, component 0, word 0"):
        head(hidden)


@over_shapes
@over_heads
def test_predict_is_the_most_probable_word(name, shape):
    head, hidden = make(name), hidden_of(shape)
    words = head.predict(hidden)
    assert words.shape == shape and words.dtype == torch.int64 and not words.requires_grad
    p = head.log_prob(hidden)
    torch.testing.assert_close(p.gather(-1, words[..., None])[..., 0], p.amax(-1) if p.numel() else p[..., 0])


@over_heads
def test_predict_in_chunks(name):
    head, hidden = make(name, torch.float32), hidden_of((50,), torch.float32)
    whole = head.predict(hidden)
    with uncork.chunk_bytes(1):
        assert torch.equal(head.predict(hidden), whole)


def test_predict_counts_every_component_in_its_budget(monkeypatch):
    head, lengths = MixtureHead(D, V, components=5), []
    ranking = head.ranking
    monkeypatch.setattr(head, "ranking", lambda part: lengths.append(len(part)) or ranking(part))
    with uncork.chunk_bytes(32 * V * 5 * 3):
        head.predict(torch.randn(8, D))
    assert lengths == [3, 3, 2]


def test_predict_sees_past_a_saturated_function():
    """Far beyond its cap every score is the same float32; the logits still know the order."""
    head = MonotonicHead(1, 3, SoftCap(1.0), bias=False)
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[50.0], [70.0], [60.0]]))
    assert head(torch.ones(1, 1)).unique().numel() == 1
    assert head.predict(torch.ones(1, 1)).item() == 1


def test_a_function_of_one_is_the_softmax():
    softmax = SoftmaxHead(D, V)
    hidden, target = torch.randn(8, D), torch.randint(0, V, (8,))
    for function in (Identity(), Scale(1.0), PLIF()):
        head = MonotonicHead(D, V, function)
        head.load_state_dict(softmax.state_dict(), strict=False)
        torch.testing.assert_close(head(hidden, target), softmax(hidden, target))
        torch.testing.assert_close(head(hidden), softmax(hidden), rtol=1e-6, atol=1e-6)


def test_one_component_is_a_softmax_over_the_latent():
    mixture = MixtureHead(D, V, components=1, embedding_features=4).double()
    softmax = SoftmaxHead(4, V).double()
    with torch.no_grad():
        softmax.weight.copy_(mixture.weight)
        softmax.bias.copy_(mixture.bias)
    hidden, target = hidden_of((8,)), torch.randint(0, V, (8,))
    latent = torch.tanh(mixture.latent(hidden))
    torch.testing.assert_close(mixture(hidden, target), softmax(latent, target))
    torch.testing.assert_close(mixture.log_prob(hidden), softmax.log_prob(latent))


def test_the_mixture_formula():
    """sum_k pi_k softmax(W tanh(U_k h + c_k) + b), written out."""
    head, hidden = make("mos"), hidden_of((5,))
    U = head.latent.weight.view(4, D + 2, D)
    c = head.latent.bias.view(4, D + 2)
    p = torch.zeros(5, V, dtype=torch.float64)
    pi = (hidden @ head.prior.weight.T).softmax(-1)
    for k in range(4):
        g = torch.tanh(hidden @ U[k].T + c[k])
        p = p + pi[:, k : k + 1] * (g @ head.weight.T + head.bias).softmax(-1)
    torch.testing.assert_close(head.log_prob(hidden), p.log())


def test_mixture_dropout_only_in_training():
    head = MixtureHead(D, V, components=3, dropout=0.5)
    hidden = torch.randn(4, D)
    assert not torch.equal(head(hidden), head(hidden))
    head.eval()
    assert torch.equal(head(hidden), head(hidden))


def test_mixture_dropout_acts_on_the_latent_vectors_themselves():
    head, hidden = MixtureHead(D, V, components=3, dropout=0.5), 3.0 * torch.randn(20, D)
    dropped, _ = head.latents(hidden)
    kept, _ = head.eval().latents(hidden)
    assert 0.3 < (dropped == 0.0).double().mean() < 0.7
    torch.testing.assert_close(dropped, torch.where(dropped == 0.0, 0.0, 2.0 * kept))


def test_mixture_dropout_can_be_replaced():
    head = MixtureHead(D, V, components=3, dropout=0.5)
    seen = []

    class Watch(torch.nn.Module):
        def forward(self, x):
            seen.append(tuple(x.shape))
            return x

    head.dropout = Watch()
    head(torch.randn(2, 4, D))
    assert seen == [(2, 4, 3, D)]


@over_heads
def test_low_precision_scores(name):
    """bfloat16 weights and states: scores in float32, close to what float64 makes of the same numbers."""
    head = make(name, torch.bfloat16)
    hidden = hidden_of((20,), torch.bfloat16)
    scores = head(hidden)
    assert scores.dtype == torch.float32
    loss = head(hidden, torch.randint(0, V, (20,)))
    assert loss.dtype == torch.float32 and loss.isfinite()
    loss.backward()
    assert all(p.grad.dtype == torch.bfloat16 for p in head.parameters())


def test_the_prior_of_a_low_precision_mixture_is_normalised_in_float32():
    head = MixtureHead(D, V, components=15, dtype=torch.bfloat16)
    _, log_prior = head.latents(torch.randn(9, D, dtype=torch.bfloat16))
    assert log_prior.dtype == torch.float32
    torch.testing.assert_close(log_prior.exp().sum(-1), torch.ones(9), rtol=0, atol=1e-6)


@over_heads
def test_autocast(name):
    head, hidden = make(name, torch.float32), hidden_of((20,), torch.float32)
    target = torch.randint(0, V, (20,))
    with torch.autocast("cpu", torch.bfloat16):
        loss, scores = head(hidden, target), head(hidden)
    assert loss.dtype == scores.dtype == torch.float32
    torch.testing.assert_close(loss, head(hidden, target), rtol=5e-2, atol=5e-2)
    loss.backward()
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in head.parameters())


@pytest.mark.parametrize(
    "make", [lambda f: MonotonicHead(4, 9, f), lambda f: MixtureHead(4, 9, 3, function=f)]
)
def test_scores_refuse_a_function_of_nan(make):
    head = make(PLIF(10))
    head.function.v.data[3] = float("nan")
    for call in (head, head.log_prob, head.sample):
        with pytest.raises(ValueError, match="`function` must have finite parameters"):
            call(torch.randn(2, 4))


@over_heads
def test_heads_on_fake_tensors(name):
    """Tensors without values, by which memory is reckoned: there is nothing to be checked in them."""
    with FakeTensorMode():
        head = ALL_HEADS[name](6, 14)
        hidden, target = torch.randn(5, 6), torch.randint(14, (5,))
        assert head(hidden).shape == (5, 14)
        head(hidden, target).backward()
        assert all(p.grad.shape == p.shape for p in head.parameters())


def test_heads_take_a_function_of_fake_tensors_to_their_device():
    """They need not be moved, and cannot be."""
    with FakeTensorMode():
        function = PLIF(9)
        assert MonotonicHead(6, 14, function, device="cpu").function is function
        assert MixtureHead(6, 14, 3, function=function, device="cpu").function is function
