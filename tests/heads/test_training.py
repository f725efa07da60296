"""Heads learn: with the model, alone over frozen states, and as fast as they should forget nothing."""

import pytest
import torch
from torch import nn

from tests.helpers import ALL_HEADS, DEVICE, over_backends, over_heads
from uncork.functions import PLIF
from uncork.heads import MonotonicHead


D, V, N = 8, 21, 64


def data():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(N, D, generator=generator), torch.randint(0, V, (N,), generator=generator)


@over_heads
def test_the_head_alone_over_frozen_states(name):
    """The most natural use: hidden states computed once, no gradient asked of them."""
    torch.manual_seed(0)
    head = ALL_HEADS[name](D, V)
    hidden, target = data()
    optimizer = torch.optim.Adam(head.parameters(), lr=0.03)
    first = head(hidden, target).item()
    for _ in range(60):
        loss = head(hidden, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert hidden.grad is None
    assert loss.item() < 0.8 * first
    assert all(p.grad is not None and p.grad.isfinite().all() for p in head.parameters())


@over_heads
def test_with_the_model(name):
    torch.manual_seed(0)
    body, head = nn.Linear(D, D), ALL_HEADS[name](D, V)
    hidden, target = data()
    head(torch.tanh(body(hidden)), target).backward()
    assert body.weight.grad.abs().sum() > 0


@over_heads
def test_a_frozen_head_passes_gradients_on(name):
    head = ALL_HEADS[name](D, V).requires_grad_(False)
    hidden, target = data()
    hidden.requires_grad_()
    head(hidden, target).backward()
    assert hidden.grad.abs().sum() > 0 and all(p.grad is None for p in head.parameters())


@over_backends
def test_all_backends_train_alike(backend):
    """Twenty steps on each backend end in the same place; float32 is what the kernels take."""

    def trained(name, dtype):
        torch.manual_seed(0)
        head = MonotonicHead(D, V, PLIF(51, 3.0)).to(DEVICE, dtype)
        hidden, target = (t[: 7 if backend.slow else N].to(DEVICE) for t in data())
        optimizer = torch.optim.SGD(head.parameters(), lr=0.5)
        for _ in range(20):
            loss = head(hidden.to(dtype), target, backend=name)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return torch.cat([p.detach().flatten() for p in head.parameters()])

    with backend.on():
        wide, narrow = trained(backend.name, torch.float64), trained(backend.name, torch.float32)
    torch.testing.assert_close(wide, trained("reference", torch.float64), rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(narrow, wide.float(), rtol=1e-4, atol=1e-5)


def test_only_the_function():
    """Recalibrating a trained model: nothing but f moves."""
    head = MonotonicHead(D, V, PLIF(101, 3.0))
    head.weight.requires_grad_(False)
    head.bias.requires_grad_(False)
    hidden, target = data()
    head(hidden, target).backward()
    assert head.function.v.grad.abs().sum() > 0 and head.weight.grad is None


@pytest.mark.parametrize("name", ["softmax", "plif", "mos"])
def test_gradient_accumulation(name):
    """Two half batches, each divided by the whole count, make the gradient of one batch."""
    head = ALL_HEADS[name](D, V).double()
    hidden, target = data()
    hidden = hidden.double()
    head(hidden, target).backward()
    whole = {n: p.grad.clone() for n, p in head.named_parameters()}
    head.zero_grad()
    for part in (slice(0, 20), slice(20, N)):
        (head(hidden[part], target[part], reduction="sum") / N).backward()
    for n, p in head.named_parameters():
        torch.testing.assert_close(p.grad, whole[n])
