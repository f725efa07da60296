"""Each function in closed form inside a kernel: value and slope against the formula in float64."""

import pytest
import torch

from tests.backends import DEVICE, TRITON
from uncork.ops import pointwise
from uncork.ops.pointwise import Pointwise


pytestmark = pytest.mark.skipif(
    bool(TRITON.missing),
    reason="needs TRITON_INTERPRET=1, as in the run of its own in `make test`, or UNCORK_TEST_DEVICE=cuda",
)

FORMS = {
    "identity": Pointwise("identity"),
    "scale": Pointwise("scale", tensors=(torch.tensor(1.7),)),
    "softcap": Pointwise("softcap", (5.0, 0.0)),
    **{
        f"sigsoftmax-{steepness:g}": Pointwise("sigsoftmax", (-1.5, steepness))
        for steepness in (1e-6, 1e-2, 0.5, 2.0, 100.0, 1e4)
    },
}


def in_a_kernel(form, z):
    from tests.ops.function_kernel import function_kernel

    value, slope = torch.full_like(z, torch.nan), torch.full_like(z, torch.nan)
    factor = form.tensors[0].to(DEVICE) if form.tensors else None
    function_kernel[(1,)](z, value, slope, factor, *form.constants, BLOCK=z.numel(), KIND=form.kind)
    return value, slope


@pytest.mark.parametrize("name", FORMS)
def test_value_and_slope(name):
    form, eps = FORMS[name], torch.finfo(torch.float32).eps
    z = torch.cat([torch.linspace(-30, 30, 1021), torch.tensor([-1.5, 0.0, 1e4])]).to(DEVICE)
    exact = z.double().requires_grad_()
    wide = Pointwise(form.kind, form.constants, tuple(t.double().to(DEVICE) for t in form.tensors))
    right = pointwise.value(wide, exact)
    (right_slope,) = torch.autograd.grad(right.sum(), exact)
    value, slope = in_a_kernel(form, z)
    # One rounding of z - c and two of f itself.
    allowed = 2 * eps * (right.abs() + right_slope * (z - form.constants[0]).abs() + 2.5)
    assert ((value.double() - right).abs() <= allowed).all()
    # The rounding of z - c, or of 2 z / c, of 30 at most where the slope changes. Of a soft cap autograd's
    # own is a difference to 1, and what is left of its slope falls below the normal numbers.
    if form.kind == "softcap":
        right_slope = pointwise.softcap_slope(z.double(), form.constants[0])
    least = torch.finfo(torch.float32).tiny if form.kind == "softcap" else 0.0
    torch.testing.assert_close(slope.double(), right_slope, rtol=32 * eps, atol=least)


def test_every_closed_form_is_here():
    from uncork.ops.triton.functions import INCREASING

    assert {form.kind for form in FORMS.values()} == set(INCREASING)
