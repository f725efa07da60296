"""What the documentation says of the embedded corpus is what the runs were."""

import json
import re
from statistics import mean, stdev

from tests.documented import ROOT, assert_told, page, table, welch
from uncork.lm.config_io import flat


PAGE = "lm-embedded.md"
SEEDS = [0, 1, 2, 3, 4]
FUNCTION = "model.head.function."
# Label, recipe, and what a run changes of the function.
HEADS = {
    "softmax": ("embedded_softmax", {}),
    "learned temperature": ("embedded_temperature", {}),
    "monotone network": ("embedded_monotone", {}),
    "PLIF, rate 2 (the recipe)": ("embedded_plif", {}),
    "rate 20": ("embedded_plif", {"lr": 20.0}),
    "rate 200": ("embedded_plif", {"lr": 200.0}),
    "rate 2,000": ("embedded_plif", {"lr": 2000.0}),
    "rate 20,000": ("embedded_plif", {"lr": 20_000.0}),
    "rate 200, random start": ("embedded_plif", {"lr": 200.0, "options.init": "random"}),
    "rate 200, weight decay as the model's": ("embedded_plif", {"lr": 200.0, "weight_decay": 1.2e-6}),
    "rate 200, pull 0.1": ("embedded_plif", {"lr": 200.0, "pull": 0.1}),
    "rate 200, pull 1": ("embedded_plif", {"lr": 200.0, "pull": 1.0}),
    "rate 200, smoothness 0.01": ("embedded_plif", {"lr": 200.0, "smoothness": 0.01}),
    "rate 200, 20 knots, from epoch 4 on 1,000": (
        "embedded_plif", {"lr": 200.0, "refine.0": 20, "refine.4": 1000}
    ),
    "rate 200, 20 knots": ("embedded_plif", {"lr": 200.0, "options.knots": 20}),
}  # fmt: skip


def runs() -> list[dict]:
    files = (ROOT / "results" / name for name in ("lm-embedded.jsonl", "embedded/ablation.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def changes(run: dict) -> dict:
    """What of the function a run of PLIF has that its recipe has not."""
    values = flat(run["config"])
    plain = {"lr": 2.0, "weight_decay": 0.0, "pull": 0.0, "smoothness": 0.0, "options.init": "identity",
             "options.knots": 1000, "refine.0": None, "refine.4": None}  # fmt: skip
    return {name: values.get(FUNCTION + name) for name in plain if values.get(FUNCTION + name) != plain[name]}


def of(label: str) -> list[dict]:
    recipe, changed = HEADS[label]
    found = [run for run in runs() if run["config"]["name"] == recipe]
    if recipe == "embedded_plif":
        found = [run for run in found if changes(run) == changed]
    assert sorted(run["config"]["seed"] for run in found) == SEEDS
    return found


def scores(label: str, text: str) -> list[float]:
    return [run["result"][f"{text}_perplexity"] for run in of(label)]


def moved(label: str) -> str:
    found = [(run["result"]["learned_function"] or {}).get("moved") for run in of(label)]
    values = [each["slope_over_knots"] for each in found if each and each["slope_over_knots"] is not None]
    return f"{mean(values):.2g}" if values and HEADS[label][0] == "embedded_plif" else "–"


def rows() -> list[str]:
    cell = lambda values: f"{mean(values):.2f} ± {stdev(values):.2f}"
    return [
        f"| {label} | {cell(scores(label, 'valid'))} | {cell(scores(label, 'test'))} | {moved(label)} |"
        for label in HEADS
    ]


def test_the_table_is_that_of_the_runs():
    assert table(PAGE, "embedded ablation") == rows()


def test_what_is_said_of_the_heads():
    """As the report's tests find it."""
    report = (ROOT / "results" / "lm-embedded.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([^|]+) against (softmax|MoS) \|(.*)\|$", report, re.MULTILINE)
    found = {(head, other): [cell.strip() for cell in cells.split("|")] for head, other, cells in rows}
    beside = {head: cells for (head, other), cells in found.items() if other == "softmax"}
    assert {head for head, cells in beside.items() if cells[-1] != "no"} == {"MoS"}
    pointwise = {head: cells for head, cells in beside.items() if not head.startswith("MoS")}
    on_test = lambda head: float(pointwise[head][1])
    low, high = min(pointwise, key=on_test), max(pointwise, key=on_test)
    assert (low, high) == ("monotone network", "PLIF, the authors' start") and len(pointwise) == 6
    (level,) = re.findall(r"15 comparisons are made .* only p below 0\.05/15 = ([0-9.]+) is", report)
    mixture, both = beside["MoS"], found["MoS with PLIF", "MoS"]
    with_plif = [run for run in runs() if run["config"]["name"] == "embedded_mos_plif"]
    told = (
        f"MoS is {mixture[1].lstrip('-')} below softmax on test ({mixture[2]})",
        f"from {-on_test(low):.2f} below, the monotone network (p = {pointwise[low][3]}), to "
        f"{on_test(high):.2f} above, PLIF from the authors' random start (p = {pointwise[high][3]}, where "
        f"fifteen comparisons ask for {level})",
        f"It is {both[1].lstrip('+')} above the mixture without (p = {both[3]}, not clear), with a standard "
        f"deviation of {stdev(run['result']['test_perplexity'] for run in with_plif):.2f} over seeds",
    )
    assert both[-1] == "no"
    assert_told(told, page(PAGE))


def test_what_is_said_of_the_ablation():
    gap = lambda label, other, text: mean(scores(label, text)) - mean(scores(other, text))
    p = lambda label, other="softmax": welch(scores(label, "test"), scores(other, "test"))[0]
    rates = ["PLIF, rate 2 (the recipe)", "rate 20", "rate 200", "rate 2,000", "rate 20,000"]
    assert min(rates, key=lambda label: mean(scores(label, "valid"))) == "rate 2,000"
    others = [label for label in HEADS if label.startswith("rate 200, ") and "random" not in label]
    largest = max(abs(gap(label, "rate 200", "valid")) for label in others)
    assert largest < 0.25 * stdev(scores("rate 200", "valid"))
    assert all(p(label) > 0.05 for label in HEADS if label not in ("softmax", "rate 20,000"))
    mixture = [run["result"]["test_perplexity"] for run in runs() if run["config"]["name"] == "embedded_mos"]
    told = (
        f"ends {gap('rate 20,000', 'softmax', 'test'):.2f} behind softmax on test "
        f"(p = {p('rate 20,000'):.4f})",
        f"change valid perplexity by at most {largest:.2f} at the rate of 200",
        f"The best rate is {-gap('rate 2,000', 'softmax', 'test'):.2f} lower on test "
        f"(p = {p('rate 2,000'):.2f})",
        f"the monotone network {-gap('monotone network', 'softmax', 'test'):.2f} lower "
        f"(p = {p('monotone network'):.2f})",
        f"A mixture is [{mean(scores('softmax', 'test')) - mean(mixture):.1f} lower]",
        f"{gap('rate 200, random start', 'rate 200', 'test'):.2f} higher on test "
        f"(p = {p('rate 200, random start', 'rate 200'):.2f})",
    )
    assert_told(told, page(PAGE))
