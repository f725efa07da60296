"""The processes a run is spread over: one, or those `torchrun` started.

Everything goes through `torch.distributed`; with one process every method is the identity.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


def find_device(device: str | torch.device = "auto") -> torch.device:
    """The device of that name, if it is one here; "auto" is the GPU where there is one."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        place = torch.device(device)
    except RuntimeError:
        place = None
    if place is None or place.type not in ("cpu", "cuda"):
        raise ValueError(
            f"`device` must be the name of a CPU or an NVIDIA GPU; got {str(device)!r}. Use cpu, cuda, "
            "cuda:0 or auto."
        )
    count = torch.cuda.device_count() if place.type == "cuda" and torch.cuda.is_available() else 0
    if place.type == "cuda" and (place.index or 0) >= count:
        raise ValueError(
            f"`device` must be available here, where torch sees {count} GPUs; got {str(device)!r}. "
            f"Use {'a lower number, ' if count else ''}cpu or auto."
        )
    return place


@dataclass(frozen=True)
class World:
    """This process's place among `size`, and its device."""

    rank: int
    size: int
    device: torch.device
    met: bool = False  # by joining

    @classmethod
    def join(cls, device: str = "auto") -> "World":
        """Read what `torchrun` set, if anything, and meet the other processes."""
        size = int(os.environ.get("WORLD_SIZE", "1"))
        rank = int(os.environ.get("RANK", "0"))
        place = find_device(device)
        if place.type == "cuda" and size > 1:
            place = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
            torch.cuda.set_device(place)
        meets = size > 1 and not dist.is_initialized()
        if meets:
            dist.init_process_group("nccl" if place.type == "cuda" else "gloo")
        return cls(rank, size, place, meets)

    def leave(self) -> None:
        """Part from the other processes, unless somebody else had brought them together."""
        if self.met:
            dist.destroy_process_group()

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def wrap(self, model: nn.Module) -> nn.Module:
        """The module to call in training: gradients are averaged over processes in backward."""
        if self.size == 1:
            return model
        return DistributedDataParallel(model, broadcast_buffers=False)

    def share(self, columns: int, name: str = "batch_size") -> slice:
        """The columns of a global batch that are this process's."""
        if columns % self.size:
            raise ValueError(
                f"`{name}` must be a multiple of the number of processes; got {columns} for {self.size}."
            )
        own = columns // self.size
        return slice(self.rank * own, (self.rank + 1) * own)

    def mean(self, value: Tensor) -> Tensor:
        """The mean over processes."""
        if self.size == 1:
            return value
        value = value.clone()
        dist.all_reduce(value)
        return value / self.size

    def agree(self, value: float) -> float:
        """The first process's value: all must take the same branch."""
        if self.size == 1:
            return value
        shared = torch.tensor([value], dtype=torch.float64, device=self.device)
        dist.broadcast(shared, 0)
        return float(shared.item())

    def any(self, flag: bool) -> bool:
        """Whether any process says so."""
        if self.size == 1:
            return flag
        shared = torch.tensor([float(flag)], device=self.device)
        dist.all_reduce(shared, dist.ReduceOp.MAX)
        return bool(shared.item())

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """Everybody's tensor (of one shape), by rank."""
        if self.size == 1:
            return [tensor]
        local = tensor.to(self.device).contiguous()
        parts = [torch.empty_like(local) for _ in range(self.size)]
        dist.all_gather(parts, local)
        return [part.to(tensor.device) for part in parts]

    @contextmanager
    def first_goes_first(self) -> Iterator[None]:
        """The first process passes alone; the others follow when it is done."""
        if not self.is_first:
            self.wait()
        yield
        if self.is_first:
            self.wait()

    def wait(self) -> None:
        """Let nobody pass before all are here."""
        if self.size > 1:
            dist.barrier()
