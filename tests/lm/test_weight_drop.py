"""The traps of weight dropping, each as a test that fails if somebody steps into it."""

import copy

import pytest
import torch
from torch import nn

from uncork.lm import weight_drop
from uncork.lm.weight_drop import WeightDropLSTM


def run(layer, x_TBD):
    return layer(x_TBD, layer.initial_state(x_TBD.shape[1]))


def twin(layer: WeightDropLSTM, weight_hh=None) -> nn.LSTM:
    """torch's LSTM with the same weights, or with another recurrent matrix."""
    other = nn.LSTM(layer.weight_ih.shape[1], layer.hidden_size)
    state = {f"{name}_l0": tensor for name, tensor in layer.state_dict().items()}
    if weight_hh is not None:
        state["weight_hh_l0"] = weight_hh
    other.load_state_dict(state)
    return other


def test_evaluation_uses_the_full_matrix():
    layer, x_TBD = WeightDropLSTM(5, 7, p=0.5), torch.randn(4, 3, 5)
    run(layer, x_TBD)  # a training pass before must leave nothing behind
    y_TBH, (hidden, cell) = run(layer.eval(), x_TBD)
    expected, (expected_hidden, expected_cell) = twin(layer)(x_TBD)
    torch.testing.assert_close(y_TBH, expected)
    torch.testing.assert_close(hidden, expected_hidden)
    torch.testing.assert_close(cell, expected_cell)


def test_training_uses_a_dropped_matrix(monkeypatch):
    layer, x_TBD = WeightDropLSTM(5, 7, p=0.5), torch.randn(4, 3, 5)
    mask = torch.randint(2, (28, 7)) * 2.0
    monkeypatch.setattr(weight_drop, "drop", lambda weight, p: weight * mask)
    y_TBH, _ = run(layer, x_TBD)
    expected, _ = twin(layer, layer.weight_hh.detach() * mask)(x_TBD)
    torch.testing.assert_close(y_TBH, expected)


def test_the_raw_matrix_receives_the_gradient_of_what_was_kept(monkeypatch):
    layer, x_TBD = WeightDropLSTM(5, 7, p=0.5), torch.randn(4, 3, 5)
    mask = torch.randint(2, (28, 7)) * 2.0
    monkeypatch.setattr(weight_drop, "drop", lambda weight, p: weight * mask)
    run(layer, x_TBD)[0].square().sum().backward()
    assert layer.weight_hh.grad is not None
    assert (layer.weight_hh.grad[mask == 0] == 0).all()
    assert (layer.weight_hh.grad[mask != 0] != 0).all()


def test_parameters_are_the_four_raw_ones():
    layer = WeightDropLSTM(5, 7, p=0.5)
    run(layer, torch.randn(4, 3, 5))
    assert sorted(n for n, _ in layer.named_parameters()) == [
        "bias_hh", "bias_ih", "weight_hh", "weight_ih",
    ]  # fmt: skip


def test_training_after_evaluation_learns():
    layer, x_TBD = WeightDropLSTM(5, 7, p=0.5), torch.randn(4, 3, 5)
    for mode in (True, False, True, False, True):
        layer.train(mode)
        layer.zero_grad()
        run(layer, x_TBD)[0].sum().backward()
        assert layer.weight_hh.grad is not None and layer.weight_hh.grad.abs().sum() > 0
    first, second = (run(layer, x_TBD)[0] for _ in range(2))
    assert not torch.equal(first, second)  # a new mask per call


def test_the_library_kernel_is_called():
    layer, x_TBD = WeightDropLSTM(5, 7, p=0.5), torch.randn(4, 3, 5)
    with torch.profiler.profile(acc_events=True) as profile:
        run(layer, x_TBD)
    names = {event.key for event in profile.key_averages()}
    assert "aten::lstm" in names


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("training", [True, False])
def test_cudnn_runs_forward_and_backward(training):
    layer = WeightDropLSTM(5, 7, p=0.5).cuda().train(training)
    with torch.profiler.profile(acc_events=True) as profile:
        run(layer, torch.randn(4, 3, 5, device="cuda"))[0].sum().backward()
    names = {event.key for event in profile.key_averages()}
    assert {"aten::_cudnn_rnn", "aten::_cudnn_rnn_backward"} <= names
    assert layer.weight_hh.grad is not None and layer.weight_hh.grad.abs().sum() > 0


def test_gradients_flow_in_evaluation_mode():
    layer, x_TBD = WeightDropLSTM(5, 7, p=0.5).eval(), torch.randn(4, 3, 5)
    run(layer, x_TBD)[0].square().sum().backward()
    expected = twin(layer)
    expected(x_TBD)[0].square().sum().backward()
    for name, parameter in layer.named_parameters():
        torch.testing.assert_close(parameter.grad, getattr(expected, f"{name}_l0").grad)


def test_copies_are_independent():
    layer, x_TBD = WeightDropLSTM(5, 7, p=0.5), torch.randn(4, 3, 5)
    other = copy.deepcopy(layer)
    run(other, x_TBD)[0].sum().backward()
    assert layer.weight_hh.grad is None and other.weight_hh.grad is not None


def test_recurrence_in_bfloat16_keeps_float32_outside():
    layer = WeightDropLSTM(5, 7, compute_dtype=torch.bfloat16).eval()
    x_TBD = torch.randn(4, 3, 5)
    y_TBH, (hidden, cell) = run(layer, x_TBD)
    assert y_TBH.dtype == hidden.dtype == cell.dtype == torch.float32
    exact = twin(layer)(x_TBD)[0]
    torch.testing.assert_close(y_TBH, exact, atol=0.02, rtol=0.0)
    assert not torch.equal(y_TBH, exact)
