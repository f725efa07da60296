"""Saved states that survive a kill: one safetensors file per state, with its facts and a hash inside.

A state is written beside the last one and renamed into place, and the one before is kept, so at
any moment some complete state exists. Facts (numbers, lists) travel as JSON in the file's header.
Nothing here ever unpickles.
"""

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor, nn

from uncork.results import write_atomic


KEPT_STATES = 2


class DamagedCheckpoint(ValueError):
    """A file that does not hold what was written to it."""


def save_tensors(path: str | Path, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
    """Write tensors and JSON facts to one file, atomically, with a hash over both."""
    # Clones, since safetensors refuses tensors that share memory, as two states of zeros may.
    tensors = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}
    text = json.dumps(facts, sort_keys=True)
    # One entry, because the order of several in the header is not fixed and equal states should
    # be equal files.
    header = json.dumps({"facts": text, "sha256": _hash(tensors, text)}, sort_keys=True)
    write_atomic(path, to_bytes(tensors, metadata={"uncork": header}))


def load_tensors(path: str | Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read such a file back; anything but what was written raises `DamagedCheckpoint`."""
    try:
        with safe_open(str(path), framework="pt") as file:
            header = json.loads((file.metadata() or {}).get("uncork", "{}"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise FileNotFoundError(f"There is no file `{path}`.") from None
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        raise DamagedCheckpoint(f"`{path}` is damaged: it is not a safetensors file ({error}).") from error
    header = header if isinstance(header, dict) else {}
    text = header.get("facts", "")
    if not isinstance(text, str) or header.get("sha256") != _hash(tensors, text):
        raise DamagedCheckpoint(f"`{path}` is damaged: its contents do not have the hash it was given.")
    return tensors, json.loads(text)


def is_file_of(path: Path, form: str) -> bool:
    """Whether the facts of a file name that format; its tensors are not read."""
    try:
        with safe_open(str(path), framework="pt") as file:
            header = json.loads((file.metadata() or {})["uncork"])
        return json.loads(header["facts"])["format"] == form
    except (SafetensorError, OSError, ValueError, KeyError, TypeError):
        return False


def save_state(folder: Path, step: int, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
    """Add the state after `step` to `folder`, then remove all but it and the one before."""
    try:
        save_tensors(folder / f"step-{step:09d}.safetensors", tensors, facts)
    except OSError as error:
        steps = [str(_step(path)) for path in saved_states(folder)]
        kept = f"the state after step {steps[-1]} is untouched" if steps else "no state was saved before"
        raise OSError(
            error.errno,
            f"The state after step {step} could not be saved in `{folder}` "
            f"({error.strerror or error}); {kept}. Make room, then continue with --resume",
        ) from error
    for path in saved_states(folder)[:-KEPT_STATES]:
        path.unlink()
    for leftover in folder.glob(".*.tmp"):  # of a save that was killed
        leftover.unlink()


def load_state(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """The newest state, or None where there is none; a damaged one is named with its remedy."""
    states = saved_states(folder)
    if not states:
        return None
    try:
        return load_tensors(states[-1])
    except DamagedCheckpoint as error:
        older = [path for path in states[:-1] if _is_whole(path)]
        remedy = (
            f"The state before it is whole: delete `{states[-1]}` to continue from step {_step(older[-1])}."
            if older
            else "No earlier state is whole: start again in another folder."
        )
        raise DamagedCheckpoint(f"{error} {remedy}") from error


class BestModel:
    """The best model so far: a copy in memory until it is written, which may be some epochs later."""

    def __init__(self, path: str | Path) -> None:
        self.path = path
        self.tensors: dict[str, Tensor] = {}
        self.facts: dict[str, Any] = {}

    def take(self, model: nn.Module, facts: dict[str, Any]) -> None:
        """Remember the model as it is now."""
        self.tensors = {name: tensor.detach().clone() for name, tensor in model_tensors(model).items()}
        self.facts = facts

    def write(self) -> None:
        """Write it, unless the file is that model already."""
        if self.tensors:
            save_tensors(self.path, self.tensors, self.facts)
            self.tensors = {}


def load_model(path: str | Path, model: nn.Module) -> dict[str, Any]:
    """Fill `model` from a file of `BestModel`; names and shapes must match. Returns the facts."""
    tensors, facts = load_tensors(path)
    fill_model(model, tensors, str(path))
    return facts


def fill_model(model: nn.Module, tensors: dict[str, Tensor], what: str) -> None:
    """Load `tensors` into the model's parameters and buffers of the same names."""
    own = model_tensors(model)
    got = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    expected = {name: tuple(tensor.shape) for name, tensor in own.items()}
    if got != expected:
        wrong = sorted(name for name in {*got, *expected} if got.get(name) != expected.get(name))
        raise ValueError(
            f"{what} must hold the tensors of this model; these differ: "
            + ", ".join(f"{n} (file {got.get(n)}, model {expected.get(n)})" for n in wrong[:5])
            + ". Use the configuration the file was written with."
        )
    model.load_state_dict({name: tensors[once] for name, once in _names(model).items()})


def model_tensors(model: nn.Module, prefix: str = "") -> dict[str, Tensor]:
    """Parameters and saved buffers by name, a tied one once."""
    kept = model.state_dict()
    return {prefix + once: kept[once] for once in _names(model).values()}


def _names(model: nn.Module) -> dict[str, str]:
    """Every name in the state dict, with the first name of the same parameter."""
    first: dict[int, str] = {}
    kept = model.state_dict(keep_vars=True)
    return {name: first.setdefault(id(tensor), name) for name, tensor in kept.items()}


def _hash(tensors: dict[str, Tensor], text: str) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        if math.prod(tensor.shape):
            digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def saved_states(folder: Path) -> list[Path]:
    """The states in `folder`, the newest last."""
    return sorted(folder.glob("step-*.safetensors"))


def _step(path: Path) -> int:
    return int(path.stem.removeprefix("step-"))


def _is_whole(path: Path) -> bool:
    try:
        load_tensors(path)
    except (DamagedCheckpoint, OSError):
        return False
    return True
