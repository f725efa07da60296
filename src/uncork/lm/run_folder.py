"""The files of a run besides its tensors: what it is, what it measured, what came out."""

import json
import statistics
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from uncork.lm.awd_lstm import LanguageModel
from uncork.lm.build import build_model, count_parameters
from uncork.lm.checkpoint import DamagedCheckpoint, fill_model, load_tensors, saved_states
from uncork.lm.config import Config
from uncork.lm.config_io import FREE_FIELDS, OLDER, flat, to_dict, without_gone
from uncork.lm.corpus import Corpus
from uncork.lm.download import REMOTES
from uncork.lm.evaluate import Score
from uncork.lm.stored import run_config, stored_config, stored_origin, stored_packings, stored_words
from uncork.lm.world import find_device
from uncork.results import (
    ORIGIN,
    lost_of_line,
    provenance,
    read_jsonl,
    without_config,
    write_atomic,
    write_json,
)  # fmt: skip


def check_folder(config: Config, folder: Path, resume: bool) -> None:
    """Refuse to overwrite a run, or to resume one under another configuration or without a state."""
    refuse_file(folder)
    traces = _traces(folder)
    if not (folder / "config.json").exists():
        if traces:  # nobody can tell which run they are of
            raise ValueError(without_config(folder, traces[0], "choose a new folder (--out)"))
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


def refuse_file(folder: Path) -> None:
    """A run is a folder, new or there already."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"`{folder}` must be a folder, but it is a file. Give another name (--out).")


def _traces(folder: Path) -> list[str]:
    """Files that only a run which has trained leaves behind, the most telling first."""
    found = [f"state/{path.name}" for path in saved_states(folder / "state")[-1:]]
    found += [name for name in ("result.json", "model.safetensors") if (folder / name).exists()]
    metrics = folder / "metrics.jsonl"  # is there from the start, at first empty
    return found + ["metrics.jsonl"] * (metrics.exists() and metrics.stat().st_size > 0)


def _check_same(config: Config, folder: Path) -> None:
    stored, now = OLDER | flat(without_gone(stored_config(folder))), flat(to_dict(config))
    differing = sorted(name for name in {*stored, *now} - FREE_FIELDS if stored.get(name) != now.get(name))
    if saved_states(folder / "state"):
        differing = [name for name in differing if not _has_moved(name, stored.get(name), now.get(name))]
    if differing:
        changes = ", ".join(f"{n} (was {stored.get(n)}, now {now.get(n)})" for n in differing)
        raise ValueError(
            f"`{folder}` must be resumed under its own configuration; these differ: {changes}. "
            "Give the overrides it was started with, or a new folder."
        )


def _has_moved(name: str, before: Any, now: Any) -> bool:
    """Whether a field is the place of a folder of text, which a state knows by its fingerprint."""
    named = ("embedded", *REMOTES)
    return name == "data.corpus" and before not in named and now not in named


def check_measured(folder: Path, position: dict[str, Any]) -> None:
    """Refuse a folder that has lost what was measured before its state: nothing would bring it back."""
    evaluations = position.get("evaluations", 0)
    path = folder / "metrics.jsonl"
    remedy = "Put it back from a copy, or choose a new folder (--out)."
    measured = _by_epoch(path)
    lost = [str(epoch) for epoch in range(1, evaluations + 1) if epoch not in measured]
    if lost:
        raise ValueError(
            f"`{path}` must have a whole line for each of the {evaluations} epochs before the saved state, "
            f"but it lacks epoch {', '.join(lost)}. {remedy}"
        )
    if not evaluations and position.get("best_nll") is None:  # what a run is finetuned from counts as best
        return
    if not (folder / "model.safetensors").exists():
        raise ValueError(
            f"`{folder}` must have the best model of before its saved state, but it has no "
            f"model.safetensors. {remedy}"
        )
    stored_model(folder)  # damage would only show after the last epoch


def stored_model(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and facts of the best model; a damaged one is named with its remedy."""
    try:
        return load_tensors(folder / "model.safetensors")
    except DamagedCheckpoint as error:
        raise DamagedCheckpoint(
            f"{error} Put it back from a copy; without one, train the run anew in another folder."
        ) from error


def check_model_is_there(folder: Path) -> None:
    """Refuse a folder without a model, with what may bring it back."""
    if (folder / "model.safetensors").exists():
        return
    if (folder / "result.json").exists():
        raise FileNotFoundError(
            f"`{folder}` has lost its model: the run has ended, but there is no model.safetensors. Put it "
            "back from a copy; without one, train the run anew in another folder: --resume does not write it."
        )
    raise FileNotFoundError(
        f"`{folder}` has no model yet: one is written after the first epoch. Train on with --resume."
    )


def open_folder(config: Config, folder: Path, corpus: Corpus, device: torch.device) -> None:
    """Write what the run is. The configuration comes last: a folder that has it has the rest."""
    write_json(folder / "words.json", list(corpus.words))
    write_json(folder / "provenance.json", provenance(device))
    write_json(folder / "config.json", to_dict(config))


def reopen_folder(folder: Path, corpus: Corpus, device: torch.device, step: int) -> None:
    """Note where and with what the run goes on: it may be another machine, or another commit."""
    write_json(folder / "words.json", list(corpus.words))  # which may have been lost
    origin: dict[str, Any] = stored_origin(folder) or dict.fromkeys(ORIGIN)
    resumed = [*origin.get("resumed", []), {"step": step, **provenance(device)}]
    write_json(folder / "provenance.json", origin | {"resumed": resumed})


def load_start(run: Path, model: nn.Module, corpus: Corpus) -> None:
    """Fill `model` with the weights of the run that is to be finetuned, which must be over the same words."""
    for name in ("words.json", "model.safetensors"):
        if not (run / name).exists():
            raise FileNotFoundError(
                f"`finetune` must be the folder of a run that has a model, but `{run}` has no {name}. "
                "Give one in which at least an epoch was trained."
            )
    if stored_words(run) != list(corpus.words):
        raise ValueError(
            f"`finetune` must be a run over the vocabulary of the corpus, but that of `{run}` differs. "
            "Point data.root or data.corpus at the text of that run."
        )
    fill_model(model, stored_model(run)[0], f"`{run / 'model.safetensors'}`")


def _by_epoch(path: Path) -> dict[int, dict[str, Any]]:
    """The lines of a metrics file that are whole."""
    found = {}
    for record in read_jsonl(path) if path.exists() else ():
        if not lost_of_line(record):
            found[record["epoch"]] = record
    return found


def cut_metrics(path: Path, epochs: int) -> None:
    """Keep what was measured in the first `epochs`: what came after the state that is resumed comes again."""
    records = [record for epoch, record in _by_epoch(path).items() if epoch <= epochs]
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
        "packed": stored_packings(folder),
    }


def seconds_per_epoch(folder: Path) -> float | None:
    """Median of the training seconds, which an epoch cut in two by a stop does not move."""
    seconds = [record["train_seconds"] for record in _by_epoch(folder / "metrics.jsonl").values()]
    return statistics.median(seconds) if seconds else None


def load_run(
    folder: str | Path, device: str | torch.device = "cpu"
) -> tuple[LanguageModel, Config, list[str]]:
    """The best model of a run, its configuration and its words."""
    folder, device = Path(folder), find_device(device)
    if not (folder / "config.json").exists():
        raise FileNotFoundError(f"`{folder}` must be a run folder, but it has no config.json.")
    check_model_is_there(folder)
    config = run_config(folder)
    words = stored_words(folder)
    model = build_model(config, len(words))
    fill_model(model, stored_model(folder)[0], f"`{folder / 'model.safetensors'}`")
    return model.to(device).eval(), config, words
