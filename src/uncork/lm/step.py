"""One training step: cut a window, forward, backward, clip, update, carry the state over.

All a step reads and changes lies in tensors that stay where they are, so that on a GPU a step can be
recorded once per length of window, as a CUDA graph, and replayed: the host then only says which.
Shapes: T time, B streams.
"""

from typing import NamedTuple

import torch
from torch import (
    Tensor,
    _foreach_copy_,  # pyright: ignore[reportPrivateImportUsage]
    nn,
)

from uncork.lm.awd_lstm import LanguageModel, States
from uncork.lm.clip import clip_factor, gradient_norm
from uncork.lm.config import Config
from uncork.lm.corpus import following
from uncork.lm.optim import AveragedSGD
from uncork.lm.refine import coarsen_gradient, knots_after
from uncork.lm.way import Way


class Carried(NamedTuple):
    """What one step leaves for the next besides the parameters, changed in place."""

    start: Tensor  # next time step of the stream
    states: States
    epoch_nll: Tensor  # summed over the time steps of the epoch so far

    @classmethod
    def fresh(cls, model: LanguageModel, streams: int, device: torch.device) -> "Carried":
        """As at the start of an epoch."""
        return cls(
            torch.zeros((), dtype=torch.int64, device=device),
            [(hidden.clone(), cell.clone()) for hidden, cell in model.encoder.initial_states(streams)],
            torch.zeros((), dtype=torch.float64, device=device),
        )

    def clear_(self) -> None:
        """Back to the start of an epoch."""
        for tensor in (self.start, self.epoch_nll, *_parts(self.states)):
            tensor.zero_()


class TrainingStep:
    """Calling it with a window's length, and how many epochs are done, takes one step over the stream.

    Arguments:

    - `forward`: `model`, or what wraps it for several processes.
    - `train_TB`: the stream, on the device of the model.
    - `carried`: moved along by every call.
    """

    def __init__(
        self,
        config: Config,
        model: LanguageModel,
        forward: nn.Module,
        optimizer: AveragedSGD,
        train_TB: Tensor,
        carried: Carried,
    ) -> None:
        self.config = config
        self.model = model
        self.forward = forward
        self.optimizer = optimizer
        self.train_TB = train_TB
        self.carried = carried

    def kind(self, length: int, epoch: int) -> tuple[int, bool, int | None]:
        """What two steps must share to be the same work on other numbers."""
        function = self.config.model.head.function
        knots = None if function is None else knots_after(function.refine, epoch)
        return length, self.optimizer.averaging, knots

    def __call__(self, length: int, epoch: int) -> None:
        start, states, epoch_nll = self.carried
        tokens_TB, target_TB = following(self.train_TB, start, length)
        result = self.forward(tokens_TB, states, target_TB)
        self.optimizer.zero_grad()
        result.loss.backward()
        coarsen_gradient(self.model, self.config, epoch)
        limit = self.config.optim.clip
        factor = None if limit is None else clip_factor(gradient_norm(self.model), limit)
        # A long window's mean gradient is no larger but stands for more words.
        self.optimizer.step(scale=length / self.config.data.bptt, factor=factor)
        with torch.no_grad():
            _foreach_copy_(_parts(states), _parts(result.states))
            epoch_nll.add_(result.nll.double() * length)
            start.add_(length)


def _parts(states: States) -> list[Tensor]:
    return [part for state in states for part in state]


def in_the_way(step: TrainingStep, way: Way) -> "TrainingStep | GraphedStep":
    """The step, or what replays it."""
    return GraphedStep(step) if way.graphs else step


class GraphedStep:
    """The same step as CUDA graphs, one per length of window.

    The first window of a length is an ordinary step, in which kernels are compiled and chosen; the second
    is recorded while nothing runs, then replayed as often as the length comes. When averaging begins, or
    the table becomes finer, steps are others and are recorded anew. Random masks go on from where the
    generator is, as they would without graphs.
    """

    def __init__(self, step: TrainingStep) -> None:
        self.step = step
        self.stream = torch.cuda.Stream(step.train_TB.device)
        self.seen: set[tuple[int, bool, int | None]] = set()
        self.graphs: dict[tuple[int, bool, int | None], torch.cuda.CUDAGraph] = {}
        # One pool for all: no two replay at once, and what outlasts a replay lies outside.
        self.pool = torch.cuda.graph_pool_handle()

    def __call__(self, length: int, epoch: int) -> None:
        kind = self.step.kind(length, epoch)
        if kind not in self.seen:
            self.seen.add(kind)
            self._ordinary(length, epoch)
            return
        if kind not in self.graphs:
            self.graphs[kind] = self._record(length, epoch)
        self.graphs[kind].replay()

    def _ordinary(self, length: int, epoch: int) -> None:
        # On the stream that records: autograd then never meets a gradient of another one.
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            self.step(length, epoch)
        torch.cuda.current_stream().wait_stream(self.stream)

    def _record(self, length: int, epoch: int) -> "torch.cuda.CUDAGraph":
        self.step.optimizer.zero_grad()  # gradients of the step before lie in another graph's memory
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool, stream=self.stream):
            self.step(length, epoch)
        return graph
