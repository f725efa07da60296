"""The compiled CPU pass: the torch pass's numbers, any number of threads, a clean way back without it."""

import os
import stat
import tempfile

import pytest
import torch

import uncork
from tests.helpers import (
    CHUNKED,
    CHUNKED_TORCH,
    assert_same,
    gradients,
    make_case,
    our_loss,
    ours,
    rms,
    truth,
)
from uncork.functions import PLIF
from uncork.ops import cpu_pass


compiled = pytest.mark.skipif(cpu_pass.status() != "compiled", reason=cpu_pass.status())


@pytest.fixture
def rebuilt():
    """Forget the library before and after, so that a test's surroundings decide what is built."""
    cpu_pass._build.cache_clear()
    yield
    cpu_pass._build.cache_clear()


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def falls_back(reason):
    """The loss is right, `status` says why the torch pass computes it."""
    assert cpu_pass.status().startswith("torch (") and reason in cpu_pass.status()
    case = make_case((7,), function="plif7", dtype=torch.float32)
    assert_same(ours(case, CHUNKED), ours(case, CHUNKED_TORCH), rtol=0, atol=0)


def test_without_a_compiler(monkeypatch, rebuilt, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    falls_back("no C compiler")


def test_a_compiler_that_fails(monkeypatch, rebuilt, tmp_path):
    broken = tmp_path / "cc"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    falls_back("cc failed")
    assert not list((tmp_path / "cache").rglob("*.so"))


def test_a_compiler_that_writes_rubbish(monkeypatch, rebuilt, tmp_path):
    broken = tmp_path / "cc"
    broken.write_text('#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\necho rubbish > "$2"\n')
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    falls_back("cc failed")


@compiled
def test_a_folder_that_cannot_be_written(monkeypatch, rebuilt, tmp_path):
    """A read-only home: the library goes to a temporary folder."""
    locked = tmp_path / "locked"
    locked.mkdir()
    locked.chmod(stat.S_IRUSR | stat.S_IXUSR)
    monkeypatch.setenv("XDG_CACHE_HOME", str(locked))
    # The superuser may write anywhere: say no for it.
    original = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK and original(path, mode))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert cpu_pass.status() == "compiled"
    assert list(tmp_path.glob("uncork-*/*.so"))


@compiled
def test_no_home(monkeypatch, rebuilt, tmp_path):
    def homeless():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(cpu_pass.Path, "home", homeless)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert cpu_pass.status() == "compiled"


@compiled
def test_built_once(monkeypatch, rebuilt, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cpu_pass.status() == "compiled"
    (library,) = tmp_path.rglob("*.so")
    built = library.stat().st_mtime_ns
    cpu_pass._build.cache_clear()
    assert cpu_pass.status() == "compiled"
    assert library.stat().st_mtime_ns == built
    assert oct(library.parent.stat().st_mode)[-3:] == "700"


@compiled
def test_a_damaged_library_is_built_again(monkeypatch, rebuilt, tmp_path):
    """As a machine that lost power may leave it; not the generic one, which is slower, in its place."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "whole"))
    assert cpu_pass.status() == "compiled"
    (library,) = tmp_path.rglob("*.so")
    # In another folder: what a process has loaded from a path it does not read again.
    damaged = tmp_path / "damaged" / library.relative_to(tmp_path / "whole")
    damaged.parent.mkdir(mode=0o700, parents=True)
    damaged.touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "damaged"))
    cpu_pass._build.cache_clear()
    assert cpu_pass.status() == "compiled"
    assert list(damaged.parent.iterdir()) == [damaged] and damaged.stat().st_size == library.stat().st_size


@compiled
def test_a_folder_that_others_may_write_to_is_not_used(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "uncork"
    folder.mkdir()
    folder.chmod(0o777)
    private = cpu_pass._cache_folder()
    assert private != folder and oct(private.stat().st_mode)[-3:] == "700"
    private.rmdir()
    folder.chmod(0o755)
    assert cpu_pass._cache_folder() == folder


def test_switched_off(monkeypatch):
    def refuse(*_):
        raise AssertionError("the compiled pass ran")

    monkeypatch.setattr(cpu_pass.CpuPass, "run", refuse)
    case = make_case((7,), function="plif7", dtype=torch.float32)
    with cpu_pass.disabled():
        assert cpu_pass.status() == "torch (switched off)"
        off = ours(case, CHUNKED)
    assert_same(off, truth(case, CHUNKED), rtol=2e-6, atol=2e-7)
    if cpu_pass.status() == "compiled":
        with pytest.raises(AssertionError, match="the compiled pass ran"):
            ours(case, CHUNKED)


@compiled
@pytest.mark.parametrize("function", [None, "scale", "plif7", "plif1001", "network"])
@pytest.mark.parametrize("dense", [False, True], ids=["words", "dense"])
def test_agrees_with_the_torch_pass(dense, function):
    """At odd sizes, to a few rounding steps of the largest entry."""
    case = make_case((63,), 13, 1507, function=function, dense=dense, dtype=torch.float32, weight=True)
    assert_same(ours(case, CHUNKED), ours(case, CHUNKED_TORCH), rtol=2e-6, atol=2e-8)


@compiled
@pytest.mark.parametrize("low, high", [(-1.0, 0.0), (-30.0, 0.0), (-86.0, -30.0), (-1e4, -86.0)])
def test_exponential(low, high):
    """Probabilities of words `low`..`high` below the top: relative error of a few float32 steps, then 0."""
    gap = torch.linspace(low, high, 4001)
    bias = torch.cat([torch.zeros(1), gap]).requires_grad_()
    # d loss / d bias is p, but for the target; hidden states of 0 leave the bias alone.
    target = torch.zeros(1, dtype=torch.int64)
    loss = uncork.linear_cross_entropy(
        torch.zeros(1, 1), torch.zeros(4002, 1), target, linear_bias=bias, backend="chunked"
    )
    loss.backward()
    right = torch.softmax(bias.detach().double(), 0)[1:]
    found = bias.grad[1:].double()
    smallest = torch.finfo(torch.float32).tiny
    assert ((found - right).abs() <= 5e-7 * right + smallest).all()


def in_one_chunk(case):
    """With room for as many threads as there are."""
    with CHUNKED.on(10**8):
        return gradients(our_loss(case, CHUNKED.name), case)


@compiled
@pytest.mark.parametrize("function", [None, "scale", "plif7", "plif1001"])
def test_threads(threads, function):
    """1 to 4 threads agree to rounding; the same number of threads gives the same bits."""
    case = make_case((40,), 7, 301, function=function, dtype=torch.float32)
    results = {}
    for count in (1, 2, 3, 4):
        threads(count)
        results[count] = in_one_chunk(case)
        assert_same(in_one_chunk(case), results[count], rtol=0, atol=0)
    for count in (2, 3, 4):
        assert_same(results[count], results[1], rtol=1e-6, atol=1e-9)


@compiled
def test_threads_keep_sums_of_their_own(threads):
    """More threads than cores, and sums long enough for two to meet: lost additions would show."""
    case = make_case((4000,), 4, 300, function=PLIF(2, 20.0), dtype=torch.float32)
    found = []
    for count in (1, 8):
        threads(count)
        found.append(in_one_chunk(case)["function.v"])
    torch.testing.assert_close(found[1], found[0], rtol=1e-6, atol=0)


@compiled
@pytest.mark.parametrize("knots", [2, 1_000_000])
def test_knots(knots):
    case = make_case((9,), 5, 203, function=PLIF(knots, 4.0, "random", seed=0), dtype=torch.float32)
    found, right = ours(case, CHUNKED), truth(case)
    assert rms(found["loss"] - right["loss"]) <= 1e-6 * rms(right["loss"])
    # Slopes jump from knot to knot, and a logit's rounding moves it over several of a million.
    moved = torch.cumsum(found["function.v"] - right["function.v"], 0).abs().max()
    assert moved <= 1e-4 * right["function.v"].abs().sum()


@compiled
def test_more_threads_than_the_budget_holds(threads):
    """A budget too small for every thread's scratch means fewer threads, not chunks of one token."""
    threads(4)
    case = make_case((64,), 3, 1000, dtype=torch.float32)
    made = []
    original = cpu_pass.CpuPass.run

    def spy(self, problem, logits_NKV, row_scale_N):
        made.append((len(logits_NKV), self.threads))
        return original(self, problem, logits_NKV, row_scale_N)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu_pass.CpuPass, "run", spy)
        with uncork.chunk_bytes(40_000):
            uncork.linear_cross_entropy(case.input, case.weight, case.target)
    assert all(tokens >= 4 for tokens, _ in made) and all(1 <= used < 4 for _, used in made)


class Falling(torch.nn.Module):
    def forward(self, z):
        return -10 * z


@compiled
def test_a_function_that_is_not_increasing_shows():
    """It breaks the contract; the loss must not be a plausible number of the wrong sign or size."""
    function = uncork.functions.Tabulated(Falling(), knots=100)
    bias = torch.linspace(-15, 15, 31)
    loss = uncork.linear_cross_entropy(
        torch.zeros(1, 1), torch.zeros(31, 1), torch.tensor([0]), linear_bias=bias, function=function
    )
    with cpu_pass.disabled():
        right = uncork.linear_cross_entropy(
            torch.zeros(1, 1), torch.zeros(31, 1), torch.tensor([0]), linear_bias=bias, function=function
        )
    assert not loss.isfinite() or torch.allclose(loss, right)


@compiled
def test_one_word_beyond_the_top_shows():
    """It is exp(90) times the word of the highest logit, more than float32 holds."""
    weight = torch.tensor([[-4.5], [4.5]])
    function = uncork.functions.Tabulated(Falling(), knots=100)
    loss = uncork.linear_cross_entropy(
        torch.ones(1, 1), weight, torch.tensor([1]), function=function, backend="chunked"
    )
    assert not loss.isfinite()


@compiled
@pytest.mark.parametrize("function", [None, "scale", "plif1001"])
@pytest.mark.parametrize("ahead", [5.0, 10.0, 15.0, 20.0])
def test_a_sure_word_keeps_the_digits_of_its_loss(ahead, function):
    """p is 1 less what the other words have: beside a 1 in float32 nothing would be left of that."""
    case = make_case((1,), 1, 1000, function=function, dtype=torch.float32)
    case.target = torch.tensor([3])
    assert case.bias is not None
    with torch.no_grad():
        case.input.fill_(1.0)
        case.weight.zero_()
        case.bias.zero_()[3] = ahead + 7.0
    found, right = ours(case, CHUNKED), truth(case)
    assert 0.0 < right["loss"] < 0.3
    for name in ("loss", "bias"):
        torch.testing.assert_close(found[name].double(), right[name], rtol=2e-4, atol=0.0)
