"""Functions survive saving, copying and moving."""

import copy
import io
import pickle

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.helpers import ALL_FUNCTIONS, LEARNABLE, over_functions
from uncork import functions


X = torch.linspace(-7, 7, 301)


def changed(name):
    """A function that is no longer where it started."""
    f = ALL_FUNCTIONS[name]()
    with torch.no_grad():
        for p in f.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return f


@over_functions
def test_state_dict(function):
    f, g = changed(function), ALL_FUNCTIONS[function]()
    g.load_state_dict(f.state_dict())
    assert torch.equal(f(X), g(X))


def test_the_bound_travels_with_the_slopes():
    f = functions.PLIF(100, 2.0, "random", seed=0)
    f.fit_bound_(torch.tensor([9.0]))
    g = functions.PLIF(100, 2.0)
    g.load_state_dict(f.state_dict())
    assert g.bound == f.bound and torch.equal(f(X), g(X))


def test_a_state_dict_of_another_size_is_refused():
    with pytest.raises(RuntimeError, match="size mismatch"):
        functions.PLIF(100).load_state_dict(functions.PLIF(101).state_dict())


def test_a_state_dict_with_a_broken_bound_is_refused():
    state = functions.PLIF(10).state_dict()
    state["_extra_state"] = torch.tensor(float("nan"))
    with pytest.raises(ValueError, match="`bound` must be finite"):
        functions.PLIF(10).load_state_dict(state)


@pytest.mark.parametrize("function", LEARNABLE)
def test_safetensors(function, tmp_path):
    """A state dict is tensors alone: no pickle needed."""
    f, g = changed(function), ALL_FUNCTIONS[function]()
    save_file(f.state_dict(), tmp_path / "f.safetensors")
    g.load_state_dict(load_file(tmp_path / "f.safetensors"))
    assert torch.equal(f(X), g(X))


@over_functions
def test_torch_save_without_pickle(function):
    f, g = changed(function), ALL_FUNCTIONS[function]()
    memory = io.BytesIO()
    torch.save(f.state_dict(), memory)
    memory.seek(0)
    g.load_state_dict(torch.load(memory, weights_only=True))
    assert torch.equal(f(X), g(X))


@over_functions
def test_deepcopy_and_pickle(function):
    f = changed(function)
    for g in (copy.deepcopy(f), pickle.loads(pickle.dumps(f))):
        assert torch.equal(f(X), g(X)) and repr(f) == repr(g)
        with torch.no_grad():
            for p in g.parameters():
                p.add_(1.0)
        assert not any(torch.equal(p, q) for p, q in zip(f.parameters(), g.parameters(), strict=True))


@over_functions
def test_dtype_moves(function):
    f = ALL_FUNCTIONS[function]()
    wide = copy.deepcopy(f).double()
    assert all(p.dtype == torch.float64 for p in wide.parameters())
    assert wide(X.double()).dtype == torch.float64
    torch.testing.assert_close(wide(X.double()).float(), f(X), rtol=1e-5, atol=1e-5)
    narrow = copy.deepcopy(f).bfloat16()
    assert all(p.dtype == torch.bfloat16 for p in narrow.parameters())
    torch.testing.assert_close(narrow(X).float(), f(X), rtol=2e-2, atol=5e-2)


@over_functions
def test_device_moves(function):
    """Onto meta and back with memory of its own, as deferred initialisation does; repr works everywhere."""
    f = ALL_FUNCTIONS[function]()
    hollow = copy.deepcopy(f).to("meta")
    assert all(p.is_meta for p in hollow.parameters())
    assert repr(hollow)
    filled = hollow.to_empty(device="cpu")
    filled.load_state_dict(f.state_dict())
    assert torch.equal(filled(X), f(X))


@pytest.mark.parametrize(
    "make", [functions.Scale, functions.PLIF, lambda **to: functions.MonotoneNetwork(3, skip=True, **to)]
)
def test_made_on_a_device_and_in_a_dtype(make):
    f = make(device="meta", dtype=torch.float64)
    assert all(p.is_meta and p.dtype == torch.float64 for p in f.parameters())


@pytest.mark.parametrize("function", LEARNABLE)
def test_made_under_a_default_device(function):
    """As deferred initialisation does; the bound of a PLIF is a number wherever its slopes are."""
    f = ALL_FUNCTIONS[function]()
    with torch.device("meta"):
        hollow = ALL_FUNCTIONS[function]()
        state = f.state_dict()
    assert all(p.is_meta for p in hollow.parameters())
    assert not any(t.is_meta for t in state.values())
    filled = hollow.to_empty(device="cpu")
    filled.load_state_dict(state)
    assert torch.equal(filled(X), f(X))


@pytest.mark.parametrize(
    "make", [functions.Scale, functions.PLIF, lambda **to: functions.MonotoneNetwork(3, skip=True, **to)]
)
def test_a_device_of_its_own_goes_before_the_default_one(make):
    with torch.device("meta"):
        f = make(device="cpu")
    assert torch.equal(f(X), make()(X))


def test_default_dtype(monkeypatch):
    torch.set_default_dtype(torch.float64)
    try:
        made = [functions.Scale(), functions.PLIF(10), functions.MonotoneNetwork(2)]
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(p.dtype == torch.float64 for f in made for p in f.parameters())


@pytest.mark.parametrize("function", LEARNABLE)
def test_learns(function):
    """A few steps of gradient descent bring every learnable function closer to a steeper one."""
    f = ALL_FUNCTIONS[function]()
    optimizer = torch.optim.Adam(f.parameters(), lr=0.05)
    target = 1.5 * X
    losses = []
    for _ in range(20):
        loss = (f(X) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
