"""What a loss is a function of, flattened: the one argument every backend takes.

Shapes: N tokens, K mixture components (1 for a plain head), D width, V words.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any

import torch
from torch import Tensor

from uncork.ops.pointwise import Pointwise


@dataclass(frozen=True)
class Problem:
    """-log sum_k prior_k softmax(f(W latent_k + b))_target for each of N tokens, and its options."""

    latent_NKD: Tensor
    log_prior_NK: Tensor | None
    weight_VD: Tensor
    bias_V: Tensor | None
    target: Tensor  # (N,) int64, or (N, V) floating
    class_weight_V: Tensor | None
    form: Pointwise
    ignore_index: int
    label_smoothing: float
    z_loss: float
    given: Tensor | None = None  # what `latent_NKD` is a view of, if not itself

    @property
    def given_latent(self) -> Tensor:
        """The latent vectors as they were given, in whatever shape."""
        return self.latent_NKD if self.given is None else self.given

    @property
    def dense(self) -> bool:
        return self.target.is_floating_point()

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of probabilities and sums: float64 if the input is, else float32."""
        return compute_dtype(self.latent_NKD.dtype)

    @property
    def one_word(self) -> bool:
        """Whether each token's target is a single word, so that no distribution need be built."""
        return not self.dense and self.label_smoothing == 0.0

    def valid_N(self) -> Tensor:
        """Which tokens count; a dense target always does."""
        if self.dense:
            return torch.ones(len(self.target), dtype=torch.bool, device=self.target.device)
        return self.target != self.ignore_index

    def word_N(self) -> Tensor:
        """The target word, to index by: 0 in place of an ignored one, the nearest of one that is none.

        Only on an accelerator, where nobody waits for the values, is a target ever no word.
        """
        return self.target.where(self.valid_N(), 0).clamp(0, len(self.weight_VD) - 1)

    def showing_bad_targets(self, loss_N: Tensor) -> Tensor:
        """The losses, NaN where the target is no word."""
        if self.dense:
            return loss_N
        return loss_N.masked_fill(self.valid_N() & (self.target != self.word_N()), torch.nan)

    def token_weight_N(self) -> Tensor:
        """The class weight of each token's word, 0 if ignored; 1 for dense targets."""
        weight_N = self.valid_N().to(self.dtype)
        if self.dense or self.class_weight_V is None:
            return weight_N
        return weight_N * self.class_weight_V.to(self.dtype)[self.word_N()]

    def denominator(self) -> Tensor:
        """What "mean" divides by: the sum of token weights, as torch does (tokens if dense)."""
        if self.class_weight_V is None:
            return self.valid_N().sum(dtype=self.dtype)
        return self.token_weight_N().sum()

    def distribution_NV(self) -> Tensor:
        """The target of every token as weights over words: smoothed, times class weights."""
        smoothing, words = self.label_smoothing, len(self.weight_VD)
        if self.dense:
            q_NV = self.target.to(self.dtype)
            if smoothing:
                q_NV = (q_NV * (1.0 - smoothing)).add_(smoothing / words)
            return q_NV if self.class_weight_V is None else q_NV * self.class_weight_V.to(self.dtype)
        # In one tensor: a GPU may have room for no other.
        valid_N1 = self.valid_N().to(self.dtype)[:, None]
        q_NV = (valid_N1 * (smoothing / words)).repeat(1, words)
        q_NV.scatter_(1, self.word_N()[:, None], valid_N1 * (1.0 - smoothing + smoothing / words))
        return q_NV if self.class_weight_V is None else q_NV.mul_(self.class_weight_V.to(self.dtype))

    def split(self, length: int) -> list["Problem"]:
        """The same problem for each `length` tokens in turn; itself, at no cost, if there are no more."""
        if self.latent_NKD.shape[0] <= length:
            return [self]
        parts = zip(
            pieces_of(self.latent_NKD, length),
            pieces_of(self.log_prior_NK, length),
            pieces_of(self.target, length),
            strict=False,
        )
        return [replace(self, latent_NKD=x, log_prior_NK=prior, target=target) for x, prior, target in parts]


def pieces_of(x: Tensor | None, length: int) -> Iterable[Any]:
    """x in pieces, made by one operation; itself, at no cost, if it is short. None has as many as asked."""
    if x is None:
        return repeat(None)
    return (x,) if x.shape[0] <= length else x.split(length)


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """What is computed with logits is never below float32: see the numerics page of the documentation.

    Kernels may hold them in the dtype of the input, unless they meet a table.
    """
    return torch.float64 if dtype == torch.float64 else torch.float32
