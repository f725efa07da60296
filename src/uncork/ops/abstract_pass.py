"""What the chunked loss asks of a pass over a chunk of logits: torch, compiled for a CPU, or GPU kernels."""

import abc
from dataclasses import dataclass

import torch
from torch import Tensor

from uncork.ops.problem import Problem


@dataclass(frozen=True)
class ChunkResult:
    """The loss of each token of a chunk and, when asked for, gradients.

    With a factor for each of the R = NK rows, dL/dz is `dlogits` times it; `scaled_latent` is the latent
    vectors times it. The losses and `dlog_prior` belong to the caller; the rest, until the next chunk.
    """

    loss_N: Tensor
    dlogits_NKV: Tensor | None = None
    dlog_prior_NK: Tensor | None = None
    row_factor_R1: Tensor | None = None
    scaled_latent_RD: Tensor | None = None


class AbstractPass(abc.ABC):
    """Turns chunks of logits into losses and gradients, and sums the gradients of the function's tensors.

    One is made for each call of the loss, and sees the chunks of its problem in order.
    """

    # Bytes taken per logit of a chunk, the logits included, and beside them whatever the chunk's length.
    bytes_per_logit: int
    fixed_bytes: int = 0
    logits_dtype: torch.dtype = torch.float32
    # Rows of logits start at multiples of this many bytes: the fast matrix products of a GPU ask for 16. If
    # not 1, a row's gradient lies in the row's memory, and columns of nothing may follow those of the words.
    row_bytes: int = 1
    # Whether the weight gradient may be summed below float32 when a float32 sum would exceed the budget.
    narrow_sums: bool = False

    @abc.abstractmethod
    def run(self, problem: Problem, logits_NKV: Tensor, row_scale_N: Tensor | None) -> ChunkResult:
        """One chunk. `row_scale_N` is the upstream gradient of each token's loss; None asks for the loss.

        The logits may be overwritten, and the gradient may lie in their memory.
        """

    @abc.abstractmethod
    def function_gradients(self) -> tuple[Tensor, ...]:
        """The gradients of the function's tensors over all chunks so far."""
