"""A whole training step of the language models: data, masks, LSTM, head, clipping, update.

Each recipe is measured in several ways of running it, over the same drawn lengths of windows. The peer is
plain torch: cuDNN's LSTM, torch's loss, one call after another.
"""

import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from benchmarks import table
from benchmarks.device import Device, reason
from uncork.lm.build import build_model, build_optimizer
from uncork.lm.config import Config
from uncork.lm.config_io import override
from uncork.lm.step import Carried, GraphedStep, TrainingStep
from uncork.lm.trainer import draw_length
from uncork.lm.way import Way
from uncork.recipes import build


PLAIN = "plain torch"
# What is changed in a recipe.
WAYS: dict[str, tuple[str, ...]] = {
    PLAIN: ("model.head.backend=reference", "graphs=false", "precision=float32"),
    "calls": ("graphs=false", "precision=float32"),
    "calls, bfloat16": ("graphs=false", "recurrence=library", "precision=bfloat16"),
    "graphs": ("graphs=true", "precision=float32"),
    "graphs, bfloat16": ("graphs=true", "recurrence=library", "precision=bfloat16"),
    "graphs, bfloat16, persistent": ("graphs=true", "precision=bfloat16", "recurrence=persistent"),
}
RECIPES = ("penn_softmax", "penn_plif", "penn_mos")
WORDS = {"penn": 10_000, "wikitext-2": 33_278}
# Milliseconds a step may take, and the ratio to softmax's best way.
TARGETS = {
    "penn_softmax": "at most 5.5 ms",
    "penn_plif": "at most 1.15x softmax",
    "penn_mos": "at most 12 ms",
}
WINDOWS = 40  # of drawn lengths in one sample
WARM_UP = 3  # rounds of them: a graph is recorded the second time a length comes
TITLE = "# Training steps of the language models"
NOTES = (
    "A step is the whole of one: window, masks, LSTM, head, backward, clipping, update. Times are medians "
    f"over rounds of {WINDOWS} windows of drawn lengths on random words, on an otherwise idle device; "
    "float32 products may use TF32. The loss is that of the last round, and must agree between ways but for "
    "rounding and for how many rounds each had time for. The peak is of all that was allocated, weights too."
)


@dataclass(frozen=True)
class Measured:
    """One recipe run one way."""

    recipe: str
    way: str
    ms: float | None = None
    samples: int = 0
    peak_bytes: int | None = None
    nll: float | None = None
    failure: str = ""


def run(
    recipes: tuple[str, ...],
    ways: tuple[str, ...],
    device: str,
    tiny: bool,
    seconds: float,
    commit: str | None,
    out: Path,
) -> int:
    """Measure, print and write after each row. 1 if there is no such device, or no such way."""
    if unknown := set(ways) - WAYS.keys():
        print(f"no measurement: there is no way {min(unknown)!r}. There are: {'; '.join(WAYS)}")
        return 1
    if device == "cuda" and not torch.cuda.is_available():
        print("no measurement: torch sees no GPU here. For a dry run: --device cpu --tiny")
        return 1
    origin = table.origin_of(commit) | {"CUDA": torch.version.cuda or "none"}
    name = table.dated_name("dry-run-training" if tiny else "training", origin["hardware"])
    rows: list[Measured] = []
    for recipe in recipes:
        for way in ways:
            rows.append(_measure(recipe, way, Device(device), tiny, seconds))
            print(rows[-1], flush=True)
            table.write(out, name, _text(rows, origin), [asdict(row) | origin for row in rows])
    print("written:", out / f"{name}.csv", out / f"{name}.md")
    return 0


def _measure(recipe: str, way: str, device: Device, tiny: bool, seconds: float) -> Measured:
    precision = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("high")
        return _timed(recipe, way, device, tiny, seconds)
    except (RuntimeError, ValueError) as error:
        return Measured(recipe, way, failure=reason(error))
    finally:
        torch.set_float32_matmul_precision(precision)
        device.forget()


def _timed(recipe: str, way: str, device: Device, tiny: bool, seconds: float) -> Measured:
    config = override(build(f"{recipe}_tiny" if tiny else recipe), WAYS[way])
    if config.graphs and not device.cuda:
        raise ValueError("CUDA graphs need a GPU")
    trainee = Trainee(config, device)
    for _ in range(WARM_UP):
        trainee.round()
    if device.cuda:
        torch.cuda.reset_peak_memory_stats()
    took, until = [], time.monotonic() + seconds
    while not took or time.monotonic() < until:
        took.append(device.seconds(trainee.round) / WINDOWS)
    peak = torch.cuda.max_memory_allocated() if device.cuda else None
    return Measured(recipe, way, 1e3 * statistics.median(took), len(took), peak, trainee.nll)


class Trainee:
    """A model in training on a stream of random words, over and over."""

    def __init__(self, config: Config, device: Device) -> None:
        place = torch.device(device.name)
        generator = torch.Generator().manual_seed(config.seed)
        self.lengths = [draw_length(config.data, generator) for _ in range(WINDOWS)]
        words = WORDS[config.data.corpus]
        shape = (sum(self.lengths) + 1, config.data.batch_size)
        stream_TB = torch.randint(words, shape, generator=generator).to(place)
        torch.manual_seed(config.seed)
        model = build_model(config, words).to(place).train()
        self.carried = Carried.fresh(model, config.data.batch_size, place)
        optimizer = build_optimizer(config, model)
        step = TrainingStep(config, model, model, optimizer, stream_TB, self.carried)
        self.step = GraphedStep(step) if Way.of(config, place).graphs else step

    def round(self) -> None:
        self.carried.clear_()
        for length in self.lengths:
            self.step(length, epoch=0)

    @property
    def nll(self) -> float:
        """The mean loss of the last round: what must agree between ways, but for rounding."""
        return self.carried.epoch_nll.item() / sum(self.lengths)


def _text(rows: list[Measured], origin: dict[str, str]) -> str:
    sections = [_section(recipe, rows) for recipe in dict.fromkeys(row.recipe for row in rows)]
    return "\n\n".join([TITLE, table.facts(origin), *sections, NOTES]) + "\n"


def _section(recipe: str, rows: list[Measured]) -> str:
    mine = [row for row in rows if row.recipe == recipe]
    plain = next((row.ms for row in mine if row.way == PLAIN), None)
    softmax = min((r.ms for r in rows if r.recipe.endswith("_softmax") and r.ms), default=None)
    lines = []
    for row in mine:
        if row.ms is None:
            lines.append([row.way, row.failure, "", "", "", ""])
            continue
        lines.append(
            [
                row.way,
                f"{row.ms:.2f}",
                f"{row.ms / plain:.2f}x" if plain else "",
                f"{row.ms / softmax:.2f}x" if softmax else "",
                "" if row.peak_bytes is None else f"{row.peak_bytes / 2**20:.0f}",
                f"{row.nll:.4f}",
            ]
        )
    headings = ["", "ms a step", f"to {PLAIN}", "to softmax's best", "peak MiB", "loss"]
    target = f" (target: {TARGETS[recipe]})" if recipe in TARGETS else ""
    return f"## {recipe}{target}\n\n{table.markdown(headings, lines)}"
