"""Few bits: the error is bounded by the block's scale, its mean is zero, and sizes are as planned."""

import pytest
import torch

from uncork.lm.quantise import BLOCK, dequantise, quantise, quantised_bytes


BITS = range(2, 17)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("spread", [1.0, 1e-30, 1e30])
def test_no_value_is_further_off_than_one_scale(bits, spread):
    values = torch.randn(37, 101, generator=generator(1)) * spread
    values[3] *= 100.0  # blocks of very different size
    kept = quantise(values, bits, generator())
    got = dequantise(kept, (37, 101))
    flat, error = values.double().reshape(-1), (got.double() - values.double()).abs().reshape(-1)
    for block, wrong in zip(flat.split(BLOCK), error.split(BLOCK), strict=True):
        # The scale is rounded up to 8 significant bits, the result to 24.
        bound = block.abs().max() / (2 ** (bits - 1) - 1) * (1 + 2**-7) + block.abs().max() * 2**-23
        assert (wrong <= bound).all()
    size = kept.planes.numel() + kept.scales.numel() * kept.scales.element_size()
    assert size == quantised_bytes(values.numel(), bits) and got.dtype == torch.float32


@pytest.mark.parametrize("bits", BITS)
def test_the_nearest_is_half_a_scale_away_at_most(bits):
    values = torch.randn(BLOCK, generator=generator(6))
    error = (dequantise(quantise(values, bits, None), (BLOCK,)).double() - values.double()).abs().max()
    assert error <= 0.5 * values.abs().max() / (2 ** (bits - 1) - 1) * (1 + 2**-7) + 2**-22


@pytest.mark.parametrize("bits", [2, 5, 8, 12])
def test_the_error_has_mean_zero(bits):
    values = torch.randn(BLOCK, generator=generator(2))
    draws, source = 2000, generator(3)
    mean = sum(dequantise(quantise(values, bits, source), (BLOCK,)).double() for _ in range(draws)) / draws
    scale = values.abs().max().item() / (2 ** (bits - 1) - 1)
    # A value's deviation is at most half a scale; five deviations of the mean over all values.
    assert (mean - values.double()).abs().max() < 5 * 0.5 * scale * 1.01 / draws**0.5


def test_more_bits_are_closer_and_zeros_and_peaks_stay():
    values = torch.randn(50, 50, generator=generator(4))
    values[:5] = 0.0
    errors = []
    for bits in BITS:
        got = dequantise(quantise(values, bits, generator()), (50, 50))
        assert (got[:2] == 0).all()
        errors.append((got.double() - values.double()).square().mean().sqrt().item())
    ratios = [coarse / fine for coarse, fine in zip(errors[1:], errors[2:], strict=False)]
    assert all(1.8 < ratio < 2.5 for ratio in ratios), ratios
    empty = torch.zeros(3, BLOCK)
    assert torch.equal(dequantise(quantise(empty, 4, generator()), (3, BLOCK)), empty)


def test_the_same_seed_gives_the_same_codes():
    values = torch.randn(300, generator=generator(5))
    first, again, other = (quantise(values, 6, generator(seed)) for seed in (1, 1, 2))
    assert torch.equal(first.planes, again.planes) and not torch.equal(first.planes, other.planes)


@pytest.mark.parametrize("bits", [1, 17])
def test_other_widths_are_refused(bits):
    with pytest.raises(ValueError, match="`bits` must be from 2 to 16; got"):
        quantise(torch.ones(3), bits, generator())


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_values_that_are_not_finite_are_refused(bad):
    with pytest.raises(ValueError, match="must be finite"):
        quantise(torch.tensor([1.0, bad]), 8, generator())
