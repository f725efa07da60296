"""What every head is: hidden states in, scores, a loss, predictions or samples out."""

import abc
import math
from numbers import Integral
from typing import Any

import torch
from torch import Tensor, nn

from uncork.ops import autocast, validate
from uncork.ops.chunked import budget, in_bytes


class AbstractHead(nn.Module, abc.ABC):
    """The output layer of a classifier over `num_classes` words.

    It has a parameter `weight` (num_classes, width), which may be tied to an embedding, and `bias`
    (num_classes,) or None. Training calls `head(hidden, target)`, so that wrappers see a forward.
    """

    in_features: int
    num_classes: int
    weight: nn.Parameter
    bias: nn.Parameter | None

    @abc.abstractmethod
    def scores(self, hidden: Tensor) -> Tensor:
        """Scores (..., V) whose softmax is the model's distribution; at least float32."""

    @abc.abstractmethod
    def loss(self, hidden: Tensor, target: Tensor, **keywords: Any) -> Tensor:
        """The loss, with every keyword given. Call the head itself instead: it fills them in."""

    @abc.abstractmethod
    def ranking(self, hidden: Tensor) -> Tensor:
        """Numbers (..., V) in the order of the probabilities: what `predict` takes the largest of."""

    def reset_parameters(self) -> None:
        """Draw weight and bias anew, uniform in +-1/sqrt(width) as those of `nn.Linear`.

        Parts of the head (a function, the maps of a mixture) have a method of this name of their own.
        """
        reach = 1.0 / math.sqrt(self._width())
        for parameter in (self.weight, self.bias):
            if parameter is not None:
                nn.init.uniform_(parameter, -reach, reach)

    def forward(
        self,
        hidden: Tensor,
        target: Tensor | None = None,
        *,
        weight: Tensor | None = None,
        reduction: str = "mean",
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
        z_loss: float = 0.0,
        backend: str = "auto",
    ) -> Tensor:
        """Scores (..., V) of `hidden` (..., D), or the loss against `target`.

        The keywords belong to the loss; they are those of `uncork.linear_cross_entropy`.
        """
        keywords = {
            "weight": weight,
            "reduction": reduction,
            "ignore_index": ignore_index,
            "label_smoothing": label_smoothing,
            "z_loss": z_loss,
            "backend": backend,
        }
        self._check(hidden)
        if target is not None:
            return self.loss(hidden, target, **keywords)
        if weight is not None or (reduction, ignore_index, label_smoothing, z_loss, backend) != (
            "mean", -100, 0.0, 0.0, "auto",
        ):  # fmt: skip
            raise ValueError(
                "`target` is needed for a loss: loss keywords were given without one. Pass "
                "head(hidden, target, ...), or head(hidden) for scores."
            )
        return self.scores(hidden)

    def log_prob(self, hidden: Tensor) -> Tensor:
        """Log-probabilities of every word, (..., V)."""
        return self(hidden).log_softmax(-1)

    @torch.no_grad()
    def predict(self, hidden: Tensor) -> Tensor:
        """The most probable word, (...); tokens go in chunks, so no N x V tensor is held.

        Under torch.compile they go all at once.
        """
        if hasattr(self.weight, "full_tensor"):  # only a DTensor has it
            # FSDP gathers the parts for a call of the module, and of methods that are registered.
            raise TypeError(
                "`predict` needs the whole weight, got one sharded over processes. After fully_shard(head) "
                'call torch.distributed.fsdp.register_fsdp_forward_method(head, "predict") once.'
            )
        self._check(hidden)
        flat_ND = hidden.reshape(-1, hidden.shape[-1])
        # Scores and what they are made of, about four numbers for each logit; on a CPU its allocator keeps as
        # much again between them.
        per_token = (16 if hidden.is_cuda else 32) * self.num_classes * self._rows_per_token()
        parts = (flat_ND,)
        if not torch.compiler.is_compiling():  # which would unroll the loop over chunks
            parts = flat_ND.split(max(1, in_bytes(budget(), hidden.device.type) // per_token))
        # Filled in place: a small tensor kept from each chunk would keep the memory around it from being used
        # again by the next.
        words_N = flat_ND.new_empty(len(flat_ND), dtype=torch.int64)
        for part_ND, words_n in zip(parts, words_N.split([len(part) for part in parts]), strict=True):
            words_n.copy_(self.ranking(part_ND).argmax(-1))
        return words_N.reshape(hidden.shape[:-1])

    @torch.no_grad()
    def sample(
        self,
        hidden: Tensor,
        *,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """One word per token, (...), drawn from the model's distribution.

        Arguments:
            temperature: divides log-probabilities; above 0.
            top_k: keep the k most probable words.
            top_p: keep the fewest most probable words whose mass reaches this, in (0, 1].
            generator: makes the draw repeatable.
        """
        _check_sampling(temperature, top_k, top_p)
        log_p_NV = self.log_prob(hidden).reshape(-1, self.num_classes)
        # Relative to the highest, or a low temperature would make all of them -inf.
        log_p_NV = (log_p_NV - log_p_NV.amax(-1, keepdim=True)) / temperature
        if top_k is not None and top_k < self.num_classes:
            kept = log_p_NV.topk(int(top_k), dim=-1)  # k words even where some are equal
            log_p_NV = torch.full_like(log_p_NV, -torch.inf).scatter_(-1, kept.indices, kept.values)
        p_NV = log_p_NV.softmax(-1)
        if top_p is not None and top_p < 1.0:
            p_NV = _nucleus(p_NV, top_p)
        if len(p_NV) == 0:
            return torch.empty(hidden.shape[:-1], dtype=torch.int64, device=hidden.device)
        return torch.multinomial(p_NV, 1, generator=generator).reshape(hidden.shape[:-1])

    def _rows_per_token(self) -> int:
        return 1

    def _width(self) -> int:
        """The length of a row of `weight`."""
        return self.in_features

    def _check(self, hidden: Any) -> None:
        """`hidden` is (..., in_features), of the dtype and on the device of the weight."""
        if validate.floating("hidden", hidden).dim() < 1 or hidden.shape[-1] != self.in_features:
            raise ValueError(
                f"`hidden` must have shape (..., {self.in_features}), got {tuple(hidden.shape)}. Its last "
                "dimension is `in_features` of the head."
            )
        if self.weight.shape != (self.num_classes, self._width()):
            raise ValueError(
                f"`weight` of the head must have shape ({self.num_classes}, {self._width()}), got "
                f"{tuple(self.weight.shape)}. Tie it to an embedding of as many words and columns."
            )
        if not autocast.enabled(hidden.device.type):
            validate.same("hidden", hidden, "weight", self.weight)

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.num_classes}, bias={self.bias is not None}"


def _nucleus(p_NV: Tensor, top_p: float) -> Tensor:
    """Zero outside the smallest set of words of mass `top_p`; the most probable word always stays."""
    ordered_NV, index_NV = p_NV.sort(dim=-1, descending=True)
    before_NV = ordered_NV.cumsum(-1) - ordered_NV
    kept_NV = ordered_NV.masked_fill(before_NV >= top_p, 0.0)
    return torch.zeros_like(p_NV).scatter_(-1, index_NV, kept_NV)


def _check_sampling(temperature: float, top_k: int | None, top_p: float | None) -> None:
    validate.number("temperature", temperature)
    if top_p is not None:
        validate.number("top_p", top_p)
    # A GPU multiplies by the reciprocal, in float32, where that of less would be infinite.
    least, most = validate.FLOAT32.tiny, validate.FLOAT32.max
    if not least <= temperature <= most:
        raise ValueError(
            f"`temperature` must be finite and above 0, {least:.2g} at least, got {temperature}. For the "
            "most probable word use head.predict(hidden)."
        )
    if top_k is not None and (isinstance(top_k, bool) or not isinstance(top_k, Integral) or top_k < 1):
        raise ValueError(
            f"`top_k` must be an int of at least 1, or None, got {top_k!r}. Pass a number such as 50."
        )
    if top_p is not None and not 0.0 < top_p <= 1.0:
        raise ValueError(f"`top_p` must lie in (0, 1], or be None, got {top_p!r}. Pass a number such as 0.9.")
