"""Input that is nearly right: other layouts, numbers no float holds, modules that hide what they learn."""

import pytest
import torch
from torch import nn

from tests.helpers import CHUNKED, REFERENCE, make_case
from uncork import chunk_bytes, linear_cross_entropy, mixture_cross_entropy
from uncork.functions import PLIF, GeneralizedSigSoftmax, Scale, Tabulated
from uncork.heads import MixtureHead, SoftmaxHead


N, D, V = 4, 3, 5
HUGE = 10**400


def arguments(**changes):
    target = torch.arange(N) % V
    return {"input": torch.randn(N, D), "linear_weight": torch.randn(V, D), "target": target} | changes


@pytest.mark.parametrize("backend", [CHUNKED, REFERENCE], ids=lambda b: b.id)
@pytest.mark.parametrize(
    ("name", "dense"),
    [
        ("input", torch.randn(N, D)),
        ("linear_weight", torch.randn(V, D)),
        ("linear_bias", torch.randn(V)),
        ("weight", torch.rand(V)),
        ("target", torch.randn(N, V).softmax(-1)),
    ],
)
def test_sparse_tensors_are_refused_by_name(name, dense, backend):
    with pytest.raises(TypeError, match=f"`{name}` must be a dense tensor, got layout .*to_dense"):
        linear_cross_entropy(**arguments(**{name: dense.to_sparse()}), backend=backend.name)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_are_refused_by_name():
    nested = torch.nested.nested_tensor([torch.randn(2, D), torch.randn(1, D)])
    with pytest.raises(TypeError, match="`input` must be a dense tensor, got a nested one.*pad"):
        linear_cross_entropy(**arguments(input=nested))
    with pytest.raises(TypeError, match="`latent` must be a dense tensor"):
        mixture_cross_entropy(nested, torch.zeros(3, 2), torch.randn(V, D), torch.zeros(3).long())


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("z_loss", lambda: linear_cross_entropy(**arguments(z_loss=HUGE))),
        ("z_loss", lambda: linear_cross_entropy(**arguments(z_loss=1e39))),
        ("init", lambda: Scale(HUGE)),
        ("bound", lambda: PLIF(10, HUGE)),
        ("shift", lambda: GeneralizedSigSoftmax(-HUGE, 2.0)),
        ("dropout", lambda: MixtureHead(D, V, 2, dropout=HUGE)),
        ("temperature", lambda: SoftmaxHead(D, V).sample(torch.randn(2, D), temperature=HUGE)),
    ],
)
def test_whole_numbers_beyond_any_float_are_refused_by_name(name, call):
    with pytest.raises(ValueError, match=f"`{name}` must be finite"):
        call()


def test_the_slope_of_a_table_elsewhere_is_refused():
    for function, z in ((PLIF(10), torch.randn(3, device="meta")), (PLIF(10, device="meta"), torch.randn(3))):
        for call in (function, function.derivative):
            with pytest.raises(ValueError, match="`z` must be on the device of the function"):
                call(z)


class Tempered(nn.Module):
    """Multiplies by a tensor that it does not hold as a parameter."""

    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, z):
        return z * self.factor


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_a_tensor_that_a_module_hides_gets_its_gradient_or_an_error(reduction):
    raw = torch.tensor(0.5, requires_grad=True)
    case = make_case((N,), dtype=torch.float64)

    def gradient(function, backend):
        raw.grad = None
        linear_cross_entropy(
            case.input, case.weight, case.target, function=function, backend=backend, reduction=reduction
        ).sum().backward()
        return raw.grad

    expected = gradient(Tempered(raw * 2), "reference")
    assert expected != 0.0
    torch.testing.assert_close(gradient(Tabulated(Tempered(raw * 2)), "chunked"), expected)
    with pytest.raises(ValueError, match=r"`function` must hold .* parameters, got .* shape \(\)"):
        gradient(Tempered(raw * 2), "chunked")
    assert gradient(Tempered(torch.tensor(1.0)), "chunked") is None


def test_targets_of_64_bits_without_sign_are_refused():
    """2^64 - 100 would become -100, which is ignored."""
    target = torch.tensor([2**64 - 100, 1], dtype=torch.uint64)
    with pytest.raises(TypeError, match="`target` must hold word indices.*got torch.uint64. Convert"):
        linear_cross_entropy(torch.zeros(2, 3), torch.zeros(4, 3), target)


def test_a_budget_beyond_64_bits_is_refused():
    with pytest.raises(ValueError, match=r"below 2\^63"), chunk_bytes(2**63):
        pass
