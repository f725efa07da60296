"""One LSTM layer whose recurrent matrix is dropped out once per call (DropConnect).

Wrapping `nn.LSTM` and swapping its weight has cost several ports 10 perplexity points: a weight
set as a new `Parameter` no longer passes its gradient on, and one set in evaluation cannot be
replaced in training. Here the raw matrix is the parameter, the dropped one a plain tensor that
exists only inside `forward`, and both go to the library's kernel as an explicit list.
"""

import math
import warnings
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from uncork.lm.dropout import check_probability, drop
from uncork.lm.persistent import Layer, persistent_stack, unsuited


State = tuple[Tensor, Tensor]  # hidden and cell, each (1, B, H)


class WeightDropLSTM(nn.Module):
    """An LSTM layer over (T, B, D) with dropout on `weight_hh`; gates in torch's order i, f, g, o.

    Arguments:

    - `input_size`, `hidden_size`: widths D and H.
    - `p`: probability of dropping an entry of the recurrent matrix, in training only.
    - `compute_dtype`: dtype of the recurrence; parameters and results keep their own.
    - `persistent`: on a GPU run the recurrence as one launch (see `persistent`) where that suits; for
      a `compute_dtype` of bfloat16.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        p: float = 0.0,
        compute_dtype: torch.dtype | None = None,
        persistent: bool = False,
    ) -> None:
        super().__init__()
        self.persistent = persistent
        self.hidden_size = hidden_size
        self.p = check_probability("p", p)
        self.compute_dtype = compute_dtype
        gates = 4 * hidden_size
        self.weight_ih = nn.Parameter(torch.empty(gates, input_size))
        self.weight_hh = nn.Parameter(torch.empty(gates, hidden_size))
        self.bias_ih = nn.Parameter(torch.empty(gates))
        self.bias_hh = nn.Parameter(torch.empty(gates))
        bound = 1.0 / math.sqrt(hidden_size)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    def forward(self, x_TBD: Tensor, state: State) -> tuple[Tensor, State]:
        if can_stack([self], x_TBD):
            y_TBH, (state,) = run_stack([self], x_TBD, [state], [None])
            return y_TBH, state
        weight_hh: Tensor = self.weight_hh
        if self.training and self.p > 0.0:
            weight_hh = drop(weight_hh, self.p)
        weights = [self.weight_ih, weight_hh, self.bias_ih, self.bias_hh]
        dtype, inner = x_TBD.dtype, self.compute_dtype or x_TBD.dtype
        weights = [weight.to(inner) for weight in weights]
        hidden, cell = (part.to(inner) for part in state)
        y_TBH, hidden, cell = library_lstm(x_TBD.to(inner), (hidden, cell), weights)
        return y_TBH.to(dtype), (hidden.to(dtype), cell.to(dtype))

    def initial_state(self, batch_size: int) -> State:
        zeros = self.weight_hh.new_zeros(1, batch_size, self.hidden_size)
        return zeros, zeros

    def extra_repr(self) -> str:
        return f"{self.weight_ih.shape[1]}, {self.hidden_size}, p={self.p}"


def can_stack(layers: Sequence[WeightDropLSTM], x_TBD: Tensor) -> bool:
    """Whether all layers are to be persistent and can be, over such an input."""
    streams, device = x_TBD.shape[1], x_TBD.device
    return all(layer.persistent and unsuited(layer.hidden_size, streams, device) is None for layer in layers)


def run_stack(
    layers: Sequence[WeightDropLSTM],
    x_TBD: Tensor,
    states: Sequence[State],
    masks: Sequence[Tensor | None],
) -> tuple[Tensor, list[State]]:
    """Outputs of the last of persistent layers and all states; masks (1, B, D) are on what layers read."""
    given = [
        Layer(
            None if mask is None else mask[0], state[0][0], state[1][0],
            layer.weight_ih, layer.weight_hh, layer.bias_ih, layer.bias_hh,
        )
        for layer, state, mask in zip(layers, states, masks, strict=True)
    ]  # fmt: skip
    drops = [layer.p if layer.training else 0.0 for layer in layers]
    y_TBH, ends = persistent_stack(x_TBD, given, drops)
    return y_TBH, [(hidden_BH[None], cell_BH[None]) for hidden_BH, cell_BH in ends]


def library_lstm(x_TBD: Tensor, state: State, weights: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """All outputs, the last hidden state and the last cell by torch's kernel, cuDNN's on a GPU."""
    # `train` only says whether cuDNN keeps what backward needs. Tying it to gradients instead of to
    # the module's mode lets dynamic evaluation backpropagate with every dropout off.
    train = torch.is_grad_enabled()
    arguments = (x_TBD, state, weights, True, 1, 0.0, train, False, False)
    if not x_TBD.is_cuda:
        return torch._VF.lstm(*arguments)
    with warnings.catch_warnings():
        # The dropped matrix is new in every call, so weights cannot lie in one chunk; cuDNN packs
        # them itself, which costs 1 % of a step at this size.
        warnings.filterwarnings("ignore", message="RNN module weights are not part of single")
        return torch._VF.lstm(*arguments)
