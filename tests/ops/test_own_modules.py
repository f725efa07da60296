"""Modules of one's own as functions, and functions whose parameters are not where they usually are."""

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.func import functional_call, jacfwd, jacrev, jvp
from torch.nn.functional import cross_entropy

from tests.helpers import CHUNKED, REFERENCE, Bend, make_case, our_loss
from uncork import linear_cross_entropy
from uncork.functions import PLIF, MonotoneNetwork, Scale, SigSoftmax, SoftCap, Tabulated
from uncork.heads import MonotonicHead
from uncork.ops.swapped import call_with


class Times(nn.Module):
    def __init__(self):
        super().__init__()
        self.p = nn.Parameter(torch.tensor(1.0, dtype=torch.float64))

    def forward(self, z):
        return z * self.p


class Loss(nn.Module):
    """A loss with a module inside, as a training step of torch.func has it."""

    def __init__(self, case, reduction, backend):
        super().__init__()
        self.function, self.case, self.options = Times(), case, {"reduction": reduction, "backend": backend}

    def forward(self):
        case = self.case
        return linear_cross_entropy(
            case.input, case.weight, case.target, function=self.function, **self.options
        ).sum()


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_a_backward_pass_uses_the_parameters_of_its_forward_pass(reduction):
    """They are gone by then, and the second time, or without a reduction, the module is called again."""
    case, found = make_case((6,), dtype=torch.float64), {}
    for backend in ("reference", "chunked"):
        p = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
        loss = functional_call(Loss(case, reduction, backend), {"function.p": p}, ())
        for _ in range(2):
            found[backend] = torch.autograd.grad(loss, [p, case.input, case.weight], retain_graph=True)
    torch.testing.assert_close(found["chunked"], found["reference"], rtol=1e-10, atol=1e-12)
    assert found["chunked"][0] != 0.0


class Twice(nn.Module):
    """A module with a submodule under two names, and a parameter in two modules."""

    def __init__(self):
        super().__init__()
        self.first = self.second = Scale(0.7)
        self.other = Scale(0.9)
        self.third = Scale()
        self.third.v = self.other.v

    def forward(self, z):
        return self.third(self.other(self.second(torch.asinh(self.first(z)))))


@pytest.mark.parametrize("wrap", [lambda f: f, Tabulated], ids=["exact", "tabulated"])
def test_a_submodule_of_two_names_keeps_its_parameters(wrap):
    """Torch's functional_call leaves its own tensors in such a module: training went on without it."""
    case = make_case((6,), dtype=torch.float32)
    truth, module = Twice().double(), Twice()
    before = dict(module.named_parameters())
    linear_cross_entropy(case.input, case.weight, case.target, function=wrap(module)).backward()
    doubled = [t.detach().double() for t in (case.input, case.weight)]
    linear_cross_entropy(*doubled, case.target, function=truth, backend="reference").backward()
    after = dict(module.named_parameters())
    assert before.keys() == after.keys() and all(before[name] is after[name] for name in before)
    for name, exact in truth.named_parameters():
        torch.testing.assert_close(after[name].grad.double(), exact.grad, rtol=1e-4, atol=1e-6)


def test_a_module_is_called_with_other_parameters():
    module, z = Twice(), torch.linspace(-2.0, 2.0, 9)
    before = dict(module.named_parameters())
    found = call_with(module, lambda p: 2.0 * p, z)
    first, other = (torch.nn.functional.softplus(2.0 * v) for v in (module.first.v, module.other.v))
    torch.testing.assert_close(found, other * other * first * torch.asinh(first * z))
    assert all(p is before[name] for name, p in module.named_parameters())


class Steeper(SoftCap):
    def forward(self, z):
        return super().forward(z) + 0.1 * z


class Doubled(PLIF):
    def forward(self, z):
        return 2.0 * super().forward(z)


class Named(PLIF):
    """Changes nothing of what is computed, so its table still stands for it."""


@pytest.mark.parametrize("function", [Steeper(3.0), Doubled(50, 5.0)], ids=["softcap", "plif"])
def test_a_forward_of_ones_own_is_what_the_loss_evaluates(function):
    head, hidden, target = MonotonicHead(6, 13, function), 5.0 * torch.randn(5, 6), torch.randint(13, (5,))
    torch.testing.assert_close(head(hidden, target), cross_entropy(head(hidden), target))


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_parameters_that_are_computed_pass_their_gradient_on(reduction):
    """Such as those of a network that makes them."""
    head, x, target = MonotonicHead(4, 9, Bend()), torch.randn(5, 4), torch.tensor([0, 1, 2, 3, 8])
    raw, found = torch.tensor(0.2, requires_grad=True), []
    for backend in (CHUNKED, REFERENCE):
        options = {"backend": backend.name, "reduction": reduction}
        loss = functional_call(head, {"function.raw": raw * 2}, (x, target), options)
        found.append(torch.autograd.grad(loss.sum(), raw)[0])
    assert found[1] != 0.0
    torch.testing.assert_close(*found)


def test_a_subclass_that_computes_nothing_else_keeps_its_form():
    from uncork.ops.pointwise import as_pointwise

    kinds = [as_pointwise(f, torch.float32, torch.device("cpu")).kind for f in (Named(9), Doubled(9))]
    assert kinds == ["table", "callable"]


def test_the_slope_of_float64_logits_is_that_of_the_function():
    """Whatever its parameters have: both are of slopes in float64."""
    function, z = PLIF(50, 5.0, "random", seed=0), torch.linspace(-6, 6, 30).double().requires_grad_()
    (slope,) = torch.autograd.grad(function(z).sum(), z)
    torch.testing.assert_close(function.derivative(z), slope, rtol=1e-10, atol=0.0)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch's own, in its jvp
def test_derivatives_by_transforms_of_torch_func():
    function, z = PLIF(50, 5.0, "random", seed=0).double(), torch.tensor([-7.0, 0.3, 1.2]).double()
    for jacobian in (jacfwd, jacrev):
        torch.testing.assert_close(jacobian(function)(z).diagonal(), function.derivative(z))
    case = make_case((6,), function="plif7", dtype=torch.float64)
    (slope,) = torch.autograd.grad(our_loss(case, REFERENCE.name), case.input)

    def loss(x):
        return linear_cross_entropy(
            x, case.weight, case.target, linear_bias=case.bias, function=case.function, backend="reference"
        )

    along = torch.randn_like(slope)
    found = jvp(loss, (case.input.detach(),), (along,))[1]
    torch.testing.assert_close(found, (slope * along).sum())


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch's own, in its jvp
def test_forward_mode_derivatives_of_frozen_tables():
    """An op without them would be taken for a constant."""
    head = MonotonicHead(4, 9, PLIF(50, 5.0, "random", seed=0)).requires_grad_(False)
    x, along = torch.randn(3, 4), torch.randn(3, 4)
    backward = torch.autograd.functional.jacobian(head, x)
    forward = torch.autograd.functional.jacobian(head, x, strategy="forward-mode", vectorize=True)
    torch.testing.assert_close(forward, backward)
    with torch.no_grad(), forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(head(forward_ad.make_dual(x, along))).tangent
    torch.testing.assert_close(tangent, (backward * along).sum((2, 3)))


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch's own, in its jvp
def test_forward_mode_derivatives_of_compiled_functions():
    """Also of one that was compiled before any were asked for."""
    function = PLIF(50, 5.0, "random", seed=0).requires_grad_(False)
    compiled, z, along = torch.compile(function, backend="eager"), torch.randn(7), torch.randn(7)
    torch.testing.assert_close(compiled(z), function(z))
    with torch.no_grad(), forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(compiled(forward_ad.make_dual(z, along))).tangent
    torch.testing.assert_close(tangent, function.derivative(z) * along)


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("compiled", [True, False])
def test_a_loss_has_no_forward_mode_derivatives_and_says_so(compiled, reduction):
    """In a compiled graph it would be taken for a constant."""
    head, target = MonotonicHead(4, 9, SigSoftmax()).requires_grad_(False), torch.tensor([0, 3, 8])

    def loss(x):
        return head(x, target, reduction=reduction)

    loss = torch.compile(loss, backend="eager") if compiled else loss
    with forward_ad.dual_level(), pytest.raises(RuntimeError, match='use backend="reference"'):
        loss(forward_ad.make_dual(torch.randn(3, 4), torch.randn(3, 4)))


@pytest.mark.parametrize("backend", [CHUNKED, REFERENCE], ids=lambda b: b.id)
@pytest.mark.parametrize(
    ("function", "name"), [(PLIF(9), "v"), (Scale(), "v"), (MonotoneNetwork(3), "raw_u")], ids=str
)
def test_parameters_of_minus_infinity_are_refused_though_the_table_is_finite(function, name, backend):
    with torch.no_grad():
        getattr(function, name).view(-1)[0] = -torch.inf
    case = make_case((6,), dtype=torch.float32)
    with pytest.raises(ValueError, match="`function` must have finite parameters"):
        linear_cross_entropy(case.input, case.weight, case.target, function=function, backend=backend.name)


def test_parameters_that_are_sharded_are_refused(monkeypatch):
    case, function = make_case((6,), dtype=torch.float32), PLIF(9)
    whole = lambda: None  # what a DTensor has, and no other tensor
    monkeypatch.setattr(function.v, "full_tensor", whole, raising=False)
    with pytest.raises(TypeError, match=r"`function` .* its v is sharded .* fully_shard\(head\)"):
        linear_cross_entropy(case.input, case.weight, case.target, function=function)
    monkeypatch.setattr(case.weight, "full_tensor", whole, raising=False)
    with pytest.raises(TypeError, match=r"must both be plain tensors, got one sharded .*full_tensor"):
        linear_cross_entropy(case.input, case.weight, case.target)


class Doubling:
    """A mixin: it stands before the class whose form would be that of another forward."""

    def forward(self, z):
        return 2.0 * super().forward(z)  # pyright: ignore[reportAttributeAccessIssue]


class DoubledCap(Doubling, SoftCap): ...


class DoubledTable(Doubling, PLIF): ...


def doubled_by_a_hook():
    function = PLIF(10, 5.0)
    function.register_forward_hook(lambda module, given, came: 2.0 * came)
    return function


def halved_before():
    function = Scale(0.7)
    function.register_forward_pre_hook(lambda module, given: (0.5 * given[0],))
    return function


def replaced():
    function = SoftCap(3.0)
    function.forward = lambda z: 2.0 * z
    return function


@pytest.mark.parametrize(
    "make",
    [lambda: DoubledCap(3.0), lambda: DoubledTable(50, 5.0), doubled_by_a_hook, halved_before, replaced],
)
def test_what_a_call_gives_is_what_the_loss_evaluates(make):
    """Whether a mixin, a hook or the instance itself says so: not the form its class is known by."""
    head, hidden, target = MonotonicHead(6, 13, make()), 5.0 * torch.randn(5, 6), torch.randint(13, (5,))
    torch.testing.assert_close(head(hidden, target), cross_entropy(head(hidden), target))


class Still(nn.Module):
    @torch.no_grad()
    def forward(self, z):
        return 2.0 * z


def test_a_module_without_gradients_is_refused_by_name():
    case = make_case((4,), function=Still())
    with pytest.raises(ValueError, match="`function` must be differentiable"):
        our_loss(case, "chunked")
