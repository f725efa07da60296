"""A run in one small file, to carry it to another machine, and back.

The file holds tensors, facts and a hash, as a saved state does. Where the budget allows nothing is
lost. Where it does not, matrices of the model are quantised, the average finer than the iterate it is the
average of, since the noise of the iterate is forgotten and that of the average is not; mean squares of
gradients are kept by their means over rows and columns. The best model is stored as its difference from
the average or iterate. Vectors (biases, slopes of a PLIF), recurrent states and generators stay exact.
What was lost is noted in `packed.json` and ends up in `result.json`.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from uncork.lm.build import build_model, build_optimizer
from uncork.lm.checkpoint import is_file_of, load_state, load_tensors, save_tensors, saved_states
from uncork.lm.lock import folder_lock
from uncork.lm.pack_code import Coded, Contents, code, decode
from uncork.lm.run_folder import check_measured, check_model_is_there, stored_model
from uncork.lm.stored import (
    run_config,
    stored_metrics,
    stored_origin,
    stored_packings,
    stored_result,
    stored_words,
)  # fmt: skip
from uncork.results import UNPACKING, check_target, find_runs, read_json, write_atomic, write_json


FORMAT = "uncork run, packed, 1"
DEFAULT_BYTES = 60 * 2**20
# Written back in this order: a folder that has config.json has the rest.
FILES = ("words.json", "provenance.json", "metrics.jsonl", "packed.json", "result.json", "config.json")
# Names, shapes and facts in the header of the file.
HEADER_BYTES = 128 * 2**10


def pack(folder: str | Path, file: str | Path, max_bytes: int = DEFAULT_BYTES) -> dict[str, Any]:
    """Write the run in `folder` to `file`, of at most `max_bytes`; returns what was lost.

    The answer's `bits` is None where nothing was. A finished run is packed without its state.
    """
    folder = Path(folder)
    if not (folder / "config.json").exists():
        raise ValueError(f"`run` must be a run folder, but `{folder}` has no config.json.")
    check_target("file", file, "a packed run", lambda path: is_file_of(path, FORMAT))
    with folder_lock(folder):
        _check_whole(folder)
        present = [name for name in FILES if (folder / name).exists()]
        files = {f"file/{name}": _tensor((folder / name).read_bytes()) for name in present}
        contents = _gather(folder)
    room = max_bytes - sum(tensor.numel() for tensor in files.values()) - HEADER_BYTES
    coded = code(contents, _choose(contents, room, max_bytes))
    note = {"step": contents.step, "bits": coded.bits, "relative_error": coded.relative_error}
    facts = {"format": FORMAT, "part": coded.facts, "note": note}
    save_tensors(file, files | coded.tensors, facts)
    size = Path(file).stat().st_size
    assert size <= max_bytes, f"{size} bytes were written where {max_bytes} had been planned"
    return note | {"bytes": size}


def unpack(file: str | Path, folder: str | Path) -> dict[str, Any]:
    """Make the run folder `folder` from a packed file; returns what had been lost by packing."""
    folder = Path(folder)
    if (folder / "config.json").exists():
        raise ValueError(
            f"`out` must be a new folder, but `{folder}` holds a run. "
            "Move that run away, or give another folder."
        )
    tensors, facts = load_tensors(file)
    if facts.get("format") != FORMAT:
        raise ValueError(
            f"`file` must be written by `uncork pack` of this version, but `{file}` is something else. "
            "Pack the run again."
        )
    files = {name: tensors.pop(f"file/{name}") for name in FILES if f"file/{name}" in tensors}
    note = facts["note"]
    contents = decode(Coded(tensors, facts["part"], note["bits"], note["relative_error"]))
    mark = {} if note["bits"] is None else {"packed": note}
    if mark:
        former = json.loads(files["packed.json"].numpy().tobytes()) if "packed.json" in files else []
        files["packed.json"] = _tensor(json.dumps([*former, note], indent=2).encode())
    with folder_lock(folder):
        _claim(folder, file)
        if contents.state is not None:
            path = folder / "state" / f"step-{contents.step:09d}.safetensors"
            save_tensors(path, contents.state, contents.state_facts | mark)
        if contents.best is not None:
            save_tensors(folder / "model.safetensors", contents.best, contents.best_facts | mark)
        for name in FILES:
            if name in files:
                write_atomic(folder / name, files[name].numpy().tobytes())
        (folder / UNPACKING).unlink()
    return note


def _claim(folder: Path, file: str | Path) -> None:
    """Note whose folder it becomes, unless files of another run are there: some of them would stay in use."""
    mark, digest = folder / UNPACKING, hashlib.sha256(Path(file).read_bytes()).hexdigest()
    if not mark.exists():
        left = [str(run.relative_to(folder)) for run in find_runs(folder)]
        left += [name for name in (*FILES, "model.safetensors") if (folder / name).exists()]
        left += [f"state/{path.name}" for path in saved_states(folder / "state")]
        left += sorted(path.name for path in folder.glob("evaluation-*.json"))
    else:
        left = [] if read_json(mark) == digest else [UNPACKING]
    if left:
        raise ValueError(
            f"`out` must be a new folder, or one in which unpacking of `{file}` was interrupted, but "
            f"`{folder}` has {left[0]} of another run. Give another folder."
        )
    write_json(mark, digest)


def _check_whole(folder: Path) -> None:
    """Refuse a run that could be neither used nor continued where it is unpacked, or a file not be read."""
    run_config(folder)
    for read in (stored_words, stored_origin, stored_metrics, stored_packings):
        read(folder)
    if stored_result(folder) is not None:
        check_model_is_there(folder)


def _gather(folder: Path) -> Contents:
    """The tensors of a run: of a finished one its best model alone, else also its newest state."""
    path = folder / "model.safetensors"
    best, best_facts = stored_model(folder) if path.exists() else (None, {})
    result = stored_result(folder)
    if result is not None:
        return Contents(result["steps"], None, {}, best, best_facts, {})
    loaded = load_state(folder / "state")
    if loaded is None:
        raise ValueError(
            f"`run` must have a saved state to be packed, but `{folder}` has none yet: "
            "let it train for an epoch, or stop it with Ctrl-C or SIGTERM, which saves one."
        )
    state, facts = loaded
    check_measured(folder, facts["position"])
    return Contents(facts["position"]["step"], state, facts, best, best_facts, _bases(folder, state))


def _bases(folder: Path, state: dict[str, Tensor]) -> dict[str, str]:
    """For each tensor of the model, the one of the state it is evaluated with: its average, or itself."""
    config = run_config(folder)
    with torch.random.fork_rng(devices=[]):
        model = build_model(config, len(stored_words(folder)))
    optimizer = build_optimizer(config, model)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    numbers = {id(parameter): number for number, parameter in enumerate(parameters)}
    named = model.state_dict(keep_vars=True)
    bases = {}
    for name in (key.removeprefix("model/") for key in state if key.startswith("model/")):
        average = f"optimizer/{numbers.get(id(named[name]))}/average"
        bases[name] = average if average in state else f"model/{name}"
    return bases


def _choose(contents: Contents, room: int, max_bytes: int) -> tuple[int, int, int] | None:
    """The first step of the ladder that fits; None is no quantisation at all."""
    for bits in (None, *contents.ladder):
        if contents.size(bits) <= room:
            return bits
    least = contents.size(contents.ladder[-1]) + max_bytes - room
    raise ValueError(f"`bytes` must be at least {least} for this run; got {max_bytes}. Give more room.")


def _tensor(content: bytes) -> Tensor:
    return torch.from_numpy(np.frombuffer(content, dtype=np.uint8).copy())
