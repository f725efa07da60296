"""What the documentation says of narrow heads on Penn is what the runs were."""

import json
import math
from collections import defaultdict
from statistics import mean, stdev

from tests.documented import ROOT, assert_told, page, table, welch
from tests.head_runs import score, slope_at


HEADS = {
    "softmax": ("penn_softmax", None),
    "learned temperature": ("penn_temperature", 0.1),
    "PLIF, rate 200": ("penn_plif", 200.0),
    "PLIF, rate 2,000": ("penn_plif", 2000.0),
    "PLIF, random and frozen": ("penn_plif_frozen", None),
}
PLIF, TEMPERATURE, SOFTMAX = "PLIF, rate 2,000", "learned temperature", "softmax"


def runs() -> dict[tuple[int, str], dict[int, dict]]:
    """By width and head, then by seed."""
    labels, found = {key: label for label, key in HEADS.items()}, defaultdict(dict)
    for line in (ROOT / "results" / "penn-narrow" / "heads.jsonl").read_text().splitlines():
        run = json.loads(line)
        model = run["config"]["model"]
        rate = (model["head"]["function"] or {}).get("lr")
        found[model["last_hidden"], labels[run["config"]["name"], rate]][run["config"]["seed"]] = run
    return found


def on_test(width: int, label: str) -> dict[int, float]:
    return {seed: score(run, "test") for seed, run in sorted(runs()[width, label].items())}


def test_the_table_is_that_of_the_runs():
    def cell(values):
        return f"{mean(values):.2f} ± {stdev(values):.2f}" if len(values) > 1 else f"{values[0]:.2f}"

    found, rows = runs(), []
    for width in (8, 32):
        for label in HEADS:
            some = list(found.get((width, label), {}).values())
            if some:
                training = mean(math.exp(run["metrics"][-1]["train_nll"]) for run in some)
                scores = [cell([score(run, text) for run in some]) for text in ("valid", "test")]
                rows.append(
                    f"| {width} | {label} | {len(some)} | {training:.1f} | {scores[0]} | {scores[1]} |"
                )
    assert table("lm-results.md", "narrow heads") == rows
    assert sum(len(some) for some in found.values()) == 14


def test_what_is_said_of_narrow_heads():
    plif, temperature, softmax = (on_test(8, label) for label in (PLIF, TEMPERATURE, SOFTMAX))
    gap = lambda one, other: mean(other.values()) - mean(one.values())
    p = lambda one, other: welch([*one.values()], [*other.values()])[0]
    seeds = [temperature[seed] - plif[seed] for seed in plif]
    assert min(seeds) > 0 and all(plif[seed] < softmax[seed] for seed in plif)
    wide = on_test(32, SOFTMAX)[141] - on_test(32, PLIF)[141]
    frozen, plain = (runs()[8, label][141] for label in ("PLIF, random and frozen", SOFTMAX))
    slopes = [run["result"]["learned_function"]["slopes"]["at_logits"] for run in runs()[8, PLIF].values()]
    steepest = [max(slope_at(run), key=slope_at(run).__getitem__) for run in runs()[8, PLIF].values()]
    flattest = [min(slope_at(run), key=slope_at(run).__getitem__) for run in runs()[8, PLIF].values()]
    assert all(0 < x < 1.5 for x in steepest) and all(-1.5 < x < 0 for x in flattest)
    assert 0.45 < min(each["min"] for each in slopes) < 0.55
    assert_told(
        (
            f"PLIF is {gap(plif, softmax):.2f} below softmax on test (p = {p(plif, softmax):.4f}), "
            f"{100 * gap(plif, softmax) / mean(softmax.values()):.0f} %",
            f"At 32 it is {wide:.2f} below, or {100 * wide / on_test(32, SOFTMAX)[141]:.0f} %",
            f"One learned factor is {gap(temperature, softmax):.2f} below softmax at width 8 "
            f"(p = {p(temperature, softmax):.3f}). PLIF is {gap(plif, temperature):.2f} below it, with each "
            f"seed, by {min(seeds):.2f} to {max(seeds):.2f}; p = {p(plif, temperature):.3f}",
            f"ends {score(frozen, 'test') - score(plain, 'test'):.2f} above softmax with the same seed on "
            f"test, and {score(plain, 'valid') - score(frozen, 'valid'):.2f} below on valid",
            f"with up to {max(each['max'] for each in slopes):.1f}",
            f"ends {gap(plif, softmax):.2f} lower on test than with softmax, and "
            f"{gap(plif, temperature):.2f} lower than with a learned temperature, with each of three seeds",
        ),
        page(),
    )
    told = f"PLIF is {gap(plif, softmax):.0f} below softmax and {gap(plif, temperature):.0f} below a learned"
    assert told in (ROOT / "README.md").read_text()
