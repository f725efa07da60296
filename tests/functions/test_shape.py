"""What every function is: increasing, continuous, with the slope it says it has."""

import copy

import pytest
import torch

from tests.helpers import ALL_FUNCTIONS, LEARNABLE, Bend, naive_function, over_functions
from uncork import functions
from uncork.ops import table


DERIVED = [name for name in ALL_FUNCTIONS if name != "users_own"]
over_dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)


def bound_of(function):
    return getattr(function, "bound", 10.0)


def step_of(function):
    return 2 * bound_of(function) / getattr(function, "knots", 10**5)


def middles(function, x):
    """The middle of the interval that each x is in; those of a table of an odd number lie around 0."""
    step = step_of(function)
    odd = 0.5 if getattr(function, "knots", 0) % 2 else 0.0
    return ((x / step + odd).floor() + 0.5 - odd) * step


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
    # In float64 a table's slope is what is left of two knots, each rounded twice, over a short step.
    left = 2 * torch.finfo(torch.float64).eps * getattr(f, "knots", 0)
    eps = max(1e-11, left) if dtype == torch.float64 else 2e-6
    torch.testing.assert_close(f.derivative(x), slope, rtol=eps, atol=eps)


@pytest.mark.parametrize("function", DERIVED)
def test_derivative_is_the_slope(function):
    """Against differences of f itself, between knots."""
    f = ALL_FUNCTIONS[function]().double()
    step = step_of(f)
    x = middles(f, torch.arange(-700, 700, dtype=torch.float64) * 7 * step)
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
    # Off the knots, where a difference would be taken over two slopes.
    x = middles(f, torch.randn(6, dtype=torch.float64) * 3).requires_grad_()
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


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")  # torch's own imports
def test_compiled_tables_take_transposed_logits():
    """Their result is laid out anew, and the compiler must know."""
    f, x = functions.PLIF(50, init="random", seed=0), torch.randn(7, 5).T.requires_grad_()
    torch.compiler.reset()
    y = torch.compile(f)(x)
    torch.testing.assert_close(y, f(x))
    (found,), (right,) = (torch.autograd.grad(each.sum(), x) for each in (y, f(x)))
    torch.testing.assert_close(found, right)
    torch.library.opcheck(table.piecewise_linear_op, (x, f.knot_values().detach(), f.bound))


@pytest.mark.parametrize("function", DERIVED)
def test_whole_numbers(function):
    """Integers give what the same numbers in float32 give."""
    f = ALL_FUNCTIONS[function]()
    x = torch.arange(-3, 4)
    for call in (f, f.derivative):
        torch.testing.assert_close(call(x), call(x.float()), check_dtype=function != "identity")


@pytest.mark.parametrize(
    "make, formula",
    [
        (lambda bound: functions.PLIF(bound=min(bound, 1e6)), lambda x, bound: x),
        (functions.Scale, lambda x, factor: factor * x),
        (functions.SoftCap, lambda x, cap: cap * torch.tanh(x / cap)),
    ],
    ids=["PLIF", "Scale", "SoftCap"],
)
@pytest.mark.parametrize("number", [1.2e-38, 3.4e38])
def test_the_ends_of_float32(make, formula, number):
    f, x = make(number), torch.tensor([-0.5, 0.0, 0.5])
    # A PLIF is the identity as nearly as its bound rounds; numbers below the normal ones have few digits.
    eps = torch.finfo(torch.float32).eps
    rounding = eps * max(f.bound, 1e-36) if isinstance(f, functions.PLIF) else 2e-44
    torch.testing.assert_close(f(x).double(), formula(x.double(), number), rtol=1e-6, atol=rounding)


@pytest.mark.parametrize(
    "f, near",
    [(functions.SoftCap(3.0), 120.0), (functions.MonotoneNetwork(10), 28.0)],
    ids=["softcap", "network"],
)
def test_slopes_keep_their_digits_where_f_is_nearly_flat(f, near):
    """On both sides alike: 1 less what is nearly 1 would have none of them left."""
    z = torch.linspace(-near, near, 997)
    exact = f.derivative(z.double())
    assert (exact > 0).all()
    torch.testing.assert_close(f.derivative(z).double(), exact, rtol=1e-4, atol=1e-37)


@pytest.mark.parametrize("steepness", [1e-6, 1e-2, 0.5, 2.0, 100.0, 1000.0])
@pytest.mark.parametrize("shift", [0.0, -1.5])
def test_sigsoftmax_of_any_steepness_keeps_its_digits(steepness, shift):
    """Far above the shift f is nearly z: k z less (k - 1) softplus would lose the digits of k. Far below it
    the slope is k, which 1 less (1 - k) sigmoid would lose likewise.
    """
    f = functions.GeneralizedSigSoftmax(shift, steepness)
    x = torch.cat([torch.linspace(-30, 30, 997), torch.tensor([shift, 1e4, 3e38])])
    right = f(x.double())
    eps = torch.finfo(torch.float32).eps
    error = (f(x).double() - right).abs()
    slope = f.derivative(x.double())
    # What one rounding of z - c moves f by, and one of f itself.
    assert (error <= 2 * eps * (right.abs() + slope * x.abs() + abs(shift) + 1)).all()
    # What the rounding of z - c, of 30 at most where the slope changes, does to a sigmoid.
    torch.testing.assert_close(f.derivative(x).double(), slope, rtol=32 * eps, atol=0.0)
    assert f(torch.tensor(-torch.inf)) == -torch.inf


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
