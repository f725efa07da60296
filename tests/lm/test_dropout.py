import pytest
import torch

from uncork.lm.dropout import LockedDropout, drop, embedding_dropout, keep_mask


def test_locked_mask_is_one_for_all_times_and_differs_by_stream():
    y_TBD = LockedDropout(0.5)(torch.ones(6, 5, 40))
    assert torch.equal(y_TBD, y_TBD[:1].expand_as(y_TBD))
    assert set(y_TBD.unique().tolist()) == {0.0, 2.0}
    assert not torch.equal(y_TBD[0, 0], y_TBD[0, 1])


def test_locked_mask_covers_the_components_of_a_mixture():
    y_TBKD = LockedDropout(0.5)(torch.ones(6, 2, 3, 40))
    assert torch.equal(y_TBKD, y_TBKD[:1].expand_as(y_TBKD))
    assert not torch.equal(y_TBKD[0, 0, 0], y_TBKD[0, 0, 1])


def test_locked_dropout_keeps_the_mean_and_rests_in_evaluation():
    layer = LockedDropout(0.3)
    x_TBD = torch.ones(2, 100, 200)
    assert layer(x_TBD).mean().item() == pytest.approx(1.0, abs=0.02)
    assert layer.eval()(x_TBD) is x_TBD


def test_a_dropped_word_is_dropped_everywhere():
    weight_VD = torch.rand(50, 4) + 0.5
    tokens_TB = torch.randint(50, (40, 10))
    out_TBD = embedding_dropout(weight_VD, tokens_TB, 0.4, training=True)
    ratio_TB = (out_TBD / weight_VD[tokens_TB])[..., 0]
    for word in range(50):
        kept = ratio_TB[tokens_TB == word]
        assert torch.allclose(kept, kept[:1].expand_as(kept))
    assert (ratio_TB == 0).any() and torch.isclose(ratio_TB.max(), torch.tensor(1 / 0.6))


def test_embedding_dropout_equals_masking_the_table(monkeypatch):
    mask_V1 = torch.tensor([[0.0], [2.0], [2.0]])
    monkeypatch.setattr("uncork.lm.dropout.keep_mask", lambda like, p: mask_V1)
    weight_VD = torch.randn(3, 4, requires_grad=True)
    tokens_TB = torch.tensor([[0, 1], [2, 1]])
    embedding_dropout(weight_VD, tokens_TB, 0.5, training=True).sum().backward()
    assert weight_VD.grad is not None
    assert weight_VD.grad[:, 0].tolist() == [0.0, 4.0, 2.0]


def test_dropping_entries_is_a_mask_of_their_own():
    x = torch.rand(100, 200) + 0.5
    torch.manual_seed(1)
    dropped = drop(x, 0.3)
    torch.manual_seed(1)
    assert torch.equal(dropped, x * keep_mask(x, 0.3))
    assert dropped.count_nonzero().item() == pytest.approx(0.7 * x.numel(), rel=0.02)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_dropping_entries_on_a_gpu_keeps_and_scales_as_many():
    x = (torch.rand(1000, 200, device="cuda") + 0.5).requires_grad_()
    dropped = drop(x, 0.3)
    dropped.backward(torch.ones(1000, 202, device="cuda")[:, :200])  # rows apart, as those of padded products
    kept = dropped != 0
    assert kept.float().mean().item() == pytest.approx(0.7, abs=0.01)
    expected = torch.where(kept, x.detach() / 0.7, 0.0)
    torch.testing.assert_close(dropped.detach(), expected)
    assert x.grad is not None and x.grad.is_contiguous()
    torch.testing.assert_close(x.grad, kept / 0.7)


@pytest.mark.parametrize("p", [-0.1, 1.0])
def test_probability_is_checked(p):
    with pytest.raises(ValueError, match=r"`p` must be a dropout probability in \[0, 1\)"):
        LockedDropout(p)
