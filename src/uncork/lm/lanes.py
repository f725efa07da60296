"""Layers working at the same time: on a GPU each runs in a lane (a CUDA stream) of its own.

An LSTM step at these sizes leaves most of a GPU idle: it waits for the step before. With the window
cut into pieces of time, a layer reads a piece while the layer below is at the next one. Only
the order of execution changes; on a CPU a lane is nothing and pieces follow each other.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch
from torch import Tensor


class Lanes:
    """One lane per layer for work on `device`; without `enabled`, all of it stays where it is."""

    def __init__(self, count: int, device: torch.device, enabled: bool) -> None:
        self.streams = _streams(device, count) if enabled and device.type == "cuda" else ()
        self.device = device

    @contextmanager
    def lane(self, number: int) -> Iterator[None]:
        """Inside, work goes to lane `number`."""
        if not self.streams:
            yield
            return
        with torch.cuda.stream(self.streams[number]):
            yield

    def hand_over(self, tensors: list[Tensor]) -> "Parcel":
        """Mark tensors made in this lane as ready when all its work so far is done."""
        if not self.streams:
            return Parcel(tensors, None)
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self.device))
        return Parcel(tensors, event)


class Parcel:
    """Tensors on their way from one lane to another."""

    def __init__(self, tensors: list[Tensor], event: "torch.cuda.Event | None") -> None:
        self.tensors = tensors
        self.event = event

    def take(self) -> list[Tensor]:
        """The tensors, once they are ready for the lane that asks."""
        if self.event is not None:
            stream = torch.cuda.current_stream(self.tensors[0].device)
            stream.wait_event(self.event)
            for tensor in self.tensors:
                # Their memory must not serve the lane they come from while this one still reads it.
                tensor.record_stream(stream)
        return self.tensors


@cache
def _streams(device: torch.device, count: int) -> tuple["torch.cuda.Stream", ...]:
    return tuple(torch.cuda.Stream(device) for _ in range(count))
