"""Statistics of rows from a compressed table: the CUDA source as C++ on a CPU, against float64."""

import ctypes
import functools
import subprocess

import numpy as np
import pytest

from tests.ops import compressed
from tests.ops.test_cuda_sources import BOUND, COMPILER, SHIMS, SOURCES, at, right
from tests.ops.test_row_gradient import slopes_of


pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")
# A block has more rows than there are slots for them, twice: see row_stats.cu.
ROWS, COMPONENTS, WORDS, BLOCKS, THREADS, WINDOW, IGNORED = 36, 2, 1203, 2, 64, 55_168, 3
KINDS = ["narrow", "wide", "beyond", "outside", "masked"]


@pytest.fixture(scope="module", params=[1, 3], ids=lambda quads: f"quads{quads}")
def library(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("row_stats")
    source = (SOURCES / "row_stats.cu").read_text().splitlines()
    (folder / "kernel.cu").write_text("\n".join(s for s in source if "extern __shared__" not in s))
    macros = {"THREADS": THREADS, "QUADS": request.param, "WINDOW": WINDOW, "BLOCKS": BLOCKS}
    subprocess.run(
        [COMPILER, "-O1", "-std=c++17", "-Wno-unknown-pragmas", "-shared", "-fPIC", f"-I{folder}",
         f"-I{SOURCES}", "-o", folder / "kernel.so", SHIMS / "row_stats.cpp",
         *(f"-D{k}={v}" for k, v in macros.items())],
        check=True, capture_output=True,
    )  # fmt: skip
    return ctypes.CDLL(str(folder / "kernel.so"))


@functools.lru_cache(maxsize=4)  # of as many numbers of intervals
def values_of(table: str, intervals: int) -> np.ndarray:
    return np.concatenate([[0.0], np.cumsum(slopes_of(table, intervals) * (2 * BOUND / intervals))]) - BOUND


@functools.lru_cache(maxsize=4)
def compressed_of(table: str, intervals: int) -> tuple[np.ndarray, np.ndarray]:
    return compressed.compress(values_of(table, intervals), BOUND)


def logits(kind: str, words: int = WORDS) -> np.ndarray:
    draw = np.random.default_rng(0).standard_normal((ROWS, words))
    z = {
        "narrow": 0.3 * draw, "wide": 3.5 * draw, "beyond": 14.0 * draw,
        "outside": draw + np.resize([0.0, 12.0, -30.0, 2.0, 19.5], ROWS)[:, None],
        "masked": np.where(draw < -1.0, -np.inf, draw),
    }[kind]  # fmt: skip
    asked = words_of(words)
    asked = asked[asked < words]
    z[:, asked] = np.clip(z[:, asked], -25.0, 25.0)  # not masked
    return z.astype(np.float32)


def words_of(words: int) -> np.ndarray:
    """Targets: each row's first and last word among them, and tokens that are ignored."""
    target = np.random.default_rng(3).integers(0, words, ROWS // COMPONENTS)
    target[[0, 1, 5, 7]] = 0, words - 1, IGNORED, IGNORED
    return target


def found(library, z, values, target, pitch=None, dense=False, held=None):
    """Top, total and f at the target; `pitch` is from one row's start to the next, `held` the codes."""
    (rows, words), intervals = z.shape, len(values) - 1
    pitch = words if pitch is None else pitch
    memory = compressed.on_16_bytes(np.zeros(rows * pitch, np.uint32)).view(np.float32)
    memory[:] = np.nan
    memory.reshape(rows, pitch)[:, :words] = z
    pairs = np.stack([values[:-1], np.diff(values) * (intervals / (2 * BOUND))], 1).astype(np.float32)
    codes, bases = map(compressed.on_16_bytes, held or compressed.compress(values, BOUND))
    inside = np.abs(z[0]) <= BOUND
    middle = (np.mean(z[0], where=inside) if inside.any() else 0.0) + BOUND
    window = np.array([0, middle * intervals / (2 * BOUND)], np.int32)
    stats = np.full(3 * rows, 7.0, np.float32)
    library.run(
        at(memory), pitch, at(target), at(stats), at(pairs), at(codes), at(bases), at(window),
        min(WINDOW, len(codes)), rows, COMPONENTS, words, intervals, int(dense), IGNORED,
        ctypes.c_double(BOUND),
    )  # fmt: skip
    return stats.reshape(3, rows).astype(float)


def expected_of(z, values, target):
    """logsumexp, f at the target, and the highest f, in float64."""
    rows = len(z)
    word = np.repeat(np.where(target == IGNORED, 0, target), COMPONENTS)
    sums = right(z, values, word, np.ones(z.shape[1]), np.ones(rows), 0.0)
    highest = right(z, values, z.argmax(1), np.ones(z.shape[1]), np.ones(rows), 0.0).f_word
    return sums.lse, sums.f_word, highest


def known(z, values):
    """What float32 knows of f: the logit to its spacing times the slope there, and f itself to its own."""
    intervals = len(values) - 1
    index = np.clip(np.floor((z + BOUND) * (intervals / (2 * BOUND))), 0, intervals - 1).astype(int)
    steep = np.abs(np.diff(values) * (intervals / (2 * BOUND)))[index]
    far = np.where(np.isfinite(z), np.abs(z), 0.0)
    return 1.5e-7 * ((far * np.maximum(steep, 1.0)).max(1) + BOUND)


@pytest.mark.parametrize("pitch", [WORDS, 1204], ids=["packed", "aligned"])
@pytest.mark.parametrize("intervals", [40_000, 100_000, 99_999, 1_000_000])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("table", ["random", "learned", "steep"])
def test_statistics(library, table, kind, intervals, pitch):
    z, values, target = logits(kind), values_of(table, intervals), words_of(WORDS)
    held = compressed_of(table, intervals)
    top, total, f_word = found(library, z, values, target, pitch, held=held)
    lse, right_f_word, highest = expected_of(z, values, target)
    float32 = known(z, values)
    coarse = compressed.value_error(values, *held)
    assert coarse <= 5.5e-6
    assert (np.abs(f_word - right_f_word) <= float32).all()
    assert (np.abs(top - highest) <= coarse + float32).all()
    assert (np.abs(top + np.log(total) - lse) <= coarse + float32).all()


@pytest.mark.parametrize("kind", ["narrow", "wide"])
def test_losses_are_right_to_3e_6_with_slopes_near_1(library, kind):
    z, values, target = logits(kind), values_of("random", 100_000), words_of(WORDS)
    top, total, f_word = found(library, z, values, target)
    lse, right_f_word, _ = expected_of(z, values, target)
    assert np.abs((f_word - top) - np.log(total) - (right_f_word - lse)).max() <= 3e-6
    assert np.abs(top + np.log(total) - lse).max() <= 3e-6


def test_a_word_that_is_certain_has_almost_no_loss(library):
    z, values = logits("narrow"), values_of("random", 100_000)
    target = np.full(ROWS // COMPONENTS, 77)
    z[:, 77] = np.linspace(11.5, 16.0, ROWS)  # outside the window, and inside it
    top, total, f_word = found(library, z, values, target)
    lse, right_f_word, _ = expected_of(z, values, target)
    loss, exact = np.log(total) - (f_word - top), lse - right_f_word
    assert (exact < 0.1).all() and np.abs(loss - exact).max() <= 1.5e-6


@pytest.mark.parametrize("words", [1, 31, 127, 128, 129, 255, 511, 768, 769, 5000])
def test_any_number_of_words(library, words):
    z, values, target = logits("wide", words), values_of("random", 100_000), words_of(words)
    for pitch in (words, -(-words // 4) * 4):
        top, total, f_word = found(library, z, values, target, pitch)
        lse, right_f_word, _ = expected_of(z, values, target)
        assert np.abs(top + np.log(total) - lse).max() <= 5e-6
        assert np.abs(f_word - right_f_word).max() <= 3e-6


def test_distributions_have_no_target_word(library):
    z, values, target = logits("wide"), values_of("random", 100_000), words_of(WORDS)
    top, total, untouched = found(library, z, values, target, dense=True)
    assert np.abs(top + np.log(total) - expected_of(z, values, target)[0]).max() <= 3e-6
    assert (untouched == 7.0).all()


def test_what_is_no_number_stays_in_its_row(library):
    z, values, target = logits("wide"), values_of("random", 100_000), words_of(WORDS)
    lse = expected_of(z, values, target)[0]
    z[4, 100], z[9, 1200], z[17] = np.nan, np.inf, -np.inf
    z[20, 1:], z[21] = -np.inf, np.nan
    top, total, _ = found(library, z, values, target)
    bad = np.isin(np.arange(ROWS), [4, 9, 17, 20, 21])
    with np.errstate(divide="ignore"):
        error = np.abs(top + np.log(total) - lse)[~bad]
    assert error.max() <= 3e-6
    assert np.isnan(total[[4, 9, 21]]).all()
    assert top[17] == -np.inf and total[17] == 0.0
    assert abs(total[20] - 1.0) <= 1e-6
