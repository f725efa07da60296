"""dL/dz from a table of its own: the CUDA source as C++ on a CPU, in the logits' memory, against float64."""

import copy
import ctypes
import functools
import subprocess

import numpy as np
import pytest
import torch

from tests.ops.compressed import growth_words, on_16_bytes
from tests.ops.test_cuda_sources import BOUND, COMPILER, SHIMS, SOURCES, at, right


pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")
ROWS, WORDS, BLOCKS, THREADS, WINDOW = 5, 9001, 2, 64, 56_320
TILE = 8 * THREADS
TARGET = np.array([0, TILE - 1, -100, TILE, WORDS - 1])
DTYPES = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}  # and half their spacing at 1
PACKED, ALIGNED = WORDS, 9008  # numbers from one row's start to the next


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    folder = tmp_path_factory.mktemp("row_gradient")
    source = (SOURCES / "row_gradient.cu").read_text().splitlines()
    kept = [s for s in source if "extern __shared__" not in s and "#include <cuda_" not in s]
    (folder / "kernel.cu").write_text("\n".join(kept))
    macros = {"THREADS": THREADS, "WINDOW": WINDOW, "BLOCKS": BLOCKS}
    subprocess.run(
        [COMPILER, "-O1", "-std=c++17", "-Wno-unknown-pragmas", "-shared", "-fPIC",
         f"-I{folder}", f"-I{SOURCES}", "-o", folder / "kernel.so", SHIMS / "row_gradient.cpp",
         *(f"-D{k}={v}" for k, v in macros.items())],
        check=True, capture_output=True,
    )  # fmt: skip
    return ctypes.CDLL(str(folder / "kernel.so"))


@functools.lru_cache(maxsize=4)
def slopes_of(table: str, intervals: int) -> np.ndarray:
    random, middle = np.random.default_rng(1), np.linspace(-BOUND, BOUND, intervals)
    noise = 0.3 * random.standard_normal(intervals)
    if table == "random":
        return np.log1p(np.exp(0.5413 + noise))
    if table == "learned":
        return 0.05 + 4.0 / (1.0 + np.exp(-middle)) + 0.5 * np.sin(3.0 * middle) ** 2
    if table == "far":  # its exponential is no float32 at the ends
        return 8.0 + noise
    slopes = 10.0 ** random.uniform(-6.0, 0.0, intervals)  # flat parts, and short steep ones
    slopes[::997] = 10.0 ** random.uniform(0.0, 3.0, len(slopes[::997]))
    slopes[intervals // 2 : intervals // 2 + 300] = 0.0
    if table == "falling":
        slopes[intervals // 2 + 300 :: 50] *= -1.0
    return slopes


def logits(kind: str) -> np.ndarray:
    draw = np.random.default_rng(0).standard_normal((ROWS, WORDS))
    z = {
        "narrow": 0.3 * draw, "wide": 3.5 * draw, "beyond": 14.0 * draw,
        "outside": draw + np.array([[0.0], [12.0], [-30.0], [2.0], [19.5]]),
        "masked": np.where(draw < -1.0, -np.inf, draw),
    }[kind]  # fmt: skip
    words = TARGET[TARGET >= 0]
    z[:, words] = np.clip(z[:, words], -25.0, 25.0)  # not masked
    return z.astype(np.float32)


def found(library, z, values, expected, share, factor, dtype, pitch, target=TARGET) -> np.ndarray:
    """dL/dz as the kernel leaves it in the first part of each row's memory."""
    rows, words = z.shape
    intervals = len(values) - 1
    pairs = np.stack([values[:-1], np.diff(values) * (intervals / (2 * BOUND))], 1).astype(np.float32)
    growth = on_16_bytes(growth_words(values, BOUND))
    counted = min(28_672, intervals)
    middle = (np.mean(z[0], where=np.abs(z[0]) <= BOUND) + BOUND) * intervals / (2 * BOUND)
    window = np.array([np.clip(middle - counted / 2, 0, intervals - counted)], np.int32)
    stats = np.stack([expected.lse - 3.25, np.full(rows, 3.25), factor, share]).astype(np.float32)
    memory = torch.full((rows * pitch + 4,), float("nan"))
    memory = memory[-memory.data_ptr() % 16 // 4 :][: rows * pitch].view(rows, pitch)
    memory[:, :words] = torch.from_numpy(z)
    library.run(
        ctypes.c_void_p(memory.data_ptr()), pitch, int(dtype == torch.float16), at(target), at(stats),
        at(pairs), at(growth), at(window), counted, min(WINDOW, len(growth) - 4),
        rows, words, intervals, ctypes.c_double(BOUND),
    )  # fmt: skip
    assert memory[:, words:].isnan().all()  # what lies behind a row is not its
    return memory.view(dtype)[:, :words].double().numpy()


@functools.lru_cache(maxsize=1)  # tests that follow each other share it
def problem(kind, table, intervals, z_loss=0.01):
    values = np.concatenate([[0.0], np.cumsum(slopes_of(table, intervals) * (2 * BOUND / intervals))]) - BOUND
    random = np.random.default_rng(2)
    weight, scale = random.random(WORDS) + 0.5, 8.0 * (random.random(ROWS) + 0.5)
    z = logits(kind)
    expected = right(z, values, TARGET, weight, scale, z_loss)
    valid = TARGET != -100
    share = valid * scale * weight[np.where(valid, TARGET, 0)]
    return z, values, expected, share, share + 2 * valid * scale * z_loss * expected.lse


def clear_of_knots(z, intervals):
    """A float32 logit that close to a knot may be read on its other side, where the slope is another."""
    position = np.nan_to_num((z.astype(float) + BOUND) * (intervals / (2 * BOUND)), neginf=-0.5)
    return np.abs(position - np.round(position)) > 2.0 * np.spacing(np.float32(intervals))


@pytest.mark.parametrize(
    ("dtype", "pitch"),
    [(torch.bfloat16, ALIGNED), (torch.bfloat16, PACKED), (torch.float16, ALIGNED)],
    ids=["bfloat16", "bfloat16-packed", "float16"],
)
@pytest.mark.parametrize("intervals", [40_000, 100_000, 99_999, 1_000_000])
@pytest.mark.parametrize("kind", ["narrow", "wide", "beyond", "outside", "masked"])
@pytest.mark.parametrize("table", ["random", "learned", "steep", "falling", "far"])
def test_gradient(library, table, kind, intervals, dtype, pitch):
    z, values, expected, share, factor = problem(kind, table, intervals)
    dz = found(library, z, values, expected, share, factor, dtype, pitch)
    clear = clear_of_knots(z, intervals)
    assert clear.mean() > 0.5
    # Half a step of the dtype; what words are off, 2^-13 and a bit; and what float32 knows of f:
    # the logit and the knots to their spacing, times the slope, and f itself to its own.
    index = np.clip(np.floor((z + BOUND) * (intervals / (2 * BOUND))), 0, intervals - 1).astype(int)
    steep = np.abs(np.diff(values) * (intervals / (2 * BOUND)))[index]
    far = np.where(np.isfinite(z), np.abs(z), 0.0)
    of_f = 4e-7 * (far * steep + np.abs(expected.lse)[:, None] + BOUND)
    size = np.abs(expected.dz)
    size[TARGET >= 0, TARGET[TARGET >= 0]] += (share * steep[range(ROWS), TARGET])[TARGET >= 0]
    smallest = 2.0**-25 if dtype == torch.float16 else 1e-38
    allowed = np.abs(expected.dz) * DTYPES[dtype] + size * (2.0**-13 + 6e-5 + of_f) + smallest
    assert (np.abs(dz - expected.dz) <= allowed)[clear].all()
    assert (dz[2] == 0.0).all()  # ignored
    if kind == "masked":
        assert (dz[np.isinf(z)] == 0.0).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("table", ["random", "learned"])
@pytest.mark.parametrize("kind", ["narrow", "wide"])
def test_rounding_the_result_hides_the_table(library, kind, table, dtype):
    """The error against that of the exact gradient rounded once: no more than a hundredth of it."""
    z, values, expected, share, factor = problem(kind, table, 100_000)
    factor, share = 256.0 * factor, 256.0 * share  # where float16 has all its bits
    exact = 256.0 * expected.dz
    keep = clear_of_knots(z, 100_000) & (np.abs(exact) > 1e-4) & (np.abs(exact) < 6e4)
    dz = found(library, z, values, expected, share, factor, dtype, ALIGNED)
    rounded = torch.from_numpy(exact).to(dtype).double().numpy()
    error, unavoidable = (x[keep] / exact[keep] - 1.0 for x in (dz, rounded))
    ratio = np.sqrt(np.mean(error**2) / np.mean(unavoidable**2))
    assert ratio <= {torch.bfloat16: 1.0001, torch.float16: 1.003}[dtype]


@pytest.mark.parametrize("pitch", [PACKED, ALIGNED], ids=["packed", "aligned"])
def test_what_is_no_number_stays_none(library, pitch):
    """A logit of NaN, or infinite, has a gradient of NaN; so has a row whose sum is NaN, but not the next."""
    z, values, expected, share, factor = copy.deepcopy(problem("narrow", "random", 100_000))
    z[0, 7], z[1, 8] = np.nan, np.inf
    expected.lse[3] = np.nan
    dz = found(library, z, values, expected, share, factor, torch.bfloat16, pitch)
    assert np.isnan(dz[0, 7]) and not np.isfinite(dz[1, 8])
    assert np.isnan(dz[3]).all() and np.isfinite(dz[4]).all()
