"""The loss and its gradients over chunks of tokens: three matrix products, no N x V tensor.

For each chunk: logits = x W^T (one product); one pass over them gives f, logsumexp and the loss and turns
them into dL/dz; dL/dx = dz W and dL/dW += dz^T x (two products). Gradients are written while the chunk is
there, so nothing is computed twice. The weight gradient is summed in float32 or better.

Shapes, beside those of a problem: R = NK rows; P columns, those of V words and perhaps a few of zeros.
"""

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import Tensor

from uncork.ops import autocast, cpu_pass, matmul, nonfinite, torch_pass
from uncork.ops.abstract_pass import AbstractPass, ChunkResult
from uncork.ops.problem import Problem, pieces_of


DEFAULT_CHUNK_BYTES = {"cpu": 64 * 2**20, "cuda": 256 * 2**20}
# Chunks have about a multiple of this many rows where the budget allows: matrix products like it.
TILE = 128
# By default on CUDA no more rows than make this many bytes, or widths: longer chunks take memory and gain
# nothing. Nor fewer rows than this, or twice that where logits have 16 bits: each chunk adds to the whole
# weight gradient.
ENOUGH_BYTES, ENOUGH_WIDTHS, FEWEST_ROWS = 96 * 2**20, 4, 512

# A budget travels as a number, through ops and into the thread of a backward pass: bytes somebody asked for,
# or one of these.
DEFAULT, IN_FORCE = -1, 0

_chunk_bytes: ContextVar[int] = ContextVar("uncork_chunk_bytes", default=DEFAULT)


@contextlib.contextmanager
def chunk_bytes(size: int) -> Iterator[None]:
    """Set the memory that a chunk of logits and all that is made of it may take, inside this block.

    The default is 64 MiB on CPU; on CUDA 256 MiB, or 512 rows of logits where they take more, 1024 of 16
    bits. A chunk is never less than one token.
    """
    if not isinstance(size, int) or isinstance(size, bool):
        raise TypeError(
            f"`size` must be an int, a number of bytes, got {size!r}. Pass a whole number such as 2**26."
        )
    if not 1 <= size < 2**63:
        raise ValueError(
            f"`size` must be at least 1 byte, and below 2^63, got {size}. The default is 64 MiB on CPU."
        )
    token = _chunk_bytes.set(size)
    try:
        yield
    finally:
        _chunk_bytes.reset(token)


def budget() -> int:
    """The budget in force, as it travels; torch.compile cannot read it, so its graphs ask when they run."""
    return IN_FORCE if torch.compiler.is_compiling() else _chunk_bytes.get()


def in_bytes(size: int, device_type: str) -> int:
    """A budget that has been read, in bytes."""
    return DEFAULT_CHUNK_BYTES.get(device_type, 64 * 2**20) if size == DEFAULT else size


@dataclass(frozen=True)
class Needs:
    """Which gradients somebody asked for."""

    latent: bool = False
    log_prior: bool = False
    weight: bool = False
    bias: bool = False
    function: bool = False

    @property
    def any(self) -> bool:
        return any(vars(self).values())


@dataclass
class Outcome:
    """The loss of each token and the gradients asked for; what was not asked for is None."""

    loss_N: Tensor | None = None
    latent: Tensor | None = None
    log_prior_NK: Tensor | None = None
    weight_VD: Tensor | None = None
    bias_V: Tensor | None = None
    tensors: tuple[Tensor, ...] = ()

    @property
    def gradients(self) -> list[Tensor | None]:
        """In the order of the arguments of a problem."""
        return [self.latent, self.log_prior_NK, self.weight_VD, self.bias_V, *self.tensors]


MakePass = Callable[[Problem, bool, int], AbstractPass]


def make_pass(problem: Problem, function_grad: bool, size: int) -> AbstractPass:
    """The compiled pass where it applies, else the torch one."""
    kind = cpu_pass.CpuPass if cpu_pass.usable(problem) else torch_pass.TorchPass
    return kind(problem, function_grad, size)


def run(
    problem: Problem, row_scale_N: Tensor | None, needs: Needs, size: int, make: MakePass = make_pass
) -> Outcome:
    """Losses of all tokens and, with the upstream gradient `row_scale_N` of each, the gradients.

    `size` is the byte budget, as `budget` gives it.
    """
    device_type = problem.latent_NKD.device.type
    asked = _chunk_bytes.get() if size == IN_FORCE else size
    size = in_bytes(asked, device_type)
    # Kernels are launched on the current device, whichever the tensors are on.
    with torch.no_grad(), torch.cuda.device_of(problem.latent_NKD), autocast.off(device_type):
        if not needs.any:
            row_scale_N = None
        chunk_pass = make(problem, needs.function, size)
        return _run(problem, row_scale_N, needs, size, asked == DEFAULT, chunk_pass)


def _run(
    problem: Problem,
    row_scale_N: Tensor | None,
    needs: Needs,
    size: int,
    free: bool,
    chunk_pass: AbstractPass,
) -> Outcome:
    """`free`: nobody asked for this size, so it may be exceeded by what is faster."""
    tokens, components, _ = problem.latent_NKD.shape
    words = problem.weight_VD.shape[0]  # len() of a tensor is Python, which here takes four times as long
    room = max(size, DEFAULT_CHUNK_BYTES["cuda"])
    padded = matmul.padded_words(problem.weight_VD, room) if chunk_pass.row_bytes > 1 else words
    length = _chunk_length(problem, chunk_pass, size, free, padded)
    # One chunk has nothing to sum; several are summed in float32 unless that takes more than a chunk.
    fits = 4 * problem.weight_VD.numel() <= room
    narrow = chunk_pass.narrow_sums and not (length < tokens and fits)
    outcome = _allocate(problem, needs, narrow, padded)
    weight_PD = matmul.with_zeros(matmul.widened(problem.weight_VD), padded)
    bias_P = None if problem.bias_V is None else matmul.with_zeros(problem.bias_V, padded)
    buffer_RP = _buffer(problem, length * components, chunk_pass, padded)
    # A copy of the weight is worth its time where chunks share it, and its memory where a chunk takes more.
    shared = length < tokens and weight_PD.nbytes <= buffer_RP.nbytes
    back_PD = matmul.by_columns(weight_PD) if shared and outcome.latent is not None else weight_PD
    losses = [] if tokens else [problem.latent_NKD.new_empty(0, dtype=problem.dtype)]
    dlog_priors = []
    parts = zip(
        problem.split(length) if tokens else (),
        pieces_of(row_scale_N, length),
        pieces_of(outcome.latent, length * components),
        strict=False,
    )
    logits_RP, logits_NKV = buffer_RP, _by_token(buffer_RP, components, words)
    for number, (part, scale_N, dlatent_RD) in enumerate(parts):
        count = part.latent_NKD.shape[0]
        x_RD = matmul.widened(part.latent_NKD).reshape(count * components, -1)
        if count < logits_NKV.shape[0]:  # the last chunk
            logits_RP = buffer_RP[: count * components]
            logits_NKV = _by_token(logits_RP, components, words)
        matmul.logits(x_RD, weight_PD, bias_P, logits_RP)
        nonfinite.check(logits_NKV, number * length)
        result = chunk_pass.run(part, logits_NKV, scale_N)
        losses.append(result.loss_N)
        if needs.log_prior and result.dlog_prior_NK is not None:
            dlog_priors.append(result.dlog_prior_NK)
        if result.dlogits_NKV is not None:
            in_place = result.dlogits_NKV is logits_NKV
            dlogits_RP = logits_RP if in_place else _rows(result.dlogits_NKV, padded)
            if padded > words:
                # A gradient half as wide has logits there; and 0 times a vector of NaN, if ignored, is NaN.
                dlogits_RP[:, words:].zero_()
            _multiply(outcome, result, dlogits_RP, x_RD, back_PD, dlatent_RD, first=number == 0)
    outcome.loss_N = _joined(losses)
    if needs.log_prior and problem.log_prior_NK is not None:
        outcome.log_prior_NK = _joined(dlog_priors) if tokens else torch.empty_like(problem.log_prior_NK)
    if needs.function:
        outcome.tensors = chunk_pass.function_gradients()
    return _finished(outcome, problem, needs)


def _chunk_length(problem: Problem, chunk_pass: AbstractPass, size: int, free: bool, padded: int) -> int:
    """Tokens per chunk: as many as the budget holds, in chunks of nearly equal length."""
    tokens, components, width = problem.latent_NKD.shape
    per_token = components * padded * chunk_pass.bytes_per_logit
    most = max(1, (size - chunk_pass.fixed_bytes) // max(per_token, 1))
    if problem.latent_NKD.is_cuda and free:
        enough = max(ENOUGH_BYTES // max(per_token, 1), ENOUGH_WIDTHS * width // components)
        fewest = FEWEST_ROWS * (2 if chunk_pass.bytes_per_logit == 2 else 1)
        most = max(1, min(max(most, fewest // components), enough))
    if most >= tokens:
        return max(1, tokens)
    tile = max(1, TILE // components)
    whole = most // tile * tile or most
    length = -(-tokens // -(-tokens // whole))
    return min(-(-length // tile) * tile, most)


def _buffer(problem: Problem, rows: int, chunk_pass: AbstractPass, padded: int) -> Tensor:
    """Room for a chunk's logits, each row as far from the last as the pass likes it."""
    dtype = chunk_pass.logits_dtype
    per_row = -(-padded * dtype.itemsize // chunk_pass.row_bytes) * chunk_pass.row_bytes
    held = problem.latent_NKD.new_empty(rows, per_row // dtype.itemsize, dtype=dtype)
    return held if held.shape[1] == padded else held[:, :padded]


def _by_token(logits_RP: Tensor, components: int, words: int) -> Tensor:
    """Rows of logits as those of tokens, without the columns of zeros."""
    # Not a view: of a dimension of one that would forget how far rows are apart.
    rows, pitch = logits_RP.shape[0], logits_RP.stride(0)
    return logits_RP.as_strided((rows // components, components, words), (components * pitch, pitch, 1))


def _rows(dlogits_NKV: Tensor, padded: int) -> Tensor:
    """A gradient row by row, with what lies behind the words of each."""
    tokens, components, words = dlogits_NKV.shape
    if padded == words:
        return dlogits_NKV.reshape(tokens * components, words)
    pitch = dlogits_NKV.stride(1)
    assert padded <= pitch and dlogits_NKV.stride(0) == components * pitch
    return dlogits_NKV.as_strided((tokens * components, padded), (pitch, 1))


def _allocate(problem: Problem, needs: Needs, narrow: bool, padded: int) -> Outcome:
    """Room for the results, for the first chunk to overwrite; sums in the dtype they are summed in.

    Until they are finished, the latent vectors' gradient is its rows, and sums have padded words.
    """
    latent, dtype = problem.latent_NKD, problem.dtype
    outcome = Outcome()
    if needs.latent:
        tokens, components, width = latent.shape
        outcome.latent = latent.new_empty(tokens * components, width)
    make = torch.zeros if latent.shape[0] == 0 else torch.empty
    if needs.weight:
        # On CUDA a product of low-precision operands can add to a low-precision sum, rounding once a chunk.
        narrow = narrow and latent.is_cuda
        sum_dtype = problem.weight_VD.dtype if narrow else dtype
        outcome.weight_VD = make(padded, problem.weight_VD.shape[1], dtype=sum_dtype, device=latent.device)
    if needs.bias and problem.bias_V is not None:
        outcome.bias_V = make(padded, dtype=dtype, device=latent.device)
    return outcome


def _joined(parts: list[Tensor]) -> Tensor:
    """The chunks' parts one after another."""
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _multiply(
    outcome: Outcome,
    result: ChunkResult,
    dlogits_RP: Tensor,
    x_RD: Tensor,
    weight_PD: Tensor,
    dlatent_RD: Tensor | None,
    first: bool,
) -> None:
    """Add one chunk's products to the gradients; that of its own latent vectors goes into `dlatent`."""
    if dlogits_RP.dtype != x_RD.dtype:  # asked here, since torch takes as long as an operation to find out
        dlogits_RP = dlogits_RP.to(x_RD.dtype)
    if outcome.bias_V is not None:
        matmul.add_rows(outcome.bias_V, dlogits_RP, result.row_factor_R1, first)
    if dlatent_RD is not None:
        matmul.back(dlogits_RP, weight_PD, result.row_factor_R1, dlatent_RD)
    if outcome.weight_VD is not None:
        if result.scaled_latent_RD is not None:
            x_RD = matmul.widened(result.scaled_latent_RD)
        matmul.add_outer(outcome.weight_VD, dlogits_RP, x_RD, first)


def _finished(outcome: Outcome, problem: Problem, needs: Needs) -> Outcome:
    """Gradients in the shape and dtype of what they are gradients of."""
    shape = problem.given_latent.shape
    if outcome.latent is not None and outcome.latent.shape != shape:
        outcome.latent = outcome.latent.view(shape)
    if outcome.log_prior_NK is not None and problem.log_prior_NK is not None:
        outcome.log_prior_NK = outcome.log_prior_NK.to(problem.log_prior_NK.dtype)
    if outcome.weight_VD is not None:
        outcome.weight_VD = _of_words(outcome.weight_VD, problem.weight_VD)
    if outcome.bias_V is not None and problem.bias_V is not None:
        outcome.bias_V = _of_words(outcome.bias_V, problem.bias_V)
    wanted = problem.form.tensors if needs.function else ()
    outcome.tensors = tuple(total.to(t.dtype) for total, t in zip(outcome.tensors, wanted, strict=True))
    return outcome


def _of_words(total: Tensor, like: Tensor) -> Tensor:
    """The sum of padded words as the gradient of `like`."""
    words = like.shape[0]
    if total.shape[0] > words:
        # Without its history: a gradient that is known as a view cannot be detached in place.
        total = total[:words].detach()
    return total if total.dtype == like.dtype else total.to(like.dtype)
