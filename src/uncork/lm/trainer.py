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

from uncork.lm.build import build_corpus, build_model, build_optimizer, check
from uncork.lm.checkpoint import BestModel, load_model, load_state, save_state, saved_states
from uncork.lm.config import Config, DataConfig, check_seed
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
    refuse_file,
    reopen_folder,
)  # fmt: skip
from uncork.lm.snapshot import Position, Snapshot, restore, snapshot
from uncork.lm.step import Carried, GraphedStep, TrainingStep
from uncork.lm.stored import stored_result
from uncork.lm.tensorboard import Events
from uncork.lm.way import Way
from uncork.lm.world import World
from uncork.results import append_jsonl, perplexity, perplexity_text, write_json


# Processes agree on stopping this often: asking at every step would make each wait for the slowest.
STOP_CHECK_STEPS = 10


def train(config: Config, folder: str | Path, *, resume: bool = False) -> dict[str, Any]:
    """Run `config` in `folder` and return what `result.json` then holds.

    With `resume`, a run that was stopped or killed continues as if it had not been; a finished
    one returns its result. Under `torchrun` every process calls this with the same arguments.
    """
    check_seed(config.seed)
    if not resume:  # so that what is refused leaves no folder behind
        check(config)
    world = World.join(config.device)
    progress = Progress(config.name, enabled=world.is_first)
    precision, threads = torch.get_float32_matmul_precision(), torch.get_num_threads()
    try:
        refuse_file(Path(folder))
        if config.precision != "float32":
            torch.set_float32_matmul_precision("high")
        with StopRequest() as stop, folder_lock(folder, world.is_first):
            return _train(config, Path(folder), resume, world, stop, progress)
    except OSError as error:
        if error.errno != errno.ENOSPC or "--resume" in str(error):
            raise
        raise OSError(
            errno.ENOSPC,
            f"The disk is full: `{folder}` could not be written to ({error}); {_kept(Path(folder))}. "
            "Make room, then continue with --resume",
        ) from error
    finally:
        torch.set_float32_matmul_precision(precision)
        torch.set_num_threads(threads)  # a state that was resumed may have had others
        progress.close()
        world.leave()


def _train(
    config: Config, folder: Path, resume: bool, world: World, stop: StopRequest, progress: Progress
) -> dict[str, Any]:
    check_folder(config, folder, resume)
    way = Way.of(config, world.device, world.size)
    if resume and (result := stored_result(folder)) is not None:
        if not (folder / "model.safetensors").exists():
            progress.say(f"{folder} has ended and lost its model.safetensors, which is not written anew")
        return result
    world.wait()  # the first process must not write before all have looked
    loaded = load_state(folder / "state") if resume else None  # the first process has the lock by now
    if loaded is not None:
        check_measured(folder, loaded[1]["position"])
    elif resume:
        progress.say(f"nothing to resume in {folder}: starting")
    with world.first_goes_first():  # it downloads, the others find the files
        corpus = build_corpus(config.data, progress.download)
    run = _Run(config, folder, corpus, way, world, progress, loaded)
    while not run.finished:
        run.train_epoch(stop)
        run.end_epoch()
    return run.end()


class _Run:
    """What a run trains and how far it is; made anew, or as `loaded` left it."""

    def __init__(
        self,
        config: Config,
        folder: Path,
        corpus: Corpus,
        way: Way,
        world: World,
        progress: Progress,
        loaded: Snapshot | None,
    ) -> None:
        self.config, self.folder, self.corpus = config, folder, corpus
        self.way, self.world, self.progress = way, world, progress
        self.train_TB, self.valid_TB, self.test_TB = _streams(config.data, corpus, world)
        self.valid_length = reading_length(self.valid_TB, config.data.bptt)

        torch.manual_seed(config.seed)
        self.model = build_model(config, corpus.num_words).to(world.device)
        if config.finetune is not None and loaded is None:  # a state replaces the weights anyway
            load_start(Path(config.finetune), self.model, corpus)
        self.optimizer = build_optimizer(config, self.model)
        forward = world.wrap(self.model)
        # Weights above are drawn alike everywhere; dropout masks from here on differ by process, the
        # lengths of windows do not.
        torch.manual_seed(mask_seed(config.seed, world.rank))
        self.lengths = torch.Generator().manual_seed(config.seed)

        self.at = Position()
        self.carried = Carried.fresh(self.model, self.train_TB.shape[1], world.device)
        if loaded is not None:
            self.at = restore(loaded, self.carried, self.model, self.optimizer, self.lengths, corpus, world)
            progress.say(f"resumed after step {self.at.step}")
        self._open_folder(new=loaded is None)
        self.events = Events(folder, enabled=config.tensorboard and world.is_first)
        self.best = BestModel(folder / "model.safetensors")
        if config.finetune is not None and loaded is None:  # no later model may be better than this start
            self._keep_if_best(world.agree(evaluate(self.model, self.valid_TB, self.valid_length).nll))

        step = TrainingStep(config, self.model, forward, self.optimizer, self.train_TB, self.carried)
        self.step = GraphedStep(step) if way.graphs else step
        # A run stopped after its last step, in mid-epoch, still has that part of the epoch to evaluate.
        self.finished = self.at.start == 0 and self._has_ended
        self.clock, self.clock_step = time.monotonic(), self.at.step
        self.epoch_began = time.monotonic()

    def train_epoch(self, stop: StopRequest) -> None:
        """What is left of an epoch; raises `Interrupted`, with all saved, if asked to stop."""
        config, at, world = self.config, self.at, self.world
        self.model.train()
        if config.optim.decay_epoch is not None:
            self.optimizer.set_pace(config.optim.pace(at.epoch, config.epochs))
        while at.start < self.train_TB.shape[0] - 1 and at.step != config.max_steps:
            length = min(draw_length(config.data, self.lengths), self.train_TB.shape[0] - 1 - at.start)
            self.step(length, at.epoch)
            at.start += length
            at.epoch_tokens += length
            at.step += 1
            if at.step % config.log_every == 0:
                self._show_step()
            may_stop = world.size == 1 or at.step % STOP_CHECK_STEPS == 0
            if may_stop and world.any(bool(stop)):
                self._save()
                raise Interrupted(stop.signal or 0, at.step, self.folder)
            if config.save_every and at.step % config.save_every == 0:
                self._save()

    def end_epoch(self) -> None:
        """Evaluate, tell, save, and stand at the start of the next."""
        at = self.at
        train_nll, train_seconds = self._train_nll(), time.monotonic() - self.epoch_began
        if at.evaluations == 0:
            # So that a folder with measurements but no state is known to have lost its state.
            self._check_finite("training", train_nll)
            self._save()
        with self.optimizer.averaged():
            valid_nll = self.world.agree(evaluate(self.model, self.valid_TB, self.valid_length).nll)
            self._check_finite("validation", valid_nll)
            self._keep_if_best(valid_nll)
        averaging = self.optimizer.averaging
        fired = self.optimizer.observe(valid_nll)
        self._record_epoch(
            {
                "epoch": at.epoch + 1, "step": at.step, "averaging": averaging,
                "train_nll": train_nll, "valid_nll": valid_nll,
                "valid_perplexity": perplexity(valid_nll),
                "train_seconds": train_seconds, "seconds": time.monotonic() - self.epoch_began,
            }
        )  # fmt: skip
        at.epoch, at.start, at.epoch_tokens = at.epoch + 1, 0, 0
        at.evaluations += 1
        self.carried.clear_()
        self.epoch_began = time.monotonic()
        self.finished = self._has_ended or (fired and self.config.finetune is not None)
        if not self.finished and at.epoch % self.config.save_epochs == 0:
            self._save()

    def end(self) -> dict[str, Any]:
        """The scores of the best model, written down."""
        if self.world.is_first:
            self.best.write()
        self.world.wait()
        load_model(self.folder / "model.safetensors", self.model)
        result = self._result() | self.way._asdict()
        if self.world.is_first:
            write_json(self.folder / "result.json", result)
        self.progress.say(
            f"valid ppl {perplexity_text(result['valid_perplexity'])}, "
            f"test ppl {perplexity_text(result['test_perplexity'])}"
        )
        self.events.close()
        self.world.wait()
        return result

    @property
    def _has_ended(self) -> bool:
        return self.at.epoch >= self.config.epochs or self.at.step == self.config.max_steps

    @property
    def _share_done(self) -> float:
        config, at = self.config, self.at
        by_epochs = (at.epoch + at.start / self.train_TB.shape[0]) / config.epochs
        by_steps = at.step / config.max_steps if config.max_steps else 0.0
        return min(1.0, max(by_epochs, by_steps))

    def _train_nll(self) -> float:
        """The mean over the epoch so far, and over processes."""
        return self.world.mean(self.carried.epoch_nll).item() / self.at.epoch_tokens

    def _open_folder(self, new: bool) -> None:
        if self.world.is_first:
            if new:
                open_folder(self.config, self.folder, self.corpus, self.world.device)
            else:
                reopen_folder(self.folder, self.corpus, self.world.device, self.at.step)
            cut_metrics(self.folder / "metrics.jsonl", self.at.evaluations)

    def _keep_if_best(self, valid_nll: float) -> None:
        if valid_nll < self.at.best_nll:
            self.at.best_nll = valid_nll
            if self.world.is_first:
                self.best.take(self.model, {"step": self.at.step, "valid_nll": valid_nll})

    def _save(self) -> None:
        tensors, facts = snapshot(
            self.at, self.carried, self.model, self.optimizer, self.lengths, self.corpus, self.world
        )
        if self.world.is_first:
            self.best.write()  # before the state that counts on it
            save_state(self.folder / "state", self.at.step, tensors, facts)

    def _check_finite(self, what: str, nll: float) -> None:
        if not math.isfinite(nll):
            raise ValueError(
                f"The {what} loss is {nll} at step {self.at.step}: the run has diverged. "
                f"Lower optim.lr or optim.clip; {_kept(self.folder)}."
            )

    def _show_step(self) -> None:
        at, mean_nll = self.at, self._train_nll()
        self._check_finite("training", mean_nll)
        now = time.monotonic()
        milliseconds = 1000.0 * (now - self.clock) / (at.step - self.clock_step)
        self.progress.step(self._share_done, at.step, at.epoch + 1, mean_nll, milliseconds)
        self.clock, self.clock_step = now, at.step

    def _record_epoch(self, record: dict[str, Any]) -> None:
        if self.world.is_first:
            append_jsonl(self.folder / "metrics.jsonl", record)
            self.events.write(record)
        self.progress.say(
            f"epoch {record['epoch']}: train ppl {perplexity_text(perplexity(record['train_nll']))}, "
            f"valid ppl {perplexity_text(record['valid_perplexity'])}, {record['seconds']:.1f} s, "
            f"left {self.progress.left(self._share_done)}"
        )

    def _result(self) -> dict[str, Any]:
        """The scores of the best model, which `model` holds by now, and what it learned."""
        config, model, at = self.config, self.model, self.at
        test_length = reading_length(self.test_TB, config.data.bptt)
        valid = evaluate(model, self.valid_TB, self.valid_length)
        test = evaluate(model, self.test_TB, test_length)
        self._check_finite("test", test.nll)
        return make_result(config, model, at.step, at.epoch, valid, test, self.folder) | {
            "valid_nll_parts": nll_by_part(model, self.valid_TB, self.valid_length),
            "test_nll_parts": nll_by_part(model, self.test_TB, test_length),
            "learned_function": learned_function(config, model, self.valid_TB),
            "corpus_fingerprint": self.corpus.fingerprint,
        }


def _streams(config: DataConfig, corpus: Corpus, world: World) -> tuple[Tensor, Tensor, Tensor]:
    """The three texts in columns on the device; of the training text, the columns of this process."""
    train_TB = batchify(corpus.train, config.batch_size, "data.batch_size")
    train_TB = train_TB[:, world.share(config.batch_size)].contiguous().to(world.device)
    valid_TB = batchify(corpus.valid, config.valid_batch_size, "data.valid_batch_size").to(world.device)
    test_TB = batchify(corpus.test, config.test_batch_size, "data.test_batch_size").to(world.device)
    return train_TB, valid_TB, test_TB


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


def _kept(folder: Path) -> str:
    """What there is to go on from."""
    saved = saved_states(folder / "state")
    return "the last saved state is untouched" if saved else "no state was saved before"
