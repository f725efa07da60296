"""One training step: cut a window, forward, backward, clip, update, carry the state over.

All a step reads and changes lies in tensors that stay where they are, so that on a GPU a step can be
recorded once per length of window, as a CUDA graph, and replayed: the host then only names the graph.
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
        """What two steps must share for one graph to serve both."""
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
        # The gradient is a mean over the window: unscaled, long windows would count no more than short.
        self.optimizer.step(scale=length / self.config.data.bptt, factor=factor)
        with torch.no_grad():
            _foreach_copy_(_parts(states), _parts(result.states))
            epoch_nll.add_(result.nll.double() * length)
            start.add_(length)


def _parts(states: States) -> list[Tensor]:
    return [part for state in states for part in state]


class GraphedStep:
    """The same step as CUDA graphs, one per length of window.

    The first window of a length is an ordinary step, in which kernels are compiled and chosen; the second
    is recorded while nothing runs, then replayed whenever that length comes again. When averaging begins, or
    the table becomes finer, the step does something else and is recorded anew. Random masks continue the
    generator's sequence, as they would without graphs.
    """

    def __init__(self, step: TrainingStep) -> None:
        self.step = step
        self.stream = torch.cuda.Stream(step.train_TB.device)
        self.seen: set[tuple[int, bool, int | None]] = set()
        self.graphs: dict[tuple[int, bool, int | None], torch.cuda.CUDAGraph] = {}
        # All graphs may share one pool: only one replays at a time, and no result is kept in it.
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
        # On the stream used for recording, so that autograd never mixes gradients of two streams. Graphs are
        # replayed on the one around it: that of the model's device, which need not be the current device.
        around = torch.cuda.current_stream(self.stream.device)
        self.stream.wait_stream(around)
        with torch.cuda.stream(self.stream):
            self.step(length, epoch)
        around.wait_stream(self.stream)

    def _record(self, length: int, epoch: int) -> "torch.cuda.CUDAGraph":
        self.step.optimizer.zero_grad()  # gradients of the step before lie in another graph's memory
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool, stream=self.stream):
            self.step(length, epoch)
        return graph
