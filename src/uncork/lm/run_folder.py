"""The files of a run besides its tensors: what it is, what it measured, what came out."""

import json
import statistics
from pathlib import Path
from typing import Any

import torch
from torch import nn

from uncork.lm.awd_lstm import LanguageModel
from uncork.lm.build import build_model, count_parameters
from uncork.lm.checkpoint import DamagedCheckpoint, load_model, load_tensors, saved_states
from uncork.lm.config import Config
from uncork.lm.config_io import FREE_FIELDS, flat, from_dict, to_dict, without_gone
from uncork.lm.corpus import Corpus
from uncork.lm.evaluate import Score
from uncork.lm.world import find_device
from uncork.results import provenance, read_json, read_jsonl, write_atomic, write_json


def check_folder(config: Config, folder: Path, resume: bool) -> None:
    """Refuse to overwrite a run, or to resume one under another configuration or without a state."""
    traces = _traces(folder)
    if not (folder / "config.json").exists():
        if traces:  # nobody can tell which run they are of
            raise ValueError(
                f"`{folder}` must have the config.json of its run, but it has {traces[0]} without it. "
                "Put config.json back, or choose a new folder (--out)."
            )
        return
    if not resume:
        raise ValueError(
            f"`{folder}` must be a new folder, but it holds a run. "
            "Continue that run with --resume, or give another folder."
        )
    _check_same(config, folder)
    if traces and not (folder / "result.json").exists() and not saved_states(folder / "state"):
        raise ValueError(
            f"`{folder}` must have a saved state to be resumed, but it has {traces[0]} and no state/step-*. "
            "Put the states back, or choose a new folder (--out)."
        )


def _traces(folder: Path) -> list[str]:
    """Files that only a run which has trained leaves behind, the most telling first."""
    found = [f"state/{path.name}" for path in saved_states(folder / "state")[-1:]]
    found += [name for name in ("result.json", "model.safetensors") if (folder / name).exists()]
    metrics = folder / "metrics.jsonl"  # is there from the start, at first empty
    return found + ["metrics.jsonl"] * (metrics.exists() and metrics.stat().st_size > 0)


def _check_same(config: Config, folder: Path) -> None:
    stored, now = flat(without_gone(stored_config(folder))), flat(to_dict(config))
    differing = sorted(name for name in {*stored, *now} - FREE_FIELDS if stored.get(name) != now.get(name))
    if differing:
        changes = ", ".join(f"{n} (was {stored.get(n)}, now {now.get(n)})" for n in differing)
        raise ValueError(
            f"`{folder}` must be resumed under its own configuration; these differ: {changes}. "
            "Give the overrides it was started with, or a new folder."
        )


def check_measured(folder: Path, position: dict[str, Any]) -> None:
    """Refuse a folder that has lost what was measured before its state: nothing would bring it back."""
    evaluations = position.get("evaluations", 0)
    path = folder / "metrics.jsonl"
    lines = len(list(read_jsonl(path))) if path.exists() else 0
    if lines < evaluations:
        raise ValueError(
            f"`{path}` must have a line for each of the {evaluations} epochs before the saved state, but it "
            f"has {lines}. Put it back from a copy, or choose a new folder (--out)."
        )
    if not evaluations:
        return
    remedy = "Put it back from a copy, or choose a new folder (--out)."
    if not (folder / "model.safetensors").exists():
        raise ValueError(
            f"`{folder}` must have the best model of the {evaluations} epochs before its saved state, but it "
            f"has no model.safetensors. {remedy}"
        )
    try:
        load_tensors(folder / "model.safetensors")
    except DamagedCheckpoint as error:  # which would only show after the last epoch
        raise DamagedCheckpoint(f"{error} {remedy}") from error


def stored_config(folder: Path) -> dict[str, Any]:
    """What `config.json` holds, not yet checked against this version's fields."""
    values = read_json(folder / "config.json")
    if not isinstance(values, dict):
        raise ValueError(
            f"`{folder / 'config.json'}` must hold a JSON object, but it holds {type(values).__name__}. "
            "Put it back from a copy, or choose a new folder (--out)."
        )
    return values


def open_folder(config: Config, folder: Path, corpus: Corpus, device: torch.device) -> None:
    """Write what the run is. The configuration comes last: a folder that has it has the rest."""
    write_json(folder / "words.json", list(corpus.words))
    write_json(folder / "provenance.json", provenance(device))
    write_json(folder / "config.json", to_dict(config))


def reopen_folder(folder: Path, corpus: Corpus, device: torch.device, step: int) -> None:
    """Note where and with what the run goes on: it may be another machine, or another commit."""
    write_json(folder / "words.json", list(corpus.words))  # which may have been lost
    path, now = folder / "provenance.json", provenance(device)
    origin: dict[str, Any] = read_json(path) if path.exists() else dict.fromkeys(now)
    write_json(path, origin | {"resumed": [*origin.get("resumed", []), {"step": step, **now}]})


def load_start(run: Path, model: nn.Module, corpus: Corpus) -> None:
    """Fill `model` with the weights of the run that is to be finetuned, which must be over the same words."""
    for name in ("words.json", "model.safetensors"):
        if not (run / name).exists():
            raise FileNotFoundError(
                f"`finetune` must be the folder of a run that has a model, but `{run}` has no {name}. "
                "Give one in which at least an epoch was trained."
            )
    if read_json(run / "words.json") != list(corpus.words):
        raise ValueError(
            f"`finetune` must be a run over the vocabulary of the corpus, but that of `{run}` differs. "
            "Point data.root or data.corpus at the text of that run."
        )
    load_model(run / "model.safetensors", model)


def cut_metrics(path: Path, lines: int) -> None:
    """Keep the first `lines` evaluations: those after the state a run resumes from come again."""
    records = list(read_jsonl(path))[:lines] if path.exists() else []
    text = "".join(json.dumps(record, sort_keys=True) + "\n" for record in records)
    write_atomic(path, text.encode())


def make_result(
    config: Config, model: nn.Module, step: int, epoch: int, valid: Score, test: Score, folder: Path
) -> dict[str, Any]:
    """What `result.json` says of a finished run: the best model's scores, and what the run took."""
    head = config.model.head
    device = next(model.parameters()).device
    return {
        "kind": "language_model",
        "name": config.name,
        "corpus": config.data.corpus,
        "head": head.kind,
        "function": None if head.function is None else head.function.name,
        "seed": config.seed,
        "parameters": count_parameters(model),
        "steps": step,
        "epochs": epoch,
        "valid_nll": valid.nll,
        "valid_perplexity": valid.perplexity,
        "test_nll": test.nll,
        "test_perplexity": test.perplexity,
        "test_predictions": test.predictions,
        "seconds_per_epoch": seconds_per_epoch(folder),
        "peak_memory_bytes": torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None,
        "packed": packings(folder),
    }


def seconds_per_epoch(folder: Path) -> float | None:
    """Median of the training seconds, which an epoch cut in two by a stop does not move."""
    path = folder / "metrics.jsonl"
    seconds = [record["train_seconds"] for record in read_jsonl(path)] if path.exists() else []
    return statistics.median(seconds) if seconds else None


def packings(folder: Path) -> list[dict[str, Any]]:
    """Each time the run was carried elsewhere with a loss; empty for one that continued exactly."""
    path = folder / "packed.json"
    return read_json(path) if path.exists() else []


def load_run(
    folder: str | Path, device: str | torch.device = "cpu"
) -> tuple[LanguageModel, Config, list[str]]:
    """The best model of a run, its configuration and its words."""
    folder, device = Path(folder), find_device(device)
    if not (folder / "config.json").exists():
        raise FileNotFoundError(f"`{folder}` must be a run folder, but it has no config.json.")
    if not (folder / "model.safetensors").exists():
        raise FileNotFoundError(
            f"`{folder}` has no model yet: one is written after the first epoch. Train on with --resume."
        )
    config = from_dict(Config, stored_config(folder))
    words = read_json(folder / "words.json")
    model = build_model(config, len(words))
    load_model(folder / "model.safetensors", model)
    return model.to(device).eval(), config, words
