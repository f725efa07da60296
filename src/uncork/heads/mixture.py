from typing import Any

import torch
from torch import Tensor, nn
from torch.types import Device

from uncork import ops
from uncork.functions._check import at_least, finite, parameter_dtype
from uncork.functions.base import at_least_float32
from uncork.heads._parameters import beside, sizes, weight_and_bias
from uncork.heads.base import AbstractHead


class MixtureHead(AbstractHead):
    """sum_k pi_k softmax(f(W g_k + b)), g_k = tanh(U_k h + c_k), pi = softmax(A h): Mixture of Softmaxes.

    With a function it is MoS+PLIF and the like. `head(hidden)` gives log-probabilities.

    Arguments:
        in_features: width of the hidden states.
        num_classes: number of words V.
        components: K.
        embedding_features: width of g_k and of a row of `weight`; None is `in_features`.
        function: an increasing elementwise module applied inside every component, or None.
        dropout: probability of dropping an entry of g_k in training. The module `head.dropout` may be
            replaced, e.g. by one that keeps its mask over time; it sees (..., K, embedding_features).
        bias: whether b is learned, or absent.
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        components: int = 15,
        embedding_features: int | None = None,
        function: nn.Module | None = None,
        dropout: float = 0.0,
        bias: bool = True,
        *,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if function is not None and not isinstance(function, nn.Module):
            raise TypeError(
                "`function` must be an increasing nn.Module such as uncork.functions.PLIF(), or None, got "
                f"{function!r}. Make an instance of a class; leave it out for plain softmaxes."
            )
        if not 0.0 <= finite("dropout", dropout) < 1.0:
            raise ValueError(f"`dropout` must lie in [0, 1), got {dropout}. Pass a share such as 0.3.")
        self.in_features, self.num_classes = sizes(in_features, num_classes)
        self.components = at_least("components", components, 1)
        width = in_features if embedding_features is None else embedding_features
        self.embedding_features = width = at_least("embedding_features", width, 1)
        dtype = parameter_dtype(dtype)
        self.latent = nn.Linear(self.in_features, self.components * width, device=device, dtype=dtype)
        self.prior = nn.Linear(self.in_features, self.components, bias=False, device=device, dtype=dtype)
        self.dropout: nn.Module = nn.Dropout(dropout)
        self.weight, self.bias = weight_and_bias(width, self.num_classes, bias, device, dtype)
        self.reset_parameters()
        self.function = None if function is None else beside(function, self.weight, device)

    def latents(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """g (..., K, embedding_features) and log pi (..., K)."""
        shape = (*hidden.shape[:-1], self.components, self.embedding_features)
        latent = self.dropout(torch.tanh(self.latent(hidden)).view(shape))
        return latent, at_least_float32(self.prior(hidden)).log_softmax(-1)

    def scores(self, hidden: Tensor) -> Tensor:
        latent, log_prior = self.latents(hidden)
        return ops.mixture_scores(latent, log_prior, self.weight, self.bias, self.function)

    ranking = scores

    def log_prob(self, hidden: Tensor) -> Tensor:
        return self(hidden)

    def loss(self, hidden: Tensor, target: Tensor, **keywords: Any) -> Tensor:
        latent, log_prior = self.latents(hidden)
        return ops.mixture_cross_entropy(
            latent,
            log_prior,
            self.weight,
            target,
            linear_bias=self.bias,
            function=self.function,
            **keywords,
        )

    def _rows_per_token(self) -> int:
        return self.components

    def _width(self) -> int:
        return self.embedding_features

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, components={self.components}"
