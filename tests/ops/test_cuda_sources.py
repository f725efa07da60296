"""The CUDA sources run as C++ on a CPU, against sums in float64: the arithmetic, and that barriers agree.

A GPU runs them in the tests of the triton backend; this is what the CPU suite alone can prove.
"""

import ctypes
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from tests.ops import compressed


SOURCES = Path(__file__).parents[2] / "src" / "uncork" / "ops" / "triton"
SHIMS = Path(__file__).parent / "cuda"
COMPILER = shutil.which("c++")
pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")
BOUND, WORDS, BLOCKS, THREADS = 20.0, 9001, 2, 64
# Knots in each kernel's window, and how many logits outside it the counting one has room for. "coarse" is
# table_gradient with a compressed table, its bases and some codes in shared memory, or nothing if "cached".
WINDOWS = {"table_counts": 40_960, "table_gradient": 28_672, "coarse": 28_672, "cached": 28_672}
COARSE = ("coarse", "cached")
LIST, BASES, CODES = 2_048, 32_768, 20_000


@pytest.fixture(scope="module", params=list(WINDOWS))
def kernel(request, tmp_path_factory):
    """One of the kernels by name, and the library that runs it."""
    window = WINDOWS[request.param]
    name = "table_gradient" if request.param in COARSE else request.param
    folder = tmp_path_factory.mktemp(name)
    source = (SOURCES / f"{name}.cu").read_text()
    # Of shared memory of no stated size, and headers of low precisions, the shim has its own.
    kept = [s for s in source.splitlines() if "extern __shared__" not in s and "#include <cuda_" not in s]
    (folder / "kernel.cu").write_text(
        "\n".join(kept).replace("#define THREADS 1024\n#ifndef EACH", "#ifndef EACH")
    )
    macros = {
        "THREADS": THREADS, "EACH": 8, "BLOCKS": BLOCKS, "WINDOW": window, "OWN": window // THREADS,
        "WORDS": window + LIST, "SPILLS": BLOCKS,
        **({"BASES": BASES, "CODES": CODES} if request.param == "coarse" else {"BASES": 0, "CODES": 0}),
    }  # fmt: skip
    library = folder / "kernel.so"
    subprocess.run(
        [COMPILER, "-O1", "-std=c++17", "-Wno-unknown-pragmas", "-shared", "-fPIC",
         f"-I{folder}", f"-I{SOURCES}", "-o", library,
         SHIMS / f"{name}.cpp", *(f"-D{k}={v}" for k, v in macros.items())],
        check=True, capture_output=True,
    )  # fmt: skip
    return request.param, ctypes.CDLL(str(library))


def compress(kernel, values: np.ndarray) -> list[np.ndarray]:
    """Hand a compressed table to the kernel that reads one; it must be kept until that has run."""
    name, library = kernel
    if name not in COARSE:
        return []
    tables = [compressed.on_16_bytes(x) for x in compressed.compress(values, BOUND)]
    library.compress(*map(at, tables))
    return tables


def compressed_error(kernel, values: np.ndarray) -> float:
    """The most a value is off in the table that the kernel reads: nothing, unless it is compressed."""
    if kernel[0] not in COARSE:
        return 0.0
    return compressed.value_error(values, *compressed.compress(values, BOUND))


def at(array: np.ndarray) -> ctypes.c_void_p:
    return array.ctypes.data_as(ctypes.c_void_p)


@dataclass
class Sums:
    """What a kernel must give: logsumexp and f at the target of each row, dL/dz, and sums per knot."""

    lse: np.ndarray
    f_word: np.ndarray
    dz: np.ndarray
    knots: np.ndarray
    beyond: np.ndarray
    size: np.ndarray  # of all g in each interval, up and down


def right(z, values, target, weight, scale, z_loss) -> Sums:
    """In float64, a line for each formula."""
    intervals = len(values) - 1
    step = 2 * BOUND / intervals
    z = z.astype(float)
    index = np.clip(np.floor((z + BOUND) / step), 0, intervals - 1).astype(int)
    offset = z - (index * step - BOUND)
    slope = np.diff(values)[index] / step
    f = values[index] + slope * offset
    top = f.max(1)
    lse = top + np.log(np.exp(f - top[:, None]).sum(1))
    valid = target != -100
    word, rows = np.where(valid, target, 0), np.arange(len(z))
    share = valid * scale * weight[word]
    g = (share + 2 * valid * scale * z_loss * lse)[:, None] * np.exp(f - lse[:, None])
    g[rows, word] -= share
    t = np.clip(offset / step, 0, 1)
    knots = np.bincount(index.ravel(), (g * (1 - t)).ravel(), intervals + 1)
    knots[1:] += np.bincount(index.ravel(), (g * t).ravel(), intervals)
    far = np.where(g == 0.0, 0.0, g) * np.where(g == 0.0, 0.0, offset - t * step)
    beyond = np.array([far[z < -BOUND].sum(), far[z > BOUND].sum()])
    size = np.bincount(index.ravel(), np.abs(g).ravel(), intervals)
    return Sums(lse, f[rows, word], g * slope, knots, beyond, size)


def found(kernel, z, values, target, weight, scale, z_loss, expected, chunks=1) -> Sums:
    name, library = kernel
    intervals = len(values) - 1
    step = 2 * BOUND / intervals
    pairs = np.stack([values[:-1], np.diff(values) / step], 1).astype(np.float32)
    width = WINDOWS[name]
    middle = (z[0][np.abs(z[0]) <= BOUND].mean() + BOUND) / step
    origin = int(np.clip(middle - (width - 1) / 2, 0, max(intervals - (width - 1), 0)))
    window = np.array([origin, middle], np.int32)
    share = (target != -100) * scale * weight[np.where(target == -100, 0, target)]
    factor = share + 2 * (target != -100) * scale * z_loss * expected.lse
    given = np.stack([expected.lse, np.zeros(len(z)), factor, share, np.ones(len(z))]).astype(np.float32)
    stats, dz = [], np.zeros(z.shape, np.float32)
    tables = compress(kernel, values)
    staging = np.zeros((BLOCKS, width), np.float32)
    spill, beyond = np.zeros((BLOCKS, intervals, 2), np.float32), np.zeros(2)
    weight, scale = weight.astype(np.float32), scale.astype(np.float32)
    for part in np.array_split(np.arange(len(z)), chunks):
        rows = slice(part[0], part[-1] + 1)
        stats.append(np.zeros((3, len(part)), np.float32))
        theirs = np.ascontiguousarray(given[:, rows])
        arrays = (z[rows], theirs, target[rows], weight, scale[rows], pairs, window)
        library.run(
            *map(at, arrays), at(stats[-1]), at(dz[rows]), at(staging), at(spill), at(beyond),
            len(part), z.shape[1], intervals, ctypes.c_double(z_loss), ctypes.c_double(BOUND),
        )  # fmt: skip
    del tables
    knots = np.zeros(max(intervals + 1, origin + width))
    knots[:intervals] += spill[:, :, 0].sum(0)
    knots[1 : intervals + 1] += spill[:, :, 1].sum(0)
    knots[origin : origin + width] += staging.astype(float).sum(0)
    assert not knots[intervals + 1 :].any()
    peak, total, f_word = np.concatenate(stats, 1).astype(float)
    with np.errstate(divide="ignore"):
        lse = peak + np.log(total)
    return Sums(lse, f_word, dz, knots[: intervals + 1], beyond, np.zeros(0))


def logits(kind: str) -> np.ndarray:
    rows = 11 if kind == "changing" else 3
    draw = np.random.default_rng(0).standard_normal((rows, WORDS))
    half = np.arange(WORDS) % 2 == 0
    # A block has every second row: what it did with one must not change what it does with the next.
    crowded = np.isin(np.arange(rows) // 2, [1, 2, 4])[:, None]
    z = {
        "narrow": 0.3 * draw, "wide": 3.5 * draw, "moved": draw + 7.0, "beyond": 14.0 * draw,
        "equal": 0.0 * draw + 0.12371, "close": 0.3 + 1e-4 * draw,
        "outside": draw + np.array([[0.0], [12.0], [-30.0]])[np.arange(rows) % 3],
        "masked": np.where(draw < -1.0, -np.inf, draw), "edge": -19.5 + 1e-4 * draw,
        "far equal": np.where(np.arange(rows)[:, None] == 2, 19.99, -10.0) + 0.0 * draw,
        "half equal": np.where(half, 3.5 * draw, -0.61234),
        "half masked": np.where(half, -np.inf, 0.02 * draw),
        "changing": np.where(crowded, 0.5 + 1e-4 * draw, np.where(half, 2.0, 5.0) * draw),
    }[kind]  # fmt: skip
    z[:, [5, 17]] = np.clip(z[:, [5, 17]], -25.0, 25.0)  # the targets: not masked
    return z.astype(np.float32)


def setting(z: np.ndarray, intervals: int):
    random = np.random.default_rng(1)
    slopes = np.log1p(np.exp(0.5413 + 0.3 * random.standard_normal(intervals)))
    values = np.concatenate([[0.0], np.cumsum(slopes * (2 * BOUND / intervals))]) - BOUND
    target = np.resize([5, -100, 17], len(z))
    weight, scale = random.random(z.shape[1]) + 0.5, np.resize([0.5, 0.25, 0.3], len(z))
    return z, values, target, weight, scale, 0.01


@pytest.mark.parametrize("intervals", [20_001, 100_000, 1_000_000])
@pytest.mark.parametrize("kind", ["narrow", "wide", "moved", "beyond", "equal", "close", "outside", "masked"])
def test_sums(kernel, kind, intervals):
    check_sums(kernel, logits(kind), intervals)


@pytest.mark.parametrize("kernel", ["table_counts"], indirect=True)
@pytest.mark.parametrize("intervals", [20_001, 100_000, 1_000_000])
@pytest.mark.parametrize("kind", ["edge", "far equal", "half equal", "half masked", "changing"])
def test_rows_that_packed_words_cannot_count(kernel, kind, intervals):
    check_sums(kernel, logits(kind), intervals)


@pytest.mark.parametrize("kernel", ["table_counts"], indirect=True)
@pytest.mark.parametrize("kind", ["wide", "changing"])
def test_chunks_add_up(kernel, kind):
    check_sums(kernel, logits(kind), 100_000, chunks=3)


@pytest.mark.parametrize("kernel", ["table_counts"], indirect=True)
@pytest.mark.parametrize("words", [31, 511, 512, 513, 1025])
def test_any_number_of_words(kernel, words):
    check_sums(kernel, np.resize(logits("wide"), (3, words)), 100_000, word=0)


@pytest.mark.parametrize("kernel", ["table_counts"], indirect=True)
@pytest.mark.parametrize(("bad", "total"), [(np.nan, np.nan), (np.inf, np.nan), (-np.inf, 0.0)])
def test_a_bad_row_that_is_ignored_leaves_the_sums_alone(kernel, bad, total):
    problem = setting(logits("wide"), 100_000)
    expected = right(*problem)
    problem[0][1, :: 1 if bad == -np.inf else 100] = bad
    with np.errstate(invalid="ignore"):
        sums = found(kernel, *problem, expected)
    assert np.isfinite(sums.knots).all()
    assert np.abs(np.cumsum(sums.knots - expected.knots)).max() <= 1e-4 * expected.size.sum()
    assert np.array_equal(np.exp(sums.lse[1]), total, equal_nan=True)
    assert np.allclose(sums.lse[[0, 2]], expected.lse[[0, 2]], rtol=1e-6, atol=2e-6)


@pytest.mark.parametrize("kernel", ["table_counts"], indirect=True)
def test_a_logit_that_is_nan_shows(kernel):
    problem = setting(logits("narrow"), 100_000)
    expected = right(*problem)
    problem[0][0, 100] = np.nan
    sums = found(kernel, *problem, expected)
    assert np.isnan(sums.lse[0]) and np.isnan(sums.knots.sum())


@pytest.mark.parametrize("kernel", ["table_counts"], indirect=True)
def test_a_steep_table_does_not_overflow_above_the_highest_logit(kernel):
    z, values, *rest = setting(logits("narrow"), 100_000)
    values = np.where(values > 2.0, 2.0 + 40.0 * (values - 2.0), values)
    problem = (z, values, *rest)
    expected = right(*problem)
    sums = found(kernel, *problem, expected)
    assert np.isfinite(sums.knots).all()
    assert np.abs(np.cumsum(sums.knots - expected.knots)).max() <= 1e-4 * expected.size.sum()


@pytest.mark.parametrize("kernel", ["table_counts"], indirect=True)
@pytest.mark.parametrize(
    "intervals, slope, a, most",
    [
        (20_001, 10, "0.02", 2e-5),
        (100_000, 50, "0.02", 2e-5),
        (20_001, 50, "0.1", 2e-4),
        (20_001, 100, "0.2", 1e-3),
    ],
)
def test_how_far_counting_is_right_where_slopes_are_steep(kernel, intervals, slope, a, most):
    """As docs/kernels.md says; and no better by far, or it should say so."""
    assert f"{slope * 2 * BOUND / intervals:.1g}" == a
    z, values, *rest = setting(logits("narrow"), intervals)
    problem = (z, slope * values, *rest)
    expected = right(*problem)
    error = np.abs(found(kernel, *problem, expected).lse - expected.lse).max()
    assert most / 30 <= error <= most


@pytest.mark.parametrize("kind", ["equal", "close", "wide"])
def test_a_negative_gradient_from_above(kernel, kind):
    """Sums that wrap around do so in either direction."""
    check_sums(kernel, logits(kind), 100_000, last_scale=-0.3)


@pytest.mark.parametrize("kernel", ["table_gradient", *COARSE], indirect=True)
@pytest.mark.parametrize("intervals", [2, 7])
def test_rows_alike_do_not_round_alike_chunk_after_chunk(kernel, intervals):
    """All logits equal and one row a chunk: what goes up and what comes down cancels but for a few units."""
    rows, words = 128, 2003
    values = 1.3 * np.linspace(-BOUND, BOUND, intervals + 1)
    target, weight, scale = np.full(rows, 5), np.ones(words), np.full(rows, 1.0 / rows)
    problem = (np.full((rows, words), 0.25, np.float32), values, target, weight, scale, 0.0)
    expected = right(*problem)
    sums = found(kernel, *problem, expected, chunks=rows)
    assert np.abs(np.cumsum(sums.knots - expected.knots)).max() <= 1e-8


def check_sums(kernel, z, intervals, chunks=1, word=None, last_scale=0.3):
    problem = setting(z, intervals)
    problem[4][-1] = last_scale
    if word is not None:
        problem[2][problem[2] != -100] = word
    expected = right(*problem)
    sums = found(kernel, *problem, expected, chunks)
    # dL/dv sums the knots from the right. A position in the table is not known better than its spacing, and
    # counting puts it to the nearest of 1024 places in its interval and may move a/6 of an interval's mass to
    # the next knot. That is of one interval, or of the next to it; else what float32 loses of a sum of all g.
    moved = np.cumsum((sums.knots - expected.knots)[::-1])[::-1]
    step, counting = 2.0 * BOUND / intervals, kernel[0] == "table_counts"
    slopes = np.diff(problem[1]) / step
    spacing = np.spacing(np.abs(z[np.isfinite(z)]) + np.float32(BOUND)).max() / step
    place = slopes.max() * step / 6.0 + 0.5 / 1024.0 if counting else 0.0
    around = np.convolve(expected.size, np.ones(3))  # the interval left of each knot, and its neighbours
    # A compressed table's value is off by a little, and g in proportion: by no more than 2.7e-6 of it where
    # PLIF has its 100,000 knots.
    coarse = compressed_error(kernel, problem[1])
    assert coarse <= 2.7e-6 or intervals < 100_000
    lost = (2e-6 + coarse) * expected.size.sum()
    assert (np.abs(moved) <= lost + min(spacing + place, 1.0) * around[: len(moved)]).all()
    assert abs(moved[0]) <= lost  # nothing is lost
    assert np.allclose(sums.beyond, expected.beyond, rtol=1e-5, atol=1e-6)
    if counting:
        assert np.allclose(sums.lse, expected.lse, rtol=1e-6, atol=2e-6)
        assert np.allclose(sums.f_word, expected.f_word, rtol=1e-6, atol=1e-6)
        return
    # A logit that close to a knot may be read on its other side, where the slope is another.
    position = np.nan_to_num((problem[0].astype(float) + BOUND) / step, neginf=-0.5)
    clear = np.abs(position - np.round(position)) > 2.0 * np.spacing(np.float32(intervals))
    assert clear.any()
    allowed = 1e-5 * np.abs(expected.dz).max() + (2.0**-12 + coarse if coarse else 0.0) * np.abs(expected.dz)
    assert (np.abs(sums.dz - expected.dz) <= allowed)[clear].all()


@pytest.mark.parametrize("kernel", COARSE, indirect=True)
@pytest.mark.parametrize("kind", ["narrow", "wide", "moved"])
def test_each_gradient_is_closer_than_tf32_rounds(kernel, kind):
    """Not only the large ones. TF32 rounds by up to 2^-11, and bfloat16 by more."""
    z, values, target, weight, scale, z_loss = setting(logits(kind), 100_000)
    expected = right(z, values, target, weight, scale, z_loss)
    sums = found(kernel, z, values, target, weight, scale, z_loss, expected)
    position = (z.astype(float) + BOUND) * (100_000 / (2 * BOUND))
    clear = np.abs(position - np.round(position)) > 2.0 * np.spacing(np.float32(100_000))
    keep = clear & (np.abs(expected.dz) > 1e-30)
    assert keep.mean() > 0.5
    assert np.abs(sums.dz / np.where(keep, expected.dz, 1.0) - 1.0)[keep].max() < 0.6 * 2.0**-11


@pytest.mark.parametrize("kernel", ["table_gradient", *COARSE], indirect=True)
@pytest.mark.parametrize("components", [1, 3])
def test_distributions(kernel, components):
    """Under a mixture with responsibilities that depend on the word, out of two numbers for each."""
    tokens, intervals = 2, 100_000
    random = np.random.default_rng(2)
    step = 2 * BOUND / intervals
    slopes = np.log1p(np.exp(0.5413 + 0.3 * random.standard_normal(intervals)))
    values = np.concatenate([[0.0], np.cumsum(slopes * step)]) - BOUND
    z = random.standard_normal((tokens, components, WORDS)).astype(np.float32)
    t = random.dirichlet(np.full(WORDS, 0.1), tokens)
    log_prior = np.log(random.dirichlet(np.ones(components), tokens))
    scale = np.array([0.5, 0.25])
    index = np.floor((z.astype(float) + BOUND) / step).astype(int)
    offset = z - (index * step - BOUND)
    f = values[index] + slopes[index] * offset
    lse = np.log(np.exp(f).sum(2))
    p = np.exp(f - lse[:, :, None])
    mixed = np.exp(log_prior)[:, :, None] * p
    r = mixed / mixed.sum(1, keepdims=True)
    share = scale[:, None] * (t[:, None] * r).sum(2)
    g = share[:, :, None] * p - scale[:, None, None] * t[:, None] * r
    top = np.log(mixed).max(1)
    pull = t / np.exp(np.log(mixed) - top[:, None]).sum(1)
    each = np.broadcast_to(scale[:, None], share.shape)
    given = [lse, 0.0 * lse, share, each, log_prior]
    if components == 1:  # the highest f, and the sum of exponentials less that: its logarithm, and itself
        highest = f.max(2)
        pull, given = t, [highest, lse - highest, share, each, np.exp(lse - highest)]
    given = np.stack(given).astype(np.float32)
    pairs = np.stack([values[:-1], slopes], 1).astype(np.float32)
    window = WINDOWS["table_gradient"]
    origin = int((z[0].mean() + BOUND) / step - window / 2)
    dz, staging = np.zeros(z.shape, np.float32), np.zeros((BLOCKS, window), np.float32)
    spill, beyond = np.zeros((BLOCKS, intervals, 2), np.float32), np.zeros(2)
    tables, coarse = compress(kernel, values), compressed_error(kernel, values)
    top = top.astype(np.float32)
    kernel[1].run_dense(
        at(z), at(given), at(pull.astype(np.float32)), at(top) if components > 1 else None, at(pairs),
        at(np.array([origin, origin + window // 2], np.int32)), at(dz), at(staging), at(spill), at(beyond),
        tokens * components, components, WORDS, intervals, ctypes.c_double(BOUND),
    )  # fmt: skip
    position = (z.astype(float) + BOUND) / step
    clear = np.abs(position - np.round(position)) > 2.0 * np.spacing(np.float32(intervals))
    del tables
    right_dz = g * slopes[index]
    allowed = 1e-5 * np.abs(right_dz).max() + (2.0**-12 if coarse else 0.0) * np.abs(right_dz)
    assert (np.abs(dz - right_dz) <= allowed)[clear].all()
    knots = np.bincount(index.ravel(), (g * (1 - offset / step)).ravel(), intervals + 1)
    knots[1:] += np.bincount(index.ravel(), (g * offset / step).ravel(), intervals)
    knots[:intervals] -= spill[:, :, 0].sum(0)
    knots[1:] -= spill[:, :, 1].sum(0)
    knots[origin : origin + window] -= staging.astype(float).sum(0)
    spacing = np.spacing(np.abs(z)).max() / step
    assert np.abs(np.cumsum(knots)).max() <= (2e-6 + coarse + spacing) * np.abs(g).sum()
