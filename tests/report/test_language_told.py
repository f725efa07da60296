"""Language-model runs: what is told of those that are not what their names say, and of how they were made."""

import re

import pytest
from language_records import arm, cells, of, only, run, story

from uncork.recipes.command import overrides
from uncork.report.language import reading, tables
from uncork.report.language.compare import over_text_alone, to_softmax
from uncork.report.language.explanations import explanation_table
from uncork.report.language.sections import language_sections
from uncork.report.language.trials import BUDGET, trials
from uncork.report.markdown import markdown
from uncork.results import perplexity


def of_another_version(seed, **kind):
    """A run whose configuration has a field that this version does not know, and no list of changes."""
    record = run("penn_softmax", seed, 60.0, ("model.hidden=200",), **kind)
    config = record["config"] | {"newfield": 1}
    return record | {"config": config, "overrides": overrides(config)}


def test_a_run_of_another_version_stands_beside_no_published_number():
    """What it changes in its recipe is not known: that is not to say that it changes nothing."""
    unknown = [of_another_version(1), of_another_version(2)]
    trial = only(*unknown)
    table, costs = tables.perplexity_table(trial), tables.cost_table(trial)
    assert "LMS, valid/test" not in table.columns and "LMS, parameters" not in costs.columns
    assert cells(table, "softmax (changes unknown)")["seeds"] == "2"
    assert reading.sources(trial) is None
    commands = {row[-1][0] for row in tables.run_table(trial).rows}
    assert commands == {"penn_softmax: configuration of another version"}
    beside = only(*unknown, run("penn_softmax", 1, 61.0), run("penn_mos", 1, 56.0))
    printed = {row[0][0]: row[-1][0] for row in tables.cost_table(beside).rows}
    assert printed["softmax (changes unknown)"] == tables.NONE != printed["softmax"]
    control = beside.softmax_of(arm(beside, "mos"))
    assert control is not None and control.label == "softmax"


@pytest.mark.parametrize(
    "begun", [of_another_version(1, done=3), run("penn_softmax", 1, 60.0, ("model.hidden=200",), done=3)]
)
def test_nor_does_one_that_has_not_ended(begun):
    table = tables.unfinished_table(only(begun, run("penn_softmax", 1, 61.0)))
    assert table is not None and [row[-1][0] for row in table.rows] == [tables.NONE]
    table = tables.unfinished_table(only(run("penn_softmax", 1, 60.0, done=3)))
    assert table is not None and table.rows[0][-1][0].startswith("LMS 60.83/58.37")


def finetuned(head, *changes):
    return run(f"embedded_{head}", 1, 50.0, ("finetune=runs/first", *changes))


def test_a_finetuned_run_is_told_with_the_averaging_it_did():
    """It averages from its first step, whatever trigger its recipe has, and ends by patience."""
    trial = only(finetuned("softmax", "optim.patience=2"))
    assert trial.details.startswith("averaging from the first step, until valid stops improving (patience 2)")


def test_a_trigger_splits_no_finetuned_runs_and_patience_does():
    trial = only(
        finetuned("softmax", "optim.average=never"),
        finetuned("plif", "optim.average=doubling", "optim.average_epoch=3"),
    )
    assert len(trial.arms) == 2
    found = trials(of(finetuned("softmax", "optim.patience=2"), finetuned("plif", "optim.patience=3")))
    assert len({trial.title for trial in found}) == 2


DECIDING = {
    "data.corpus": "wikitext-2", "data.limit_tokens": 5000, "epochs": 8, "max_steps": 70,
    "finetune": "runs/first", "precision": "bfloat16", "optim.rule": "adam", "optim.average": "never",
    "optim.average_epoch": 5, "optim.patience": 9, "optim.decay_epoch": 2, "model.head.products": "bfloat16",
}  # fmt: skip


@pytest.mark.parametrize("name", [name for name in BUDGET if name != "text"])
def test_all_of_a_budget_is_told_in_words(name):
    """Two trials that differ in it alone are not named alike."""
    trigger = "epoch" if name == "optim.average_epoch" else "non-monotone"
    shared = ("precision=float32", f"optim.average={trigger}")
    one, other = run("penn_softmax", 1, 60.0, shared), run("penn_softmax", 1, 60.0, shared)
    *places, last = name.split(".")
    holder = other["config"]
    for place in places:
        holder = holder[place]
    holder[last] = DECIDING[name]
    assert len({trial.title for trial in trials(of(one, other))}) == 2


def test_what_runs_change_in_the_budget_of_published_ones_is_told_of_the_budget_alone():
    """A rate of its own stands in the name of a head, which then has no published number."""
    head = run("penn_softmax", 1, 60.0, ("optim.patience=7", "optim.lr=25"))
    said = " ".join(reading.conditions(only(head, run("penn_plif_authors", 1, 59.0, ("optim.patience=7",)))))
    assert "these runs change epochs=6, optim.patience=7." in said


def test_a_run_in_no_mean_is_not_called_by_the_name_of_one_that_is():
    """Variants of a recipe share its name; their labels tell them apart."""
    variant = ("optim.lr=1e30",)
    again = run("penn_softmax", 1, 60.0, variant)
    again["provenance"]["started"] = "2026-01-09T00:00:00+00:00"
    both = run("penn_softmax", 1, 60.0), run("penn_softmax", 1, 60.0, variant, packed=[{"step": 2}])
    trial = only(*both, again, run("penn_softmax", 2, 60.0, variant, done=0))
    unfinished, repeated = reading.left_out(trial)
    assert unfinished.endswith(": softmax (optim.lr=1e+30) seed 2, 0 of 6 epochs.")
    assert ": softmax (optim.lr=1e+30) seed 1 of 2026-01-01" in repeated
    (carried,) = reading.carried(only(*both))
    assert carried.endswith(": softmax (optim.lr=1e+30) seed 1.")


def test_two_configurations_of_one_name_are_told_apart_where_one_has_not_ended():
    mine = [run("penn_softmax", 1, 60.0, (f"optim.lr={rate}",)) | {"overrides": None} for rate in (20, 30)]
    begun = run("penn_softmax", 2, 60.0, ("optim.lr=20",), done=2) | {"overrides": None}
    for record in (*mine, begun):
        record["config"]["name"] = "mine"
    for finished in (mine, mine[1:]):
        trial = only(*finished, begun)
        (said,) = reading.left_out(trial)
        assert "softmax (optim.lr=20.0) seed 2, 2 of 6 epochs" in said
        assert trial.arms[-1].label == "softmax (optim.lr=30.0)"


def diverged(record, first=1):
    """With losses beyond what exp can make of them, from an epoch on."""
    for line in record["metrics"]:
        if line["epoch"] >= first:
            nll = 9e4 - line["epoch"]
            line |= {"train_nll": nll, "valid_nll": nll, "valid_perplexity": perplexity(nll)}
    if record["result"] and first == 1:
        record["result"] |= {f"{split}_perplexity": perplexity(9e4) for split in ("valid", "test")}
    return record


def test_no_digits_are_told_of_a_run_that_diverged():
    variant = ("optim.lr=3000",)
    records = [
        diverged(run(f"penn_{head}", seed, 60.0, variant)) for seed in (1, 2) for head in ("softmax", "plif")
    ]
    begun = diverged(run("penn_plif_frozen", 1, 60.0, variant, done=2))
    for beside in (story(), []):
        sections = language_sections(of(*records, begun, *beside))
        figures = [draw() for section in sections for draw in section.figures]
        text = markdown(sections) + " ".join(figure.reading for figure in figures)
        assert "over 1e6" in text and "0" * 20 not in text and not re.search(r"\\d{9}|inf|nan", text)


def test_a_run_that_diverged_was_not_improving():
    """Its loss may fall to the last epoch and still tell nothing."""
    records = [diverged(run("penn_softmax", seed, 60.0, ("optim.lr=3000",))) for seed in (1, 2)]
    late = diverged(run("penn_temperature", 4, 60.0), first=3)
    said = reading.conditions(only(*story(), *records, late))
    names = ["learned temperature seed 4", *(f"softmax (optim.lr=3000.0) seed {seed}" for seed in (1, 2))]
    assert any(
        line.startswith("Diverged, to a perplexity over 1e6") and all(name in line for name in names)
        for line in said
    )
    assert any(line.startswith("18 of 18 other runs had their lowest valid perplexity") for line in said)


def test_a_run_that_diverged_is_tested_against_nothing():
    """Its differences are beyond numbers: a test of them would have no p, and none is not a small one."""
    records = [diverged(run("penn_plif", seed, 60.0, test_nll_parts=[1.0, seed])) for seed in (1, 2)]
    records += [run("penn_softmax", seed, 60.0 + seed, test_nll_parts=[2.0, seed]) for seed in (1, 2)]
    trial = only(*records)
    assert to_softmax(trial) == {} and tables.comparison_table(trial, 1) is None
    assert over_text_alone(trial) == []
    table = explanation_table(trial, 1)
    assert table is not None and [row[-1][0] for row in table.rows] == ["open: diverged"]


def test_with_falling_rates_the_last_epoch_does_not_tell_whether_a_run_had_converged():
    trial = only(run("penn_softmax", 1, 60.0, ("optim.decay_epoch=2",)))
    said = " ".join(reading.conditions(trial))
    assert (
        "1 of 1 runs had their lowest valid perplexity in the last epoch: their rates fell to the end" in said
    )
    assert "improving" not in said
