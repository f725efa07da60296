"""What the documentation says of narrow heads on Penn is what the runs were."""

import json
import math
from collections import defaultdict
from statistics import mean, stdev

from tests.documented import ROOT, assert_told, page, table, welch
from tests.head_runs import MOS, SOFTMAX as WIDE, penn, records, score, slope_at


PAGE = "lm-narrow.md"
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


def longer(epochs: int = 12) -> dict[str, dict[int, dict]]:
    """Of twelve epochs, or of 24, by head and seed."""
    labels, found = {key: label for label, key in HEADS.items()}, defaultdict(dict)
    for run in records({12: "penn-narrow/longer.jsonl", 24: "penn-narrow/longest.jsonl"}[epochs]):
        rate = (run["config"]["model"]["head"]["function"] or {}).get("lr")
        found[labels[run["config"]["name"], rate]][run["config"]["seed"]] = run
        assert len(run["metrics"]) == epochs and run["config"]["model"]["last_hidden"] == 8
    return found


def on_test(width: int, label: str, text: str = "test") -> dict[int, float]:
    return {seed: score(run, text) for seed, run in sorted(runs()[width, label].items())}


def row_of(label: str, some: list[dict]) -> str:
    def cell(values):
        return f"{mean(values):.2f} ± {stdev(values):.2f}" if len(values) > 1 else f"{values[0]:.2f}"

    training = mean(math.exp(run["metrics"][-1]["train_nll"]) for run in some)
    valid, test = (cell([score(run, text) for run in some]) for text in ("valid", "test"))
    return f"| {label} | {len(some)} | {training:.1f} | {valid} | {test} |"


def test_the_tables_are_those_of_the_runs():
    found = runs()
    rows = [
        f"| {width} {row_of(label, list(found[width, label].values()))}"
        for width in (8, 32)
        for label in HEADS
        if (width, label) in found
    ]
    assert table(PAGE, "narrow heads") == rows
    assert sum(len(some) for some in found.values()) == 14
    rows = [
        f"| {epochs} {row_of(label, list(longer(epochs)[label].values()))}"
        for epochs in (12, 24)
        for label in HEADS
        if label in longer(epochs)
    ]
    assert table(PAGE, "narrow heads, longer") == rows, "\n".join(rows)


def test_what_is_said_of_twice_the_epochs():
    ends = {
        text: {label: {s: score(run, text) for s, run in runs.items()} for label, runs in longer().items()}
        for text in ("valid", "test")
    }
    gap = lambda one, other, text="test": mean(ends[text][other].values()) - mean(ends[text][one].values())
    p = lambda one, other: welch([*ends["test"][one].values()], [*ends["test"][other].values()])[0]
    by_seed = lambda one, other: [ends["test"][other][s] - ends["test"][one][s] for s in (141, 142, 143)]
    assert all(
        min(by_seed(*pair)) > 0 for pair in ((PLIF, SOFTMAX), (TEMPERATURE, SOFTMAX), (PLIF, TEMPERATURE))
    )
    assert p(PLIF, SOFTMAX) < 0.05 / 3 < p(TEMPERATURE, SOFTMAX)
    beyond = by_seed(PLIF, TEMPERATURE)
    share = 100 * gap(TEMPERATURE, SOFTMAX) / gap(PLIF, SOFTMAX)
    before = [mean(on_test(8, label).values()) for label in (SOFTMAX, TEMPERATURE, PLIF)]
    first = 100 * (before[0] - before[1]) / (before[0] - before[2])
    steepness = [run["result"]["learned_function"]["slopes"]["at_logits"] for run in longer()[PLIF].values()]
    told = (
        f"After twelve it is {gap(PLIF, SOFTMAX):.2f} below (p = {p(PLIF, SOFTMAX):.4f}), "
        f"{100 * gap(PLIF, SOFTMAX) / mean(ends['test'][SOFTMAX].values()):.0f} %, again with each",
        f"After twelve it is {gap(TEMPERATURE, SOFTMAX):.2f} and {gap(TEMPERATURE, SOFTMAX, 'valid'):.2f} "
        f"below (p = {p(TEMPERATURE, SOFTMAX):.3f} on test)",
        f"and {gap(PLIF, TEMPERATURE):.2f} after twelve, by {min(beyond):.2f} to {max(beyond):.2f} "
        f"(p = {p(PLIF, TEMPERATURE):.2f})",
        f"{first:.0f} % after six epochs, {share:.0f} % after twelve",
        f", {min(each['min'] for each in steepness):.1f} after twelve",
        f", {max(each['max'] for each in steepness):.1f} and ",
    )
    assert_told(told, page(PAGE))
    for run in (run for runs in longer().values() for run in runs.values()):
        last = [line["valid_perplexity"] for line in run["metrics"][-2:]]
        assert last[0] - last[1] > 1.0


def test_what_is_said_of_four_times_the_epochs():
    six = {label: by_seed for (width, label), by_seed in runs().items() if width == 8}
    of = lambda some, text: {
        label: {s: score(run, text) for s, run in some[label].items()}
        for label in (SOFTMAX, TEMPERATURE, PLIF)
    }
    ends, on_valid = ([of(some, text) for some in (six, longer(), longer(24))] for text in ("test", "valid"))
    valid = on_valid[2]
    gap = lambda at, one, other: mean(at[other].values()) - mean(at[one].values())
    p = lambda one, other: welch([*ends[2][one].values()], [*ends[2][other].values()])[0]
    by_seed = lambda one, other: [ends[2][other][s] - ends[2][one][s] for s in (141, 142, 143)]
    beyond = by_seed(PLIF, TEMPERATURE)
    assert min([*by_seed(PLIF, SOFTMAX), *by_seed(TEMPERATURE, SOFTMAX), *beyond]) > 0
    assert p(PLIF, SOFTMAX) < 0.05 / 3 < min(p(TEMPERATURE, SOFTMAX), p(PLIF, TEMPERATURE))
    share = 100 * gap(ends[2], TEMPERATURE, SOFTMAX) / gap(ends[2], PLIF, SOFTMAX)
    lead, shape = ([gap(at, PLIF, other) for at in ends] for other in (SOFTMAX, TEMPERATURE))
    steepness = [
        run["result"]["learned_function"]["slopes"]["at_logits"] for run in longer(24)[PLIF].values()
    ]
    told = (
        f"After 24 it is {lead[2]:.2f} below (p = {p(PLIF, SOFTMAX):.4f}), "
        f"{100 * lead[2] / mean(ends[2][SOFTMAX].values()):.0f} %",
        f"After 24 it is {gap(ends[2], TEMPERATURE, SOFTMAX):.2f} and "
        f"{gap(valid, TEMPERATURE, SOFTMAX):.2f} below (p = {p(TEMPERATURE, SOFTMAX):.3f} on test)",
        f"and {shape[2]:.2f} after 24, by {min(beyond):.2f} to {max(beyond):.2f} "
        f"(p = {p(PLIF, TEMPERATURE):.2f})",
        "lead over softmax on test falls from {:.2f} to {:.2f} and {:.2f}".format(*lead),
        "what it has beyond a temperature from {:.2f} to {:.2f} and {:.2f}".format(*shape),
        "On valid it is {:.2f}, {:.2f} and {:.2f} lower".format(
            *(gap(at, PLIF, TEMPERATURE) for at in on_valid)
        ),
        f"twelve and {share:.0f} % after 24",
        f"and {min(each['min'] for each in steepness):.1f} after 24",
        f"and {max(each['max'] for each in steepness):.1f}: it keeps the mass",
    )
    assert_told(told, page(PAGE))
    metrics = [run["metrics"] for some in longer(24).values() for run in some.values()]
    falls = [lines[-2]["valid_perplexity"] - lines[-1]["valid_perplexity"] for lines in metrics]
    assert f"and {min(falls):.1f} to {max(falls):.1f} after 24" in page(PAGE)


def test_what_is_said_of_narrow_heads():
    plif, temperature, softmax = (on_test(8, label) for label in (PLIF, TEMPERATURE, SOFTMAX))
    gap = lambda one, other: mean(other.values()) - mean(one.values())
    p = lambda one, other: welch([*one.values()], [*other.values()])[0]
    seeds = [temperature[seed] - plif[seed] for seed in plif]
    assert min(seeds) > 0 and all(plif[seed] < softmax[seed] for seed in plif)
    assert gap(temperature, softmax) > 0.5 * gap(plif, softmax) and p(temperature, softmax) > 0.05 / 3
    on_valid = [gap(*(on_test(8, label, "valid") for label in (one, SOFTMAX))) for one in (TEMPERATURE, PLIF)]
    full = score(penn()[WIDE][141], "test") - score(penn()[MOS][141], "test")
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
            f"a mixture is {full:.2f} ahead on test, with one seed",
            f"one learned factor is {gap(temperature, softmax):.2f} below softmax at width 8 "
            f"(p = {p(temperature, softmax):.3f}), and {on_valid[0]:.2f} below on valid, where PLIF is "
            f"{on_valid[1]:.2f} below",
            f"It is {gap(plif, temperature):.2f} lower on test after six epochs, with each seed, by "
            f"{min(seeds):.2f} to {max(seeds):.2f} (p = {p(plif, temperature):.3f})",
            f"ends {score(frozen, 'test') - score(plain, 'test'):.2f} above softmax with the same seed on "
            f"test, and {score(plain, 'valid') - score(frozen, 'valid'):.2f} below on valid",
            f"slopes fall to {min(each['min'] for each in slopes):.1f} after six epochs",
            f"with up to {max(each['max'] for each in slopes):.1f}, ",
        ),
        page(PAGE),
    )


def of_rates() -> dict[tuple[str, float, float | None], dict]:
    """Twelve epochs of seed 141, by recipe, rate of the model and rate of the function."""
    every = [*records("penn-narrow/rates.jsonl"), *records("penn-narrow/longer.jsonl")]
    found = {}
    for run in every:
        config = run["config"]
        function = config["model"]["head"]["function"] or {}
        if config["seed"] == 141:
            found[config["name"], config["optim"]["lr"], function.get("lr")] = run
    return found


def test_the_table_of_rates_is_that_of_the_runs():
    names = {recipe: label.split(",")[0] for label, (recipe, _) in HEADS.items()}
    found = of_rates()
    order = sorted(found, key=lambda key: ([*names].index(key[0]), key[1], key[2] or 0.0))
    best = {
        recipe: min((key for key in found if key[0] == recipe), key=lambda key: score(found[key], "valid"))
        for recipe in {key[0] for key in found}
    }
    rows = []
    for key in order:
        name, lr, own = key
        ends = [score(found[key], text) for text in ("valid", "test")]
        training = math.exp(found[key]["metrics"][-1]["train_nll"])
        cells = [names[name], f"{lr:g}", "–" if own is None else f"{own:,g}"]
        cells += [f"{training:.1f}", *(f"{end:.2f}" for end in ends)]
        rows.append("| " + " | ".join(f"**{cell}**" if key == best[name] else cell for cell in cells) + " |")
    assert table(PAGE, "rates of narrow heads") == rows, "\n".join(rows)
    # The runs with more seeds have what did best here.
    assert set(best.values()) == {(HEADS[label][0], 20.0, HEADS[label][1]) for label in longer()}
    at = lambda recipe, lr, own: score(found[recipe, lr, own], "test")
    beside = {
        recipe: [at(recipe, lr, own) - at(recipe, 20.0, own) for lr in (10.0, 40.0)]
        for recipe, _, own in best.values()
    }
    told = (
        "at half its rate it ends {:.2f} higher on test, at twice {:.2f}.".format(*beside["penn_softmax"]),
        "A temperature ends {:.2f} and {:.2f} higher, PLIF {:.2f} and {:.2f}.".format(
            *beside["penn_temperature"], *beside["penn_plif"]
        ),
    )
    assert_told(told, page(PAGE))
    assert max(*beside["penn_temperature"], *beside["penn_plif"]) < min(beside["penn_softmax"])
