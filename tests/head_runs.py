"""Runs on Penn and on WikiText-2 that the documentation speaks of, and how tests read them."""

import json
import math
from collections import defaultdict
from typing import Any

from tests.documented import ROOT
from uncork.recipes.published import NUMBERS, Published


# By recipe and dropout of the last layer's output.
Setting = tuple[str, float]
SOFTMAX, MORE_SOFTMAX = ("penn_softmax", 0.4), ("penn_softmax", 0.5)
PLIF, MORE_PLIF, FROZEN = ("penn_plif", 0.4), ("penn_plif", 0.5), ("penn_plif_frozen", 0.4)
TEMPERATURE, MORE_TEMPERATURE = ("penn_temperature", 0.4), ("penn_temperature", 0.5)
AUTHORS, SIGSOFTMAX = ("penn_plif_authors", 0.4), ("penn_sigsoftmax", 0.4)
MOS, MOS_PLIF = ("penn_mos", 0.4), ("penn_mos_plif", 0.4)
TEXTS = ("valid", "test")


PENN, LONGER, WIKITEXT = "lm-penn-160.jsonl", "lm-penn-320.jsonl", "lm-wikitext-2-80.jsonl"


def records(file: str) -> list[dict]:
    return [json.loads(line) for line in (ROOT / "results" / file).read_text().splitlines()]


def setting_of(run: dict) -> Setting:
    return run["config"]["name"], run["config"]["model"]["output_dropout"]


def runs_in(file: str) -> dict[Setting, dict[int, dict]]:
    """The runs of a bundle, by seed; of one that was begun twice the longer."""
    found: dict[Setting, dict[int, dict]] = defaultdict(dict)
    for run in sorted(records(file), key=lambda run: len(run["metrics"])):
        found[setting_of(run)][run["config"]["seed"]] = run
    return found


def penn() -> dict[Setting, dict[int, dict]]:
    return runs_in(PENN)


def first_seed() -> dict[Setting, dict]:
    return {setting: by_seed[141] for setting, by_seed in penn().items()}


def wikitext(*names: str) -> list[dict]:
    found = runs_in(WIKITEXT)
    return [found[f"wikitext2_{name}", 0.4][141] for name in names]


def longer() -> tuple[dict, dict, dict]:
    """Softmax, PLIF from the identity and PLIF random and frozen, of 320 epochs."""
    found = runs_in(LONGER)
    return found[SOFTMAX][141], found[MORE_PLIF][141], found[FROZEN][141]


def valid_of(run: dict) -> dict[int, float]:
    return {line["epoch"]: line["valid_perplexity"] for line in run["metrics"]}


def training(run: dict, epoch: int) -> float:
    return math.exp(run["metrics"][epoch - 1]["train_nll"])


def score(run: dict, text: str) -> float:
    return run["result"][f"{text}_perplexity"]


def slopes(run: dict) -> dict[str, Any]:
    return run["result"]["learned_function"]["slopes"]


def slope_at(run: dict) -> dict[float, float]:
    learned = run["result"]["learned_function"]
    return dict(zip(learned["x"], learned["slope"], strict=True))


def published(recipe: str, source: str) -> Published:
    (found,) = [numbers for numbers in NUMBERS[recipe] if numbers.source == source]
    return found


def number(printed: str) -> float:
    return float(printed.split("±")[0])


def where_averages_begin(run: dict, softmax: dict) -> str:
    own, other = ("from {:.2f} to {:.2f}".format(*map(valid_of(r).get, (30, 31))) for r in (run, softmax))
    return f"its valid perplexity falls {own}, and that of softmax {other}"
