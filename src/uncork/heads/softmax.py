from typing import Any

import torch
from torch import Tensor
from torch.types import Device

from uncork import ops
from uncork.heads._parameters import sizes, weight_and_bias
from uncork.heads.base import AbstractHead


class SoftmaxHead(AbstractHead):
    """softmax(W h + b): the Linear-Softmax every other head is compared with.

    Its log-probabilities over all contexts have rank at most in_features + 1, one more with a bias.

    Arguments:
        in_features: width D of the hidden states.
        num_classes: number of words V.
        bias: whether b is learned, or absent.
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        bias: bool = True,
        *,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.in_features, self.num_classes = sizes(in_features, num_classes)
        self.weight, self.bias = weight_and_bias(self.in_features, self.num_classes, bias, device, dtype)
        self.reset_parameters()

    def scores(self, hidden: Tensor) -> Tensor:
        return ops.scores(hidden, self.weight, self.bias, None)

    ranking = scores

    def loss(self, hidden: Tensor, target: Tensor, **keywords: Any) -> Tensor:
        return ops.linear_cross_entropy(hidden, self.weight, target, linear_bias=self.bias, **keywords)
