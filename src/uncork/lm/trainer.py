"""The training loop, read from top to bottom: set up, resume, epochs, final evaluation.

A run folder holds `config.json`, `words.json`, `metrics.jsonl` (a line per epoch),
`model.safetensors` (the best on valid), `state/` (to resume from) and, at the end, `result.json`.
Shapes: T time, B streams.
"""

import errno
import math
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from uncork.lm.awd_lstm import LanguageModel
from uncork.lm.build import build_corpus, build_model, build_optimizer
from uncork.lm.checkpoint import BestModel, load_model, load_state, save_state
from uncork.lm.config import Config, DataConfig
from uncork.lm.corpus import Corpus, batchify
from uncork.lm.evaluate import evaluate, nll_by_part, reading_length
from uncork.lm.interrupt import Interrupted, StopRequest
from uncork.lm.learned import learned_function
from uncork.lm.lock import folder_lock
from uncork.lm.progress import Progress
from uncork.lm.run_folder import (
    check_folder,
    check_measured,
    cut_metrics,
    load_start,
    make_result,
    open_folder,
    reopen_folder,
)  # fmt: skip
from uncork.lm.snapshot import Position, restore, snapshot
from uncork.lm.step import Carried, GraphedStep, TrainingStep
from uncork.lm.tensorboard import Events
from uncork.lm.way import Way
from uncork.lm.world import World
from uncork.results import append_jsonl, read_json, write_json


# Processes agree on stopping this often: asking at every step would make each wait for the slowest.
STOP_CHECK_STEPS = 10


def train(config: Config, folder: str | Path, *, resume: bool = False) -> dict[str, Any]:
    """Run `config` in `folder` and return what `result.json` then holds.

    With `resume`, a run that was stopped or killed continues as if it had not been; a finished
    one returns its result. Under `torchrun` every process calls this with the same arguments.
    """
    _check_seed(config.seed)
    world = World.join(config.device)
    progress = Progress(config.name, enabled=world.is_first)
    precision = torch.get_float32_matmul_precision()
    try:
        if config.precision != "float32":
            torch.set_float32_matmul_precision("high")
        with StopRequest() as stop, folder_lock(folder, world.is_first):
            return _train(config, Path(folder), resume, world, stop, progress)
    except OSError as error:
        if error.errno != errno.ENOSPC or "--resume" in str(error):
            raise
        raise OSError(
            errno.ENOSPC,
            f"The disk is full: `{folder}` could not be written to ({error}). The last saved state is "
            "untouched. Make room, then continue with --resume",
        ) from error
    finally:
        torch.set_float32_matmul_precision(precision)
        progress.close()
        world.leave()


def _train(
    config: Config, folder: Path, resume: bool, world: World, stop: StopRequest, progress: Progress
) -> dict[str, Any]:
    check_folder(config, folder, resume)
    way = Way.of(config, world.device, world.size)
    if resume and (folder / "result.json").exists():
        return read_json(folder / "result.json")
    world.wait()  # the first process must not write before all have looked
    loaded = load_state(folder / "state") if resume else None  # the first process has the lock by now
    if loaded is not None:
        check_measured(folder, loaded[1]["position"])
    elif resume:
        progress.say(f"nothing to resume in {folder}: starting")
    with world.first_goes_first():  # it downloads, the others find the files
        corpus = build_corpus(config.data, progress.download)
    train_TB, valid_TB, test_TB = _streams(config.data, corpus, world)
    valid_length = reading_length(valid_TB, config.data.bptt)

    torch.manual_seed(config.seed)
    model = build_model(config, corpus.num_words).to(world.device)
    if config.finetune is not None and loaded is None:  # a state replaces the weights anyway
        load_start(Path(config.finetune), model, corpus)
    optimizer = build_optimizer(config, model)
    forward = world.wrap(model)
    # Weights above are drawn alike everywhere; dropout masks from here on differ by process, the
    # lengths of windows do not.
    torch.manual_seed(mask_seed(config.seed, world.rank))
    lengths = torch.Generator().manual_seed(config.seed)

    at = Position()
    carried = Carried.fresh(model, train_TB.shape[1], world.device)
    if loaded is not None:
        at = restore(loaded, carried, model, optimizer, lengths, corpus, world)
        progress.say(f"resumed after step {at.step}")
    if world.is_first:
        if loaded is None:
            open_folder(config, folder, corpus)
        else:
            reopen_folder(folder, corpus, at.step)
        cut_metrics(folder / "metrics.jsonl", at.evaluations)
    events = Events(folder, enabled=config.tensorboard and world.is_first)

    best = BestModel(folder / "model.safetensors")
    if config.finetune is not None and loaded is None:  # no later model may be better than this start
        at.best_nll = world.agree(evaluate(model, valid_TB, valid_length).nll)
        if world.is_first:
            best.take(model, {"step": 0, "valid_nll": at.best_nll})

    def save() -> None:
        tensors, facts = snapshot(at, carried, model, optimizer, lengths, corpus, world)
        if world.is_first:
            best.write()  # before the state that counts on it
            save_state(folder / "state", at.step, tensors, facts)

    step = TrainingStep(config, model, forward, optimizer, train_TB, carried)
    step = GraphedStep(step) if way.graphs else step
    # A run stopped after its last step, in mid-epoch, still has that part of the epoch to evaluate.
    finished = at.start == 0 and (at.epoch >= config.epochs or at.step == config.max_steps)
    clock, clock_step, epoch_began = time.monotonic(), at.step, time.monotonic()
    while not finished:
        model.train()
        if config.optim.decay_epoch is not None:
            optimizer.set_pace(config.optim.pace(at.epoch, config.epochs))
        while at.start < train_TB.shape[0] - 1 and at.step != config.max_steps:
            length = min(draw_length(config.data, lengths), train_TB.shape[0] - 1 - at.start)
            step(length, at.epoch)
            at.start += length
            at.epoch_tokens += length
            at.step += 1
            if at.step % config.log_every == 0:
                mean_nll = _mean(world, carried.epoch_nll, at.epoch_tokens)
                _check_finite("training", mean_nll, at)
                now = time.monotonic()
                milliseconds = 1000.0 * (now - clock) / (at.step - clock_step)
                progress.step(
                    _share_done(config, at, train_TB), at.step, at.epoch + 1, mean_nll, milliseconds
                )
                clock, clock_step = now, at.step
            may_stop = world.size == 1 or at.step % STOP_CHECK_STEPS == 0
            if may_stop and world.any(bool(stop)):
                save()
                raise Interrupted(stop.signal or 0, at.step, folder)
            if config.save_every and at.step % config.save_every == 0:
                save()

        train_nll = _mean(world, carried.epoch_nll, at.epoch_tokens)
        train_seconds = time.monotonic() - epoch_began
        if at.evaluations == 0:
            # So that a folder with measurements but no state is known to have lost its state.
            _check_finite("training", train_nll, at)
            save()
        with optimizer.averaged():
            valid_nll = world.agree(evaluate(model, valid_TB, valid_length).nll)
            _check_finite("validation", valid_nll, at)
            if valid_nll < at.best_nll:
                at.best_nll = valid_nll
                if world.is_first:
                    best.take(model, {"step": at.step, "valid_nll": valid_nll})
        record = {
            "epoch": at.epoch + 1, "step": at.step, "averaging": optimizer.averaging,
            "train_nll": train_nll, "valid_nll": valid_nll,
            "valid_perplexity": math.exp(min(valid_nll, 700.0)),
            "train_seconds": train_seconds, "seconds": time.monotonic() - epoch_began,
        }  # fmt: skip
        fired = optimizer.observe(valid_nll)
        if world.is_first:
            append_jsonl(folder / "metrics.jsonl", record)
            events.write(record)
        progress.say(
            f"epoch {at.epoch + 1}: train ppl {math.exp(min(train_nll, 30.0)):.2f}, valid ppl "
            f"{record['valid_perplexity']:.2f}, {record['seconds']:.1f} s, "
            f"left {progress.left(_share_done(config, at, train_TB))}"
        )
        at.epoch, at.start, at.epoch_tokens = at.epoch + 1, 0, 0
        at.evaluations += 1
        carried.clear_()
        epoch_began = time.monotonic()
        finished = (
            at.epoch >= config.epochs
            or at.step == config.max_steps
            or (fired and config.finetune is not None)
        )
        if not finished and at.epoch % config.save_epochs == 0:
            save()

    if world.is_first:
        best.write()
    world.wait()
    load_model(folder / "model.safetensors", model)
    result = _result(config, model, valid_TB, test_TB, at, folder) | way._asdict()
    if world.is_first:
        write_json(folder / "result.json", result)
    progress.say(f"valid ppl {result['valid_perplexity']:.2f}, test ppl {result['test_perplexity']:.2f}")
    events.close()
    world.wait()
    return result


def _streams(config: DataConfig, corpus: Corpus, world: World) -> tuple[Tensor, Tensor, Tensor]:
    """The three texts in columns on the device; of the training text, the columns of this process."""
    train_TB = batchify(corpus.train, config.batch_size)
    train_TB = train_TB[:, world.share(config.batch_size)].contiguous().to(world.device)
    valid_TB = batchify(corpus.valid, config.valid_batch_size).to(world.device)
    test_TB = batchify(corpus.test, config.test_batch_size).to(world.device)
    return train_TB, valid_TB, test_TB


def _result(
    config: Config, model: LanguageModel, valid_TB: Tensor, test_TB: Tensor, at: Position, folder: Path
) -> dict[str, Any]:
    """The scores of the best model, which `model` holds by now, and what it learned."""
    valid_length, test_length = (reading_length(text_TB, config.data.bptt) for text_TB in (valid_TB, test_TB))
    valid, test = evaluate(model, valid_TB, valid_length), evaluate(model, test_TB, test_length)
    return make_result(config, model, at.step, at.epoch, valid, test, folder) | {
        "valid_nll_parts": nll_by_part(model, valid_TB, valid_length),
        "test_nll_parts": nll_by_part(model, test_TB, test_length),
        "learned_function": learned_function(config, model, valid_TB),
    }


def _check_seed(seed: int) -> None:
    if not -(2**63) <= seed < 2**64:
        raise ValueError(
            f"`seed` must have at most 64 bits, as torch's have; got {seed}. Give a smaller one."
        )


def mask_seed(seed: int, rank: int) -> int:
    """The seed of one process's dropout masks: never that of the weights, nor another rank's.

    torch's CPU generator reads only 32 bits of a seed, so they must differ in those. An odd number's
    multiples do, up to the 2^32th; this one is large, so that runs with neighbouring seeds share none.
    """
    return (seed + (rank + 1) * 0x9E3779B9) % 2**32


def draw_length(config: DataConfig, generator: torch.Generator) -> int:
    """A window's length: `bptt` or, one time in twenty, half of it, plus noise; at least 5."""
    if config.bptt_spread == 0.0:
        return config.bptt
    chance, noise = torch.rand((), generator=generator), torch.randn((), generator=generator)
    center = config.bptt if chance.item() < 0.95 else config.bptt / 2.0
    length = max(5, int(center + config.bptt_spread * noise.item()))
    return length if config.bptt_excess is None else min(length, config.bptt + config.bptt_excess)


def _mean(world: World, total: Tensor, tokens: int) -> float:
    return world.mean(total).item() / tokens


def _share_done(config: Config, at: Position, train_TB: Tensor) -> float:
    by_epochs = (at.epoch + at.start / train_TB.shape[0]) / config.epochs
    by_steps = at.step / config.max_steps if config.max_steps else 0.0
    return min(1.0, max(by_epochs, by_steps))


def _check_finite(what: str, nll: float, at: Position) -> None:
    if not math.isfinite(nll):
        raise ValueError(
            f"The {what} loss is {nll} at step {at.step}: the run has diverged. "
            "Lower optim.lr or optim.clip; the last saved state is untouched."
        )
