"""How the steps of a run are carried out: what "auto" means on the machine at hand.

A stored configuration keeps "auto", so that a run goes on in the best way of whatever machine it is
carried to; `result.json` says what it came to.
"""

from typing import Literal, NamedTuple

import torch

from uncork.lm.config import Config
from uncork.lm.persistent import unsuited
from uncork.ops.dispatch import resolve


class Way(NamedTuple):
    """What "auto" came to; a recurrence is "mixed" where only some of its layers can be persistent."""

    graphs: bool
    recurrence: Literal["library", "persistent", "mixed"]

    @classmethod
    def of(cls, config: Config, device: torch.device, processes: int = 1) -> "Way":
        """Decide for one of `processes` on `device`; raises where what is asked for is impossible."""
        return cls(_graphs(config, device, processes), _recurrence(config, device, processes))


def _graphs(config: Config, device: torch.device, processes: int) -> bool:
    possible = device.type == "cuda" and processes == 1
    if config.graphs == "auto":
        # Other losses may read a number back to the host, which a recording cannot.
        return possible and resolve(config.model.head.backend, device) == "triton"
    if config.graphs and not possible:
        where = f"{processes} processes" if processes > 1 else device.type
        raise ValueError(
            f"`graphs` must be false unless one process runs on a CUDA device; got {where}. Set graphs=auto."
        )
    return config.graphs


def _recurrence(
    config: Config, device: torch.device, processes: int
) -> Literal["library", "persistent", "mixed"]:
    if not config.may_persist:
        return "library"
    model, streams = config.model, config.data.batch_size // processes
    sizes = {model.width} if model.layers == 1 else {model.hidden, model.width}
    reasons = [reason for size in sizes if (reason := unsuited(size, streams, device))]
    if config.recurrence == "persistent" and reasons:
        raise ValueError(
            f"`recurrence` must be 'library' or 'auto' here, since of a persistent layer {reasons[0]}."
        )
    if not reasons:
        return "persistent"
    return "library" if len(reasons) == len(sizes) else "mixed"
