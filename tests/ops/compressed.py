"""Tables as `uncork.ops.triton` compresses them, in numpy, and read as the kernels do."""

import numpy as np


GROUP, PIECE = 32, 128
STEEPEST = 124
MISSING = 0x7FFFFFFF


def compress(values: np.ndarray, bound: float) -> tuple[np.ndarray, np.ndarray]:
    """Codes and bases of the knot values: see `compress_kernel`."""
    intervals = len(values) - 1
    index = np.arange(-(-intervals // PIECE) * PIECE).reshape(-1, GROUP)
    known = np.minimum(index, intervals - 1)
    rise = values[known + 1] - values[known]
    value = (values[known] + rise * (0.5 * (intervals % 2))) * np.log2(np.e)
    slope = (rise * np.log2(np.e) * (intervals / (2 * bound))).astype(np.float32)
    lowest, highest = value.min(1, keepdims=True), value.max(1, keepdims=True)
    room = np.maximum(((highest - lowest) * 1.01 + np.abs(lowest) * 2.0**-11).astype(np.float32), 1e-18)
    exponent = (room.astype(np.float32).view(np.int32) >> 23) + 1
    reach = 2.0 ** (np.minimum(exponent, 254) - 127)
    below = (lowest - reach - (np.abs(lowest) + reach) * 2.0**-13).astype(np.float32)
    base = (below.view(np.int32) & -512) | exponent
    number = np.floor(((value - base.view(np.float32)) / reach - 1.0) * 8192.0 + 0.5)
    number = np.clip(number, 0, 8191).astype(np.int64)
    bits = np.maximum((slope.view(np.int32) - (number >> 1) + 2048) >> 12, 0)
    fine = (exponent <= STEEPEST) & (slope >= 0) & (slope < 1e30) & (index > 0) & (index < intervals - 1)
    bits = np.where(fine, bits, 0x7FFFF)
    codes = (number << 10) | (bits >> 9) | ((bits & 511) << 23)
    return codes.astype(np.uint32).ravel(), base.astype(np.int32).view(np.uint32).ravel()


def read(codes: np.ndarray, bases: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Values and slopes of log2(e) f, in float32 as in the kernel; the slope is NaN where it is not held."""
    codes, bases = codes.view(np.uint32), np.repeat(bases.view(np.uint32), GROUP)
    slope = np.abs(((codes << np.uint32(21)) | (codes >> np.uint32(11))).view(np.float32))
    above = ((bases << np.uint32(23)) | (codes & np.uint32(0x7FFC00))).view(np.float32)
    return bases.view(np.float32) + above, slope


def growth_words(values: np.ndarray, bound: float) -> np.ndarray:
    """As `uncork.ops.triton.growth` makes them."""
    intervals = len(values) - 1
    rise, reference = np.diff(values), values[intervals // 2]
    with np.errstate(over="ignore"):
        growth = (rise * (intervals / (2 * bound)) * np.exp(values[:-1] + 0.5 * rise - reference)).astype(
            np.float32
        )
    units = np.floor(np.clip(rise, -1.0, 1.0) * 8192.0 + 0.5).astype(np.int64)
    bits = ((growth.view(np.int32) - units + 128) >> 8 << 8) | units
    fine = ((growth > 1e-30) & (growth < 1e30)) | (rise == 0.0)
    fine &= (rise >= 0.0) & (units < 256)
    fine[[0, -1]] = False
    words = np.full(-(-intervals // 4) * 4, MISSING, np.uint32)
    words[:intervals] = np.where(fine, bits, MISSING)
    behind = np.array([reference, 1.0, 1.0, 1.0], np.float32).view(np.uint32)
    return np.concatenate([words, behind])


def on_16_bytes(array: np.ndarray) -> np.ndarray:
    """The same numbers, where a GPU would have them: at a multiple of 16 bytes."""
    room = np.zeros(len(array) + 4, np.uint32)
    room = room[-room.ctypes.data % 16 // 4 :][: len(array)]
    room[:] = array
    return room


def value_error(values: np.ndarray, codes: np.ndarray, bases: np.ndarray) -> float:
    """The most that a value of f held by a code is off."""
    intervals = len(values) - 1
    value, slope = (x[:intervals] for x in read(codes, bases))
    right = values[:-1] + 0.5 * (intervals % 2) * np.diff(values)
    return np.abs(value.astype(float) / np.log2(np.e) - right)[~np.isnan(slope)].max()
