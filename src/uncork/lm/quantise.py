"""Large tensors in few bits: blocks with one scale each, rounded so that the error's mean is zero.

With b bits a block of 128 values is held as integers of [-L, L], L = 2^(b-1) - 1, times the block's
largest magnitude over L. Rounding goes up or down by chance, in proportion to the distance, so the value
read back is the one written on average, and never more than one scale away from it; or to the nearest,
which is off by half a scale at most, always in the same direction.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


BLOCK = 128
SMALLEST_BITS, LARGEST_BITS = 2, 16


@dataclass(frozen=True)
class Quantised:
    """`planes` holds bit i of every code in row i, eight to a byte; `scales` one number per block."""

    planes: Tensor
    scales: Tensor


def quantise(values: Tensor, bits: int, generator: torch.Generator | None) -> Quantised:
    """`values` in `bits` bits each; all must be finite. Without a generator, rounded to the nearest."""
    if not SMALLEST_BITS <= bits <= LARGEST_BITS:
        raise ValueError(
            f"`bits` must be from {SMALLEST_BITS} to {LARGEST_BITS}; got {bits}. Pass a number such as 8."
        )
    if not torch.isfinite(values).all():
        raise ValueError("`values` must be finite, but some are NaN or infinite: has the run diverged?")
    levels = _levels(bits)
    flat = values.detach().reshape(-1).double()
    blocks = torch.nn.functional.pad(flat, (0, -flat.numel() % BLOCK)).view(-1, BLOCK)
    scales = _rounded_up(blocks.abs().amax(dim=1) / levels)
    # A block of zeros has the scale 0, and any divisor leaves it zero.
    divisors = torch.where(scales > 0, scales, 1.0).double()
    scaled = blocks / divisors[:, None]
    chance = 0.5 if generator is None else torch.rand(scaled.shape, generator=generator)
    whole = scaled.add_(chance).floor_().clamp_(-levels, levels)
    codes = whole.add_(levels).reshape(-1).numpy().astype(np.uint16)
    planes = [np.packbits((codes >> bit).astype(np.uint8) & 1) for bit in range(bits)]
    return Quantised(torch.from_numpy(np.stack(planes)), scales)


def dequantise(kept: Quantised, shape: tuple[int, ...]) -> Tensor:
    """The values as float32."""
    bits = kept.planes.shape[0]
    rows = kept.planes.numpy()
    codes = np.zeros(rows.shape[1] * 8, dtype=np.int32)
    for bit in range(bits):
        codes |= np.unpackbits(rows[bit]).astype(np.int32) << bit
    whole = torch.from_numpy(codes - _levels(bits)).view(-1, BLOCK)
    values = whole.double() * kept.scales.double()[:, None]
    return values.float().reshape(-1)[: math.prod(shape)].reshape(shape)


def quantised_bytes(count: int, bits: int) -> int:
    """What `count` values take in `bits` bits."""
    blocks = -(-count // BLOCK)
    return blocks * BLOCK * bits // 8 + blocks * torch.bfloat16.itemsize


def _levels(bits: int) -> int:
    return 2 ** (bits - 1) - 1


def _rounded_up(scales: Tensor) -> Tensor:
    """To bfloat16, never down: a smaller scale would not reach the block's largest value."""
    high_half = scales.float().view(torch.int32)
    rounded = ((high_half + 0xFFFF) >> 16 << 16).view(torch.float32)
    return rounded.to(torch.bfloat16)
