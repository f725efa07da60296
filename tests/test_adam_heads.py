"""What the documentation says of Penn under Adam is what the runs were."""

import math
import re
import statistics

from tests.documented import ROOT, assert_told, page, table
from tests.head_runs import TEXTS, penn, records, score, slope_at, slopes, valid_of


RUNS, PAGE = "lm-penn-adam.jsonl", "lm-penn-adam.md"
# By recipe and rate of the function.
SOFTMAX, TEMPERATURE, FROZEN = ("penn_softmax", None), ("penn_temperature", 0.1), ("penn_plif_frozen", None)
PLIF, FAST = ("penn_plif", 2.0), ("penn_plif", 20.0)


def heads() -> dict[tuple, dict]:
    found = {}
    for run in records(RUNS):
        config = run["config"]
        found[config["name"], (config["model"]["head"]["function"] or {}).get("lr")] = run
    assert set(found) == {SOFTMAX, TEMPERATURE, FROZEN, PLIF, FAST}
    assert {run["config"]["epochs"] for run in found.values()} == {84}
    return found


def row_of(run: dict) -> str:
    """A run in the table of what the settings were chosen from."""
    config, base = run["config"], run["config"]["model"]
    optim, end = config["optim"], run["metrics"][-1]
    falls = optim["decay_epoch"] is not None
    dropouts = [base[f"{part}_dropout"] for part in ("input", "hidden", "output", "weight")]
    cells = [
        {"sgd": "SGD", "adam": "Adam"}[optim["rule"]] + (", PLIF" if config["name"] == "penn_plif" else ""),
        f"{optim['lr']:g}",
        f"{optim['weight_decay']:g}",
        str(config["data"]["batch_size"]),
        " ".join(f"{dropout:g}" for dropout in dropouts),
        f"falls after {optim['decay_epoch']}" if falls else f"average from {config['epochs'] * 2 // 3}",
        f"{math.exp(end['train_nll']):.1f}",
        *(f"{score(run, text):.2f}" for text in TEXTS),
    ]
    return f"| {' | '.join(cells)} |"


def test_the_table_of_trials_is_that_of_the_runs():
    rows = {}
    for file, epochs in (("annealed", 45), ("averaged", 48)):
        runs = records(f"penn-adam/{file}.jsonl")
        assert all(len(run["metrics"]) == epochs for run in runs) and len(runs) == 7
        rows[file] = sorted(row_of(run) for run in runs)
    assert table(PAGE, "trials of adam") == [*rows["annealed"], *rows["averaged"]]


def test_what_is_said_of_heads_under_adam():
    found = heads()
    softmax = found[SOFTMAX]
    gap = {which: [score(run, text) - score(softmax, text) for text in TEXTS] for which, run in found.items()}
    report = (ROOT / "results" / "lm-penn-adam.md").read_text()
    (ends,) = re.findall(r"learned temperature \S+ against softmax (-[0-9.]+) to (-[0-9]+\.[0-9]+)", report)
    factor = slopes(found[TEMPERATURE])["at_logits"]["mean"]
    logits = found[TEMPERATURE]["result"]["learned_function"]["logits"]["quantiles"]
    by_logit = slope_at(found[FAST])
    top = max(by_logit, key=by_logit.__getitem__)
    beyond = [gap[TEMPERATURE][n] - gap[FAST][n] for n in range(2)]
    # Per epoch: rate times decay times steps.
    sgd = penn()["penn_softmax", 0.4][141]
    shrinks = [
        100 * run["config"]["optim"]["lr"] * run["config"]["optim"]["weight_decay"]
        * run["metrics"][-1]["step"] / len(run["metrics"])
        for run in (sgd, softmax)
    ]  # fmt: skip
    valid = valid_of(softmax)
    lead = lambda epoch: valid[epoch] - valid_of(found[TEMPERATURE])[epoch]
    same = next(epoch for epoch, value in sorted(valid_of(sgd).items()) if value <= valid[84])
    told = (
        "ends {:.2f} and {:.2f} below softmax on valid and test".format(*(-x for x in gap[TEMPERATURE])),
        f"by text alone {ends[0]} to {ends[1]}",
        f"It learns a factor of {factor:.1f}, of logits from {logits['0']:.1f} to {logits['1']:.1f}. "
        f"Its lead was {lead(24):.2f} after epoch 24 and {lead(48):.2f} after 48",
        f"weights shrink by {shrinks[1]:.1f} % an epoch, where SGD's shrink by {shrinks[0]:.1f} %",
        "At ten times the recipe's rate PLIF ends {:.2f} and {:.2f} below softmax".format(
            *(-x for x in gap[FAST])
        ),
        "by {:.2f} and {:.2f} more than the temperature".format(*beyond),
        "At the recipe's rate it is {:.2f} and {:.2f} above softmax".format(*gap[PLIF]),
        f"slopes of 1 at both ends and up to {by_logit[top]:.1f} at a logit of {top:.1f}",
        "ends {:.2f} and {:.2f} above softmax".format(*gap[FROZEN]),
        f"{valid[79] - valid[84]:.2f} in the last five epochs",
        f"it has after 84 epochs the {valid[84]:.2f} that SGD has after {same}",
    )
    assert_told(told, page(PAGE))
    stopped = [len(run["metrics"]) for run in records("penn-adam/stopped.jsonl")]
    assert_told((f"are not finished, and have {min(stopped)} to {max(stopped)} epochs",), page(PAGE))
    first, second = (records(f"penn-adam/{file}.jsonl") for file in ("annealed", "averaged"))
    best = min(score(run, "valid") for run in first)
    base = next(run for run in second if row_of(run).startswith("| Adam | 0.002 | 0.01 | 40 | 0.4 0.3 0.4"))
    (other,) = [run for run in first if score(run, "valid") == best]
    batches = [run["config"]["data"]["batch_size"] for run in (base, other)]
    told = (
        f"{score(base, 'valid'):.2f} on valid after 48 epochs in batches of {batches[0]}, where {best:.2f} "
        f"was the best after 45 in batches of {batches[1]}"
    )
    assert_told((told,), page(PAGE))
    seconds = [statistics.median(line["seconds"] for line in run["metrics"]) for run in found.values()]
    assert_told((f"took {min(seconds):.1f} to {max(seconds):.1f} seconds an epoch each",), page(PAGE))


def test_what_is_said_of_the_decay():
    """A temperature gains about as much where hardly anything decays."""
    found = {}
    for run in records("penn-adam/decay.jsonl"):
        assert len(run["metrics"]) == 6 and run["config"]["data"]["limit_tokens"] == 400_000
        found[run["config"]["name"], run["config"]["optim"]["weight_decay"]] = score(run, "test")
    gains = [found["penn_softmax", decay] - found["penn_temperature", decay] for decay in (0.1, 0.003)]
    assert len(found) == 4
    assert_told(
        ("gains {:.2f} on test at a decay of 0.1 and still {:.2f} at 0.003".format(*gains),), page(PAGE)
    )
