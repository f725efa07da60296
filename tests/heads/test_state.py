"""Heads survive saving, copying, moving, tying and wrapping."""

import copy
import io
import pickle

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from tests.helpers import ALL_HEADS, over_heads
from uncork.functions import PLIF
from uncork.heads import AbstractHead, MixtureHead, MonotonicHead, SoftmaxHead


D, V = 5, 13
HIDDEN = torch.randn(7, D)


def make(name, seed=0):
    torch.manual_seed(seed)
    return ALL_HEADS[name](D, V)


@over_heads
def test_parameters(name):
    head = make(name)
    width = D + 2 if name == "mos" else D
    assert isinstance(head, AbstractHead)
    assert isinstance(head.weight, nn.Parameter) and head.weight.shape == (V, width)
    assert head.bias is None or head.bias.shape == (V,)
    assert "weight" in dict(head.named_parameters())
    assert (head.in_features, head.num_classes) == (D, V)
    assert f"{D}, {V}" in repr(head)


@over_heads
def test_starts_like_nn_linear(name):
    """Weights and bias uniform within 1/sqrt(width), so that a head can stand where a Linear stood."""
    head = ALL_HEADS[name](400, 2000)
    reach = 1 / head.weight.shape[1] ** 0.5
    for p in (head.weight, head.bias):
        if p is not None:
            assert p.abs().max() <= reach
            assert abs(p.std().item() / (reach / 3**0.5) - 1) < 0.1


@over_heads
def test_state_dict(name):
    head, other = make(name, 0), make(name, 1)
    assert not torch.equal(head(HIDDEN), other(HIDDEN))
    other.load_state_dict(head.state_dict())
    assert torch.equal(head(HIDDEN), other(HIDDEN))


@over_heads
def test_safetensors(name, tmp_path):
    head, other = make(name, 0), make(name, 1)
    save_file(head.state_dict(), tmp_path / "head.safetensors")
    other.load_state_dict(load_file(tmp_path / "head.safetensors"))
    assert torch.equal(head(HIDDEN), other(HIDDEN))


@over_heads
def test_torch_save_without_pickle(name):
    head, other = make(name, 0), make(name, 1)
    memory = io.BytesIO()
    torch.save(head.state_dict(), memory)
    memory.seek(0)
    other.load_state_dict(torch.load(memory, weights_only=True))
    assert torch.equal(head(HIDDEN), other(HIDDEN))


def test_a_fitted_bound_is_saved_with_the_head():
    head = MonotonicHead(D, V, PLIF(100, 1.0))
    head.function.fit_bound_(head(HIDDEN).detach() * 5)
    other = MonotonicHead(D, V, PLIF(100, 1.0))
    other.load_state_dict(head.state_dict())
    assert other.function.bound == head.function.bound


@over_heads
def test_deepcopy_and_pickle(name):
    head = make(name)
    for other in (copy.deepcopy(head), pickle.loads(pickle.dumps(head))):
        assert torch.equal(head(HIDDEN), other(HIDDEN)) and repr(head) == repr(other)
        other.weight.data.add_(1.0)
        assert not torch.equal(head.weight, other.weight)


@over_heads
def test_dtype_moves(name):
    head = make(name)
    wide = copy.deepcopy(head).double()
    assert wide(HIDDEN.double()).dtype == torch.float64
    torch.testing.assert_close(wide(HIDDEN.double()).float(), head(HIDDEN), rtol=1e-4, atol=1e-5)
    narrow = copy.deepcopy(head).bfloat16()
    torch.testing.assert_close(narrow(HIDDEN.bfloat16()), head(HIDDEN), rtol=0.1, atol=0.1)


@over_heads
def test_made_on_a_device_and_in_a_dtype(name):
    head = ALL_HEADS[name](D, V, device="meta", dtype=torch.bfloat16)
    assert head.weight.is_meta and head.weight.dtype == torch.bfloat16
    assert all(p.is_meta for p in head.parameters())
    assert repr(head)


@over_heads
def test_deferred_initialisation(name):
    """Built on meta, given memory, filled from a checkpoint."""
    head = make(name)
    hollow = ALL_HEADS[name](D, V, device="meta").to_empty(device="cpu")
    hollow.load_state_dict(head.state_dict())
    assert torch.equal(hollow(HIDDEN), head(HIDDEN))


@over_heads
def test_shapes_on_meta(name):
    """Scores of a head without memory have a shape: models are planned this way."""
    head = ALL_HEADS[name](D, V, device="meta")
    assert head(torch.empty(3, 4, D, device="meta")).shape == (3, 4, V)


@over_heads
def test_tied_to_an_embedding(name):
    head = make(name)
    embedding = nn.Embedding(V, head.weight.shape[1])
    head.weight = embedding.weight
    hidden = HIDDEN.clone().requires_grad_()
    head(hidden, torch.arange(7)).backward()
    from_head = embedding.weight.grad.clone()
    assert from_head.abs().sum() > 0
    embedding(torch.tensor([1, 1])).sum().backward()
    expected = from_head.clone()
    expected[1] += 2.0
    torch.testing.assert_close(embedding.weight.grad, expected)
    both = nn.ModuleList([embedding, head])
    assert sum(p is head.weight for p in both.parameters()) == 1
    assert torch.equal(copy.deepcopy(both)[0].weight, copy.deepcopy(both)[1].weight)


@pytest.mark.parametrize("name", ["softmax", "plif", "mos_plif"])
def test_wrapped(name):
    """A wrapper that only forwards calls, as FSDP does, sees training: the loss is a forward."""

    class Wrapper(nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module, self.calls = module, 0

        def forward(self, *args, **kwargs):
            self.calls += 1
            return self.module(*args, **kwargs)

    wrapped = Wrapper(make(name))
    wrapped(HIDDEN, torch.arange(7), reduction="sum").backward()
    assert wrapped.calls == 1 and wrapped.module.weight.grad is not None


@pytest.mark.parametrize("name", ["softmax", "plif", "mos"])
def test_hooks_see_the_loss(name):
    head, seen = make(name), []
    head.register_forward_hook(lambda module, args, output: seen.append(output.shape))
    head(HIDDEN, torch.arange(7))
    head(HIDDEN)
    assert seen == [(), (7, V)]


def test_the_weight_is_read_at_every_call():
    """FSDP, LoRA and quantisers replace the attribute: no copy of it may be kept."""
    head = SoftmaxHead(D, V, bias=False)
    head(HIDDEN, torch.arange(7))
    head.weight = nn.Parameter(torch.zeros(V, D))
    torch.testing.assert_close(head(HIDDEN, torch.arange(7)), torch.tensor(float(V)).log())


def test_mixture_with_another_width():
    head = MixtureHead(D, V, components=2, embedding_features=9)
    assert head.weight.shape == (V, 9)
    assert head(HIDDEN).shape == (7, V)
