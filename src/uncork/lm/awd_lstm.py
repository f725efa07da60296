"""AWD-LSTM and the language model made of it and any head.

Shapes: T time steps, B parallel streams, D width, V words. Time is always the first axis.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor, nn

from uncork.functions import PLIF
from uncork.lm.config import ModelConfig
from uncork.lm.dropout import LockedDropout, embedding_dropout
from uncork.lm.weight_drop import State, WeightDropLSTM, can_stack, run_stack


States = list[State]  # one per layer


class Features(NamedTuple):
    """What the encoder hands on: its last output before and after dropout, and the states."""

    raw_TBD: Tensor
    dropped_TBD: Tensor
    states: States


class Step(NamedTuple):
    """Result of a training forward: the loss to descend, its prediction part, and the state."""

    loss: Tensor
    nll: Tensor
    states: States


class AWDLSTM(nn.Module):
    """Embedding, locked dropouts, and weight-dropped LSTM layers, the last of its own width.

    `compute_dtype` is that of the recurrence, `persistent` one of the ways to run it: see `WeightDropLSTM`.
    """

    def __init__(
        self,
        num_words: int,
        config: ModelConfig,
        compute_dtype: torch.dtype | None = None,
        persistent: bool = False,
    ) -> None:
        super().__init__()
        widths = [config.embedding, *[config.hidden] * (config.layers - 1), config.width]
        self.embedding = nn.Embedding(num_words, config.embedding)
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        self.layers = nn.ModuleList(
            WeightDropLSTM(before, after, config.weight_dropout, compute_dtype, persistent)
            for before, after in zip(widths, widths[1:], strict=False)
        )
        self.embedding_dropout = config.embedding_dropout
        self.input_dropout = LockedDropout(config.input_dropout)
        self.hidden_dropout = LockedDropout(config.hidden_dropout)
        self.output_dropout = LockedDropout(config.output_dropout)

    def forward(self, tokens_TB: Tensor, states: States | None = None) -> Features:
        if states is None:
            states = self.initial_states(tokens_TB.shape[1])
        x_TBD = embedding_dropout(self.embedding.weight, tokens_TB, self.embedding_dropout, self.training)
        layers: list[WeightDropLSTM] = list(self.layers)  # pyright: ignore[reportAssignmentType]
        if can_stack(layers, x_TBD):
            x_TBD, new_states = run_stack(layers, x_TBD, states, self._masks(layers, x_TBD))
        else:
            x_TBD, new_states = self._one_by_one(layers, x_TBD, states)
        return Features(x_TBD, self.output_dropout(x_TBD), new_states)

    def _masks(self, layers: list[WeightDropLSTM], x_TBD: Tensor) -> list[Tensor | None]:
        """The dropout mask of what each layer reads."""
        masks = [self.input_dropout.mask(x_TBD[:1])]
        for below in layers[:-1]:
            masks.append(self.hidden_dropout.mask(x_TBD.new_empty(1, x_TBD.shape[1], below.hidden_size)))
        return masks

    def _one_by_one(
        self, layers: list[WeightDropLSTM], x_TBD: Tensor, states: States
    ) -> tuple[Tensor, States]:
        x_TBD = self.input_dropout(x_TBD)
        new_states: States = []
        for number, (layer, state) in enumerate(zip(layers, states, strict=True)):
            x_TBD, state = layer(self.hidden_dropout(x_TBD) if number > 0 else x_TBD, state)
            new_states.append(state)
        return x_TBD, new_states

    def initial_states(self, batch_size: int) -> States:
        """Zeros, as at the start of an epoch."""
        return [layer.initial_state(batch_size) for layer in self.layers]  # pyright: ignore[reportCallIssue]


class LanguageModel(nn.Module):
    """An encoder and a head.

    `model(tokens, states)` gives scores for the next word, `model(tokens, states, target)` a
    `Step`. Both are one forward, so that wrappers such as `DistributedDataParallel` see it.
    """

    def __init__(self, encoder: AWDLSTM, head: nn.Module, config: ModelConfig) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = head
        self.activation_penalty = config.activation_penalty
        self.slowness_penalty = config.slowness_penalty
        function = config.head.function
        self.pull = 0.0 if function is None else function.pull
        self.smoothness = 0.0 if function is None else function.smoothness
        self.backend = config.head.backend
        self.narrow_products = config.head.products == "bfloat16"
        if config.tied:
            head.weight = encoder.embedding.weight

    def forward(
        self, tokens_TB: Tensor, states: States | None = None, target_TB: Tensor | None = None
    ) -> tuple[Tensor, States] | Step:
        features = self.encoder(tokens_TB, states)
        if target_TB is None:
            return self.head(features.dropped_TBD), features.states
        nll = self.nll(features, target_TB)
        return Step(nll + self._penalties(features), nll, features.states)

    @property
    def function(self) -> nn.Module | None:
        """The increasing function inside the head, if it has one."""
        function = getattr(self.head, "function", None)
        return function if isinstance(function, nn.Module) else None

    def nll(self, features: Features, target_TB: Tensor, reduction: str = "mean") -> Tensor:
        """The head's loss on what the encoder handed on."""
        with self._products(target_TB.device.type):
            return self.head(features.dropped_TBD, target_TB, reduction=reduction, backend=self.backend)

    def _products(self, device_type: str) -> AbstractContextManager:
        if not (self.narrow_products and self.training):
            return nullcontext()
        # Without the cache: its copies of weights would lie in the memory of the CUDA graph that made them.
        return torch.autocast(device_type, torch.bfloat16, cache_enabled=False)

    def _penalties(self, features: Features) -> Tensor:
        """AR on the output the head read, TAR on the output before its dropout, and those on the function."""
        penalty = features.raw_TBD.new_zeros(())
        if self.activation_penalty:
            penalty = penalty + self.activation_penalty * features.dropped_TBD.pow(2).mean()
        if self.slowness_penalty and features.raw_TBD.shape[0] > 1:
            change_TBD = features.raw_TBD[1:] - features.raw_TBD[:-1]
            penalty = penalty + self.slowness_penalty * change_TBD.pow(2).mean()
        if self.pull or self.smoothness:
            penalty = penalty + self._function_penalties().to(penalty.dtype)
        return penalty

    def _function_penalties(self) -> Tensor:
        assert isinstance(self.function, PLIF)  # FunctionConfig sees to it
        penalty = self.pull * self.function.departure()
        return penalty + self.smoothness * self.function.roughness() if self.smoothness else penalty


def detach(states: States) -> States:
    """Cut the states from the graph: backpropagation ends at the window's start."""
    return [(hidden.detach(), cell.detach()) for hidden, cell in states]
