"""Everything a run is at a moment, as named tensors and JSON facts, and back.

Under several processes the first one writes for all: their carried states are joined along the
streams, their generators listed by rank.
"""

import dataclasses
import math
from typing import Any

import torch
from torch import Tensor

from uncork.lm.awd_lstm import LanguageModel
from uncork.lm.checkpoint import fill_model, model_tensors
from uncork.lm.corpus import Corpus
from uncork.lm.optim import AveragedSGD
from uncork.lm.step import Carried
from uncork.lm.world import World


Snapshot = tuple[dict[str, Tensor], dict[str, Any]]


@dataclasses.dataclass
class Position:
    """Where a run is, besides its tensors."""

    step: int = 0
    epoch: int = 0  # epochs finished
    start: int = 0  # next time step of the training stream
    best_nll: float = math.inf
    epoch_tokens: int = 0  # time steps read in this epoch
    evaluations: int = 0


def snapshot(
    at: Position,
    carried: Carried,
    model: LanguageModel,
    optimizer: AveragedSGD,
    lengths: torch.Generator,
    corpus: Corpus,
    world: World,
) -> Snapshot:
    """Collect it. Every process must call this together."""
    tensors = model_tensors(model, "model/")
    for layer, state in enumerate(carried.states):
        for name, part in zip(("hidden", "cell"), state, strict=True):
            tensors[f"states/{layer}/{name}"] = torch.cat(world.gather(part), dim=1)
    for rank, total in enumerate(world.gather(carried.epoch_nll)):
        tensors[f"epoch_nll/{rank}"] = total
    for name, generator_state in _generators(world).items():
        for rank, part in enumerate(world.gather(generator_state)):
            tensors[f"random/{name}/{rank}"] = part
    tensors["random/lengths"] = lengths.get_state()
    optimizer_state = optimizer.state_dict()
    for number, entry in optimizer_state.pop("state").items():
        tensors |= {f"optimizer/{number}/{name}": tensor for name, tensor in entry.items()}
    # JSON has no infinity.
    position = dataclasses.asdict(at) | {"best_nll": at.best_nll if at.best_nll < math.inf else None}
    facts = {
        "position": position, "optimizer": optimizer_state, "corpus": corpus.fingerprint,
        "processes": world.size, "device": world.device.type, "threads": torch.get_num_threads(),
    }  # fmt: skip
    return tensors, facts


def restore(
    saved: Snapshot,
    carried: Carried,
    model: LanguageModel,
    optimizer: AveragedSGD,
    lengths: torch.Generator,
    corpus: Corpus,
    world: World,
) -> Position:
    """Put it back, in place, and return the position."""
    tensors, facts = saved
    _check(facts, corpus, world)
    if world.device.type == "cpu" and "threads" in facts:  # which older states do not have
        torch.set_num_threads(facts["threads"])  # sums are split among them, and rounded accordingly
    fill_model(model, _part(tensors, "model/"), "The saved state")
    entries: dict[int, dict[str, Tensor]] = {}
    for name, tensor in _part(tensors, "optimizer/").items():
        number, kind = name.split("/")
        entries.setdefault(int(number), {})[kind] = tensor
    optimizer.load_state_dict(facts["optimizer"] | {"state": entries})
    lengths.set_state(tensors["random/lengths"])
    torch.set_rng_state(tensors[f"random/cpu/{world.rank}"])
    if world.device.type == "cuda":
        torch.cuda.set_rng_state(tensors[f"random/cuda/{world.rank}"], world.device)
    own = world.share(tensors["states/0/hidden"].shape[1])
    for layer, state in enumerate(carried.states):
        for name, part in zip(("hidden", "cell"), state, strict=True):
            part.copy_(tensors[f"states/{layer}/{name}"][:, own])
    carried.epoch_nll.copy_(tensors[f"epoch_nll/{world.rank}"])
    position = facts["position"]
    if position["best_nll"] is None:
        position["best_nll"] = math.inf
    carried.start.fill_(position["start"])
    return Position(**position)


def _check(facts: dict[str, Any], corpus: Corpus, world: World) -> None:
    if facts["corpus"] != corpus.fingerprint:
        raise ValueError(
            "The corpus must be the one the run was started on, but its text or words differ. "
            "Restore the files, or start a new run."
        )
    for name, now in (("processes", world.size), ("device", world.device.type)):
        if facts[name] != now:
            raise ValueError(
                f"A run must resume on the same {name} to continue exactly; it had {facts[name]}, "
                f"now there is {now}."
            )


def _generators(world: World) -> dict[str, Tensor]:
    generators = {"cpu": torch.get_rng_state()}
    if world.device.type == "cuda":
        generators["cuda"] = torch.cuda.get_rng_state(world.device)
    return generators


def _part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
