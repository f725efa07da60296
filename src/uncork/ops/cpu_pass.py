"""The compiled form of the chunk pass for CPU: `cpu_pass.c`, built once with the machine's C compiler.

Nothing is installed: the first float32 loss on CPU compiles one file (about a second) into the user's
cache folder. Without a compiler, or if the build fails, `status()` says why and the torch pass is used.
"""

import atexit
import contextlib
import ctypes
import functools
import hashlib
import os
import platform
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path

import torch
from torch import Tensor

from uncork.ops import table
from uncork.ops.abstract_pass import AbstractPass, ChunkResult
from uncork.ops.pointwise import Pointwise
from uncork.ops.problem import Problem


KINDS = {"identity": 0, "scale": 1, "table": 2}
SOURCE = Path(__file__).with_name("cpu_pass.c")
# No -ffast-math: the exponential and the order of sums are written to be fast without it.
FLAGS = ["-O3", "-std=gnu11", "-fno-math-errno", "-fno-trapping-math", "-fopenmp-simd"]
LINKING = ["-shared", "-fPIC", "-pthread"]

_enabled: ContextVar[bool] = ContextVar("uncork_cpu_pass", default=True)


class _Pass(ctypes.Structure):
    """Field for field the `Pass` of cpu_pass.c."""

    _fields_ = [
        ("z", ctypes.c_void_p),
        ("tokens", ctypes.c_int64),
        ("components", ctypes.c_int64),
        ("words", ctypes.c_int64),
        ("target", ctypes.c_void_p),
        ("dense", ctypes.c_void_p),
        ("token_weight", ctypes.c_void_p),
        ("row_scale", ctypes.c_void_p),
        ("log_prior", ctypes.c_void_p),
        ("z_loss", ctypes.c_float),
        ("kind", ctypes.c_int32),
        ("scale", ctypes.c_float),
        ("value", ctypes.c_void_p),
        ("slope", ctypes.c_void_p),
        ("intervals", ctypes.c_int64),
        ("bound", ctypes.c_double),
        ("loss", ctypes.c_void_p),
        ("d_log_prior", ctypes.c_void_p),
        ("sums", ctypes.c_void_p),
        ("threads", ctypes.c_int32),
    ]


@contextlib.contextmanager
def disabled() -> Iterator[None]:
    """Use the torch pass inside this block, to compare the two or to rule one out."""
    token = _enabled.set(False)
    try:
        yield
    finally:
        _enabled.reset(token)


def status() -> str:
    """One line: that the compiled pass is in use, or why it is not."""
    if not _enabled.get():
        return "torch (switched off)"
    return "compiled" if _library() is not None else f"torch ({_failure()})"


def usable(problem: Problem) -> bool:
    """Whether the compiled pass covers this problem: float32 on CPU, a known function, no smoothing."""
    return (
        _enabled.get()
        and problem.latent_NKD.device.type == "cpu"
        and problem.dtype == torch.float32
        and problem.form.kind in KINDS
        and problem.label_smoothing == 0.0
        and (not problem.dense or problem.latent_NKD.shape[1] == 1)
        and _library() is not None
    )


class CpuPass(AbstractPass):
    """The compiled pass; the gradient overwrites the logits."""

    def __init__(self, problem: Problem, function_grad: bool, size: int) -> None:
        form = problem.form
        self.form = form
        self.bytes_per_logit = 8 if problem.dense else 4  # a float32 copy of dense targets
        self.value, self.slope, self.sums = None, None, None
        intervals = 0
        if form.kind == "table":
            bound = form.constants[0]
            self.value, self.slope = table.values_and_slopes(form.tensors[0], bound, torch.float32)
            intervals = self.value.numel()
        # A thread has a copy of one token's rows, and sums of its own: at most half the budget for all.
        row = problem.latent_NKD.shape[1] * len(problem.weight_VD) * 8
        each = row + (16 * intervals if function_grad else 0)
        self.threads = max(1, min(torch.get_num_threads(), len(problem.latent_NKD), size // 2 // each))
        self.fixed_bytes = self.threads * each + 8 * intervals
        if function_grad and form.tensors:
            shape = (self.threads, max(intervals, 1), 2 if intervals else 1)
            self.sums = torch.zeros(shape, dtype=torch.float64, device="cpu")

    def run(self, problem: Problem, logits_NKV: Tensor, row_scale_N: Tensor | None) -> ChunkResult:
        library = _library()
        assert library is not None and logits_NKV.is_contiguous()
        tokens, components, words = logits_NKV.shape
        # The library writes float32 into these, whatever torch's default dtype and device are.
        loss_N = logits_NKV.new_empty(tokens, dtype=torch.float32)
        dlog_prior_NK = loss_N.new_empty(tokens, components) if row_scale_N is not None else None
        # Kept in a list: the structure holds addresses only, and a freed tensor's address is no good.
        held: list[Tensor] = []

        def address(tensor: Tensor | None, dtype: torch.dtype = torch.float32) -> int | None:
            if tensor is None:
                return None
            held.append(tensor.detach().to(dtype).contiguous())
            return held[-1].data_ptr()

        arguments = _Pass(
            z=logits_NKV.data_ptr(),
            tokens=tokens,
            components=components,
            words=words,
            target=None if problem.dense else address(_marked(problem), torch.int64),
            dense=address(problem.distribution_NV()) if problem.dense else None,
            token_weight=address(problem.token_weight_N()),
            row_scale=address(row_scale_N),
            log_prior=address(problem.log_prior_NK),
            z_loss=problem.z_loss,
            kind=KINDS[self.form.kind],
            scale=self.form.tensors[0].item() if self.form.kind == "scale" else 1.0,
            value=address(self.value),
            slope=address(self.slope),
            intervals=1 if self.value is None else self.value.numel(),
            bound=1.0 if self.value is None else self.form.constants[0],
            loss=loss_N.data_ptr(),
            d_log_prior=None if dlog_prior_NK is None else dlog_prior_NK.data_ptr(),
            sums=None if self.sums is None else self.sums.data_ptr(),
            threads=min(self.threads, tokens),
        )
        if library.uncork_pass(ctypes.byref(arguments)):
            raise MemoryError(f"no memory for the scratch of {self.threads} rows of {words} words")
        if row_scale_N is None:
            return ChunkResult(loss_N)
        return ChunkResult(loss_N, logits_NKV, dlog_prior_NK)

    def function_gradients(self) -> tuple[Tensor, ...]:
        return () if self.sums is None else (_gradient(self.sums.sum(0), self.form),)


def _gradient(sums: Tensor, form: Pointwise) -> Tensor:
    if form.kind == "scale":
        return sums[0, 0]
    return table.knot_gradient(sums[:, 0], sums[:, 1], form.constants[0])


def _marked(problem: Problem) -> Tensor:
    """Targets with every ignored one as -1, whatever `ignore_index` is."""
    return problem.target.where(problem.valid_N(), -1)


@functools.cache
def _build() -> tuple[ctypes.CDLL | None, str]:
    """The loaded library and "", or None and the reason."""
    # Not $CC: no environment variable changes a result, and compilers round differently.
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return None, "no C compiler found"
    reason = ""
    for target in (["-march=native"], []):
        command = [compiler, *FLAGS, *LINKING, *target]
        try:
            library = _loaded(command)
            library.uncork_pass.argtypes = [ctypes.POINTER(_Pass)]
            library.uncork_pass.restype = ctypes.c_int
            return library, ""
        except (OSError, subprocess.SubprocessError) as error:
            reason = f"{Path(compiler).name} failed: {error}".splitlines()[0]
    return None, reason


def _library() -> ctypes.CDLL | None:
    return _build()[0]


def _failure() -> str:
    return _build()[1]


def _loaded(command: list[str]) -> ctypes.CDLL:
    """The shared library for this source, compiler and processor; built unless it is there and whole."""
    source = SOURCE.read_bytes()
    key = hashlib.sha256(source + "\0".join([*command, _processor()]).encode()).hexdigest()[:16]
    path = _cache_folder() / f"cpu_pass-{key}.so"
    if path.exists():
        with contextlib.suppress(OSError):  # of a machine that lost power, say, it may be half a file
            return ctypes.CDLL(str(path))
    _compile(command, path)
    return ctypes.CDLL(str(path))


def _compile(command: list[str], path: Path) -> None:
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".so")
    os.close(handle)
    try:
        subprocess.run(
            [*command, "-o", temporary, str(SOURCE), "-lm"],
            check=True,
            capture_output=True,
            timeout=120,
        )
        os.replace(temporary, path)  # another process may have built it meanwhile: same bytes
    finally:
        Path(temporary).unlink(missing_ok=True)


def _cache_folder() -> Path:
    """A folder only this user can write to: what lies there is loaded as code."""
    try:
        root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        folder = root / "uncork"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        facts = folder.stat()
        others_write = facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if facts.st_uid == os.getuid() and not others_write and os.access(folder, os.W_OK):
            return folder
    except (OSError, RuntimeError, AttributeError):  # a user without a home; Windows, without os.getuid
        pass
    folder = tempfile.mkdtemp(prefix="uncork-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _processor() -> str:
    """What -march=native depends on: a cache may be shared between machines."""
    try:
        text = Path("/proc/cpuinfo").read_text()
        return next(line for line in text.splitlines() if line.startswith("flags"))
    except (OSError, StopIteration):
        return platform.machine() + platform.processor()
