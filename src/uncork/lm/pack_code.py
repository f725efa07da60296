"""The tensors of a run with fewer bits: which get how many, and how they are read back."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from uncork.lm.quantise import Quantised, dequantise, quantise, quantised_bytes


Role = Literal["base", "iterate", "best"]
ROLES: tuple[Role, ...] = ("base", "iterate", "best")
Bits = tuple[int, int, int]

# Bits of the base (the average, or without one the iterate), of the iterate beside an average, and of the
# best model's difference from the base; in order of preference. An average differs little from the best so
# far. An iterate differs more, so there the difference needs more bits.
AVERAGING_LADDER: tuple[Bits, ...] = (
    (16, 12, 8), (14, 10, 6), (12, 8, 4), (11, 6, 3), (10, 6, 3), (8, 6, 3), (7, 5, 2), (6, 4, 2),
)  # fmt: skip
PLAIN_LADDER: tuple[Bits, ...] = (
    (16, 16, 12), (14, 14, 10), (12, 12, 8), (10, 10, 6), (8, 8, 6), (7, 7, 5), (6, 6, 4),
)  # fmt: skip
# Below this a tensor costs little and stays exact.
LARGE = 2**16
# The mean squares of gradients are no matter of bits: a small one that is rounded to 0 would make its step
# huge. They are kept as means of rows and columns, whose product is never 0 where they are not, as Adafactor
# does in training (Shazeer and Stern, 2018), and forget that within a few thousand steps.
SQUARE = "/square"


@dataclass(frozen=True)
class Contents:
    """The tensors of a run, and the facts stored with them.

    `bases` maps each tensor of the model to the one of the state that evaluation reads: the average of a
    parameter, or the parameter itself.
    """

    step: int
    state: dict[str, Tensor] | None
    state_facts: dict[str, Any]
    best: dict[str, Tensor] | None
    best_facts: dict[str, Any]
    bases: dict[str, str]

    @cached_property
    def best_is_base(self) -> bool:
        """Whether the best model is the one just evaluated, as it most often is: kept once then."""
        state, best = self.state, self.best
        if state is None or best is None:
            return False
        return all(torch.equal(best[name], state[base]) for name, base in self.bases.items())

    @property
    def ladder(self) -> tuple[Bits, ...]:
        averaging = any(base.startswith("optimizer/") for base in self.bases.values())
        return AVERAGING_LADDER if averaging else PLAIN_LADDER

    def tensors(self) -> Iterator[tuple[str, Tensor, Role, str | None]]:
        """Name in the file, value, role, and the tensor it is kept as a difference from."""
        kept_as_base = set(self.bases.values())
        for name, tensor in (self.state or {}).items():
            yield f"state/{name}", tensor, "base" if name in kept_as_base else "iterate", None
        for name, tensor in (self.best or {}).items() if not self.best_is_base else ():
            base = self.bases.get(name)
            yield f"best/{name}", tensor, "base" if base is None else "best", base and f"state/{base}"

    def size(self, bits: Bits | None) -> int:
        """Bytes of all tensors when their roles have so many bits; None keeps everything exact."""
        total = 0
        for name, tensor, role, _ in self.tensors():
            if bits is not None and is_coded(name, tensor):
                few = quantised_bytes(tensor.numel(), bits[ROLES.index(role)])
                total += 4 * sum(tensor.shape) if name.endswith(SQUARE) else few
            else:
                total += tensor.numel() * tensor.element_size()
        return total


@dataclass(frozen=True)
class Coded:
    """The contents as tensors and facts of one file, and what precision they lost."""

    tensors: dict[str, Tensor]
    facts: dict[str, Any]
    bits: dict[str, int] | None
    relative_error: dict[str, float]


def is_coded(name: str, tensor: Tensor) -> bool:
    """Large matrices of model and average; vectors, recurrent states and generators are exact."""
    of_model = name.startswith(("state/model/", "state/optimizer/", "best/"))
    return of_model and tensor.dtype == torch.float32 and tensor.dim() > 1 and tensor.numel() >= LARGE


def code(contents: Contents, bits: Bits | None) -> Coded:
    """Quantise as `bits` say; without them keep all."""
    generator = torch.Generator().manual_seed(contents.step)
    tensors: dict[str, Tensor] = {}
    coded: dict[str, Any] = {}
    read_back: dict[str, Tensor] = {}
    lost: dict[str, list[float]] = {}  # by role, or "square": sum of squared errors, sum of squares

    def note_loss(role: str, kept: Tensor, exact: Tensor) -> None:
        sums = lost.setdefault(role, [0.0, 0.0])
        sums[0] += (kept.double() - exact.double()).square().sum().item()
        sums[1] += exact.double().square().sum().item()

    for name, tensor, role, base in contents.tensors():
        if bits is None or not is_coded(name, tensor):
            tensors[name] = tensor
            continue
        if name.endswith(SQUARE):
            rows, columns = tensor.mean(1), tensor.mean(0)
            tensors[f"{name}|rows"], tensors[f"{name}|columns"] = rows, columns
            note_loss("square", _from_means(rows, columns), tensor)
            coded[name] = {"shape": list(tensor.shape), "base": None}
            continue
        origin = read_back[base] if base else torch.zeros(())
        # Chance rounding is for what is averaged further. The best model is not: round it to the nearest.
        kept = quantise(tensor - origin, bits[ROLES.index(role)], None if role == "best" else generator)
        tensors[f"{name}|planes"], tensors[f"{name}|scales"] = kept.planes, kept.scales
        coded[name] = {"shape": list(tensor.shape), "base": base}
        read_back[name] = origin + dequantise(kept, tuple(tensor.shape))
        note_loss(role, read_back[name], tensor)
    facts = {
        "step": contents.step,
        "coded": coded,
        "has_state": contents.state is not None,
        "state": contents.state_facts,
        "has_best": contents.best is not None,
        "best": contents.best_facts,
        "bases": contents.bases,
        "best_is_base": contents.best_is_base,
    }
    used = {role: bits[n] for n, role in enumerate(ROLES) if role in lost} if bits is not None else {}
    errors = {role: (error / max(square, 1e-300)) ** 0.5 for role, (error, square) in lost.items()}
    return Coded(tensors, facts, used or None, errors)


def decode(coded: Coded) -> Contents:
    """The inverse of `code`, up to what was lost."""
    facts, tensors = coded.facts, dict(coded.tensors)
    # A base comes before what is kept relative to it.
    for name, fact in sorted(facts["coded"].items(), key=lambda item: item[1]["base"] is not None):
        if name.endswith(SQUARE):
            tensors[name] = _from_means(tensors.pop(f"{name}|rows"), tensors.pop(f"{name}|columns"))
            continue
        kept = Quantised(tensors.pop(f"{name}|planes"), tensors.pop(f"{name}|scales"))
        value = dequantise(kept, tuple(fact["shape"]))
        tensors[name] = tensors[fact["base"]] + value if fact["base"] else value
    state = _under("state/", tensors) if facts["has_state"] else None
    best = _under("best/", tensors) if facts["has_best"] else None
    if facts["best_is_base"] and state is not None:
        best = {name: state[base] for name, base in facts["bases"].items()}
    return Contents(facts["step"], state, facts["state"], best, facts["best"], facts["bases"])


def _from_means(rows: Tensor, columns: Tensor) -> Tensor:
    """The matrix of rank one with these means of rows and columns."""
    mean = rows.mean().clamp(min=torch.finfo(rows.dtype).tiny)
    return torch.outer(rows / mean, columns)


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
