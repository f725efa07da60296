from typing import Any

import torch
from torch import Tensor, nn
from torch.types import Device

from uncork import ops
from uncork.heads._parameters import beside, sizes, weight_and_bias
from uncork.heads.base import AbstractHead


class MonotonicHead(AbstractHead):
    """softmax(f(W h + b)) with an increasing function f: the Linear-Monotonic-Softmax (LMS) of the paper.

    Arguments:
        in_features: width D of the hidden states.
        num_classes: number of words V.
        function: an increasing elementwise module, e.g. `uncork.functions.PLIF()`.
        bias: whether b is learned, or absent.
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        function: nn.Module,
        bias: bool = True,
        *,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(function, nn.Module):
            raise TypeError(
                "`function` must be an increasing nn.Module such as uncork.functions.PLIF(), got "
                f"{function!r}. Make an instance of a class; for a plain softmax use SoftmaxHead."
            )
        self.in_features, self.num_classes = sizes(in_features, num_classes)
        self.weight, self.bias = weight_and_bias(self.in_features, self.num_classes, bias, device, dtype)
        self.reset_parameters()
        self.function = beside(function, self.weight, device)

    def scores(self, hidden: Tensor) -> Tensor:
        return ops.scores(hidden, self.weight, self.bias, self.function)

    def ranking(self, hidden: Tensor) -> Tensor:
        # f keeps the order, and a saturated f such as SoftCap would lose it to rounding.
        return ops.scores(hidden, self.weight, self.bias, None)

    def loss(self, hidden: Tensor, target: Tensor, **keywords: Any) -> Tensor:
        return ops.linear_cross_entropy(
            hidden, self.weight, target, linear_bias=self.bias, function=self.function, **keywords
        )
