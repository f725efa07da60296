"""What every function is: increasing, continuous, with the slope it says it has."""

import copy

import pytest
import torch

from tests.helpers import ALL_FUNCTIONS, LEARNABLE, Bend, naive_function, over_functions
from uncork import functions


DERIVED = [name for name in ALL_FUNCTIONS if name != "users_own"]
over_dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)


def bound_of(function):
    return getattr(function, "bound", 10.0)


def around_knots(function, dtype):
    """Every knot (of up to 2,000), the numbers next to it, the middles, and beyond both ends."""
    knots, bound = getattr(function, "knots", 1000), bound_of(function)
    count = torch.arange(0, knots + 1, max(1, knots // 2000), dtype=torch.float64)
    at = ((count - knots / 2) * (2 * bound / knots)).to(dtype)
    infinity = torch.tensor(torch.inf, dtype=dtype)
    near = torch.cat([at.nextafter(-infinity), at, at.nextafter(infinity), at + bound / knots])
    outside = torch.linspace(bound, 3 * bound, 50, dtype=dtype)
    return torch.cat([near, outside, -outside]).sort().values.unique()


@over_dtypes
@over_functions
def test_increasing(function, dtype):
    """f(x') >= f(x) for neighbours, but for the last bits; strictly over a distance one can see."""
    f = ALL_FUNCTIONS[function]().to(dtype)
    x = around_knots(f, dtype)
    y = f(x).detach()
    eps = torch.finfo(dtype).eps
    # Two roundings of x and two of y, through a slope of at most 3.5.
    assert (y.diff() >= -16 * eps * y[1:].abs().clamp(min=x.abs().max())).all()
    wide = torch.linspace(-8, 8, 65, dtype=dtype)
    assert (f(wide).diff() > 0).all()


@over_dtypes
@over_functions
def test_continuous(function, dtype):
    """Numbers next to each other have values next to each other, knots and bound included."""
    f = ALL_FUNCTIONS[function]().to(dtype)
    x = around_knots(f, dtype)
    close = x.diff() <= 4 * torch.finfo(dtype).eps * x[1:].abs().clamp(min=1e-6)
    jump = f(x).diff()[close].abs()
    assert close.sum() >= min(100, 2 * getattr(f, "knots", 1000))
    steepest = 5.0
    assert jump.max() <= steepest * 32 * torch.finfo(dtype).eps * x.abs().max()


@over_functions
def test_equals_the_formula(function):
    """In float64, against the plain formula of the tests."""
    f = ALL_FUNCTIONS[function]().double()
    x = around_knots(f, torch.float64) + 1e-9  # off the knots, where rounding may choose either side
    torch.testing.assert_close(f(x), naive_function(f, x), rtol=1e-11, atol=1e-11)


@over_dtypes
@pytest.mark.parametrize("function", DERIVED)
def test_derivative_is_the_gradient(function, dtype):
    f = ALL_FUNCTIONS[function]().to(dtype)
    x = around_knots(f, dtype).requires_grad_()
    (slope,) = torch.autograd.grad(f(x).sum(), x)
    eps = 1e-11 if dtype == torch.float64 else 2e-6
    torch.testing.assert_close(f.derivative(x), slope, rtol=eps, atol=eps)


@pytest.mark.parametrize("function", DERIVED)
def test_derivative_is_the_slope(function):
    """Against differences of f itself, between knots."""
    f = ALL_FUNCTIONS[function]().double()
    step = 2 * bound_of(f) / getattr(f, "knots", 10**5)
    x = (torch.arange(-700, 700, dtype=torch.float64) * 7 + 0.5) * step  # middles of intervals if k is even
    if getattr(f, "knots", 0) % 2:
        x = x + step / 2
    h = step / 8
    difference = (f(x + h) - f(x - h)) / (2 * h)
    torch.testing.assert_close(f.derivative(x), difference, rtol=1e-6, atol=1e-6)
    assert (f.derivative(x) >= 0).all()


@pytest.mark.parametrize("function", [name for name in LEARNABLE if name in DERIVED])
def test_derivative_can_be_differentiated(function):
    """A penalty on the slope trains the parameters."""
    f = ALL_FUNCTIONS[function]()
    f.derivative(torch.linspace(-3, 3, 50)).sum().backward()
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in f.parameters())


@pytest.mark.parametrize(
    "function", [f for f in ALL_FUNCTIONS if "plif" in f or f in ("network", "tabulated")]
)
def test_linear_continuation(function):
    """Beyond the bound the end pieces go on, with the slopes of the end intervals."""
    f = ALL_FUNCTIONS[function]().double()
    table = f if not isinstance(f, functions.MonotoneNetwork) else functions.Tabulated(f, f.knots, f.bound)
    T = table.bound
    at = torch.tensor([T - 1e-7, T, 2 * T, 100 * T], dtype=torch.float64)
    for sign in (1, -1):
        x = sign * at
        y = table(x)
        slope = table.derivative(x)
        torch.testing.assert_close(slope, slope[:1].expand(4))
        torch.testing.assert_close(y, y[1] + slope[1] * (x - x[1]), rtol=1e-10, atol=1e-9)


@over_functions
def test_shapes(function):
    """Any shape, a scalar and nothing included; the input is left alone."""
    f = ALL_FUNCTIONS[function]()
    for shape in [(), (1,), (0,), (2, 3), (2, 0, 3)]:
        x = torch.randn(shape)
        before = x.clone()
        y = f(x)
        assert y.shape == shape and torch.equal(x, before)
        torch.testing.assert_close(y, f(x.reshape(-1)).reshape(shape))
        assert torch.equal(f(x), y)  # a table is read, never written


@pytest.mark.parametrize("function", DERIVED)
def test_gradcheck(function):
    f = ALL_FUNCTIONS[function]().double()
    x = (torch.randn(6, dtype=torch.float64) * 3).requires_grad_()
    few = [p for p in f.parameters() if p.numel() < 100]
    assert torch.autograd.gradcheck(lambda *_: f(x), (x, *few))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_parameters_of_16_bits_keep_the_identity_and_know_their_slope(dtype):
    """A slope of 1 is one of their numbers; softplus of the v beside its own would be 1.001."""
    z = torch.linspace(-30.0, 31.0, 62)
    for f in (functions.PLIF(), functions.Scale()):
        assert (f.to(dtype)(z) - z).abs().max() < 1e-9
        assert torch.equal(f.derivative(z), torch.ones_like(z))
    for f in (functions.PLIF(50, init="random", seed=1), functions.Scale(1.37)):
        x = z.clone().requires_grad_()
        f.to(dtype)(x).sum().backward()
        torch.testing.assert_close(x.grad, f.derivative(z).detach())
        assert f.v.grad is not None and f.v.grad.isfinite().all() and f.v.grad.any()


@over_functions
def test_half_precision_logits(function):
    """bfloat16 in gives what float32 of the same numbers gives, where a table is read."""
    f = ALL_FUNCTIONS[function]()
    x = torch.randn(50).bfloat16() * 4
    y = f(x)
    if isinstance(f, functions.PLIF | functions.MonotoneNetwork | functions.Tabulated):
        assert y.dtype == torch.float32
        assert torch.equal(y, f(x.float()))
    torch.testing.assert_close(y.float(), f(x.float()), rtol=2e-2, atol=2e-2)


@over_functions
def test_compiles_without_a_break(function):
    f = ALL_FUNCTIONS[function]()
    x = torch.linspace(-3, 3, 7)
    torch.compiler.reset()  # it counts functions, and refuses the ninth
    compiled = torch.compile(lambda z: f(z), backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), f(x))


@pytest.mark.parametrize("function", DERIVED)
def test_whole_numbers(function):
    """Integers give what the same numbers in float32 give."""
    f = ALL_FUNCTIONS[function]()
    x = torch.arange(-3, 4)
    for call in (f, f.derivative):
        torch.testing.assert_close(call(x), call(x.float()), check_dtype=function != "identity")


@pytest.mark.parametrize(
    "make", [functions.PLIF, functions.Scale, functions.SoftCap], ids=lambda m: m.__name__
)
@pytest.mark.parametrize("number", [1.2e-38, 3.4e38])
def test_the_ends_of_float32(make, number):
    f = make(bound=number) if make is functions.PLIF else make(number)
    assert torch.isfinite(f(torch.tensor([-0.5, 0.0, 0.5]))).all()


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf, 1e30, -1e30])
@over_functions
def test_awkward_numbers(function, bad):
    """NaN gives NaN, infinities never index outside a table, the other entries are untouched."""
    f = ALL_FUNCTIONS[function]()
    x = torch.tensor([0.5, bad, -0.5], requires_grad=True)
    y = f(x)
    assert torch.equal(y[[0, 2]], f(x[[0, 2]]))
    if bad != bad:
        assert y[1].isnan()
    y[[0, 2]].sum().backward()
    assert torch.isfinite(x.grad[[0, 2]]).all()
    if hasattr(f, "derivative"):
        assert torch.isfinite(f.derivative(x.detach())[[0, 2]]).all()


def test_a_users_own_module_needs_forward_alone():
    f = Bend()
    assert not hasattr(f, "derivative") and not hasattr(f, "pointwise")
    assert copy.deepcopy(f)(torch.tensor(1.0)) == f(torch.tensor(1.0))
