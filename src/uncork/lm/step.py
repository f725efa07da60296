"""One training step: cut a window, forward, backward, clip, update, carry the state over.

All a step reads and changes lies in tensors that stay where they are, so that on a GPU a step can be
recorded once per length of window, as a CUDA graph, and replayed: the host then only says which.
Shapes: T time, B streams.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from uncork.lm.awd_lstm import LanguageModel, States
from uncork.lm.config import Config
from uncork.lm.corpus import following
from uncork.lm.optim import AveragedSGD
from uncork.lm.persistent import unsuited
from uncork.lm.world import World


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
        for tensor in (self.start, self.epoch_nll, *(part for state in self.states for part in state)):
            tensor.zero_()


class TrainingStep:
    """Calling it with a window's length takes one step over the training stream.

    Arguments:

    - `forward`: the model, or what wraps it for several processes.
    - `train_TB`: the stream, on the device of the model.
    - `carried`: moved along by every call.
    """

    def __init__(
        self,
        config: Config,
        forward: nn.Module,
        optimizer: AveragedSGD,
        train_TB: Tensor,
        carried: Carried,
    ) -> None:
        self.forward = forward
        self.optimizer = optimizer
        self.train_TB = train_TB
        self.carried = carried
        self.bptt = config.data.bptt
        self.clip = config.optim.clip

    def __call__(self, length: int) -> None:
        start, states, epoch_nll = self.carried
        tokens_TB, target_TB = following(self.train_TB, start, length)
        result = self.forward(tokens_TB, states, target_TB)
        self.optimizer.zero_grad()
        result.loss.backward()
        if self.clip is not None:
            nn.utils.clip_grad_norm_(self.forward.parameters(), self.clip)
        # A long window's mean gradient is no larger but stands for more words.
        self.optimizer.step(scale=length / self.bptt)
        with torch.no_grad():
            for state, new in zip(states, result.states, strict=True):
                for part, new_part in zip(state, new, strict=True):
                    part.copy_(new_part)
            epoch_nll.add_(result.nll.double() * length)
            start.add_(length)


def build_step(
    config: Config, forward: nn.Module, optimizer: AveragedSGD, train_TB: Tensor, carried: Carried
) -> "TrainingStep | GraphedStep":
    """The step a configuration asks for."""
    step = TrainingStep(config, forward, optimizer, train_TB, carried)
    return GraphedStep(step) if config.graphs else step


def check_device(config: Config, world: World) -> None:
    """Refuse CUDA graphs and persistent layers where there can be none."""
    if config.graphs and (world.device.type != "cuda" or world.size > 1):
        where = f"{world.size} processes" if world.size > 1 else world.device.type
        raise ValueError(f"`graphs` must be false but for one process on a CUDA device; got {where}.")
    if config.recurrence == "persistent":
        streams = config.data.batch_size // world.size
        for size in {config.model.hidden, config.model.width}:
            if reason := unsuited(size, streams, world.device):
                raise ValueError(
                    f"`recurrence` must be 'library' here, since of a persistent layer {reason}."
                )


class GraphedStep:
    """The same step as CUDA graphs, one per length of window.

    The first window of a length is an ordinary step, in which kernels are compiled and chosen; the second is
    recorded while nothing runs, then replayed as often as the length comes. Random masks go on from
    where the generator is, as they would without graphs.
    """

    def __init__(self, step: TrainingStep) -> None:
        self.step = step
        self.stream = torch.cuda.Stream(step.train_TB.device)
        self.seen: set[tuple[int, bool]] = set()
        self.graphs: dict[tuple[int, bool], torch.cuda.CUDAGraph] = {}
        # One pool for all: no two replay at once, and what outlasts a replay lies outside.
        self.pool = torch.cuda.graph_pool_handle()

    def __call__(self, length: int) -> None:
        key = (length, self.step.optimizer.averaging)
        if key not in self.seen:
            self.seen.add(key)
            self._ordinary(length)
            return
        if key not in self.graphs:
            self.graphs[key] = self._record(length)
        self.graphs[key].replay()

    def _ordinary(self, length: int) -> None:
        # On the stream that records: autograd then never meets a gradient of another one.
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            self.step(length)
        torch.cuda.current_stream().wait_stream(self.stream)

    def _record(self, length: int) -> "torch.cuda.CUDAGraph":
        self.step.optimizer.zero_grad()  # gradients of the step before lie in another graph's memory
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool, stream=self.stream):
            self.step(length)
        return graph
