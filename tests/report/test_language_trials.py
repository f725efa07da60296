"""Language-model runs: which are compared with which."""

import pytest
from language_records import arm, cells, of, only, run, story

from uncork.recipes.bundle import each_once
from uncork.report.language import reading, tables
from uncork.report.language.trials import TUNED, trials


def test_heads_are_named_by_what_they_are():
    recipes = (
        "softmax",
        "temperature",
        "sigsoftmax",
        "plif",
        "plif_authors",
        "plif_frozen",
        "mos",
        "mos_plif",
    )
    for name in recipes:
        (found,) = of(run(f"embedded_{name}", 1, 50.0))
        assert found.role == name
    head = 'model.head={"kind": "monotonic", "function": {"name": "SoftCap", "options": {"cap": 15.0}}}'
    (found,) = of(run("penn_softmax", 1, 50.0, (head,)))
    assert (found.role, found.label) == ("other", "SoftCap")


def test_only_runs_of_one_corpus_and_budget_are_compared():
    found = trials(
        of(
            run("penn_softmax", 1, 60.0),
            run("penn_plif", 1, 59.0),
            run("penn_plif", 1, 58.0, epochs=8),
            run("penn_plif_tiny", 1, 90.0),
            run("penn_softmax", 1, 61.0, ("precision=float32",)),
            run("wikitext2_softmax", 1, 70.0),
            run("penn_softmax_reference", 1, 62.0),
        )
    )
    assert [len(trial.arms) for trial in found] == [2, 1, 1, 1, 1, 1]
    assert len({trial.title for trial in found}) == len({trial.anchor for trial in found}) == 6
    assert found[-1].title == "WikiText-2, 6 epochs"  # the rest only tells apart what is named alike


def test_settings_are_compared_on_the_seeds_they_share():
    """One tried with a single seed, which does well with every setting, is not the best for that."""
    often = [run("penn_temperature", seed, 60.0 + seed) for seed in (1, 2, 3)]
    once = run("penn_temperature", 1, 61.5, ("model.head.function.lr=0.01",))
    trial = only(*often, once, run("penn_plif", 1, 59.0), run("penn_softmax", 1, 63.0))
    (best,) = trial.best_by_size("temperature")
    assert len(best.runs) == 3
    control = trial.control(arm(trial, "plif"), "temperature")
    assert control is best
    better = run("penn_temperature", 1, 60.5, ("model.head.function.lr=0.01",))
    trial = only(*often, better, run("penn_plif", 1, 59.0), run("penn_softmax", 1, 63.0))
    (best,) = trial.best_by_size("temperature")
    assert best.changes == ("model.head.function.lr=0.01",)


@pytest.mark.parametrize(
    "average, unused",
    [
        ("non-monotone", "average_epoch=7"),
        ("never", "average_epoch=7"),
        ("never", "patience=9"),
        ("epoch", "patience=9"),
    ],
)
def test_settings_of_a_trigger_not_in_use_are_no_budget(average, unused):
    trigger = f"optim.average={average}"
    trial = only(
        run("penn_softmax", 1, 60.0, (trigger,)),
        run("penn_plif", 1, 59.0, (trigger, f"optim.{unused}")),
    )
    assert len(trial.arms) == 2


def test_another_setting_is_another_arm_and_says_so():
    trial = only(
        run("penn_plif", 1, 59.0),
        run("penn_plif", 2, 59.5),
        run("penn_plif", 2, 57.0, ("model.head.function.lr=0.5", "log_every=3")),
        run("penn_plif", 3, 57.5, ("model.head.function.options.seed=4",)),
    )
    labels = {arm.label: [run.seed for run in arm.runs] for arm in trial.arms}
    assert labels == {
        "PLIF from the identity": [1, 2],
        "PLIF from the identity (function.lr=0.5)": [2],
        "PLIF from the identity (seed=4)": [3],
    }


def test_arms_of_a_recipe_that_has_changed_are_told_apart():
    """A bundle says what was changed in the recipe of its day: nothing, in both of these."""
    before = run("penn_plif", 1, 59.0, ("model.head.function.lr=0.5",)) | {"overrides": []}
    trial = only(before, run("penn_plif", 2, 58.0))
    assert {arm.label for arm in trial.arms} == {
        "PLIF from the identity (function.lr=0.5)",
        "PLIF from the identity (function.lr=2.0)",
    }


def test_unfinished_and_repeated_runs_are_in_no_mean():
    again = run("penn_plif", 2, 58.0)
    again["provenance"]["started"] = "2026-01-09T00:00:00+00:00"
    trial = only(*story(), run("penn_softmax", 4, 99.0, done=2), again)
    assert arm(trial, "softmax").values("test_perplexity") == pytest.approx([59.9, 60.0, 60.1])
    assert [found.seed for found in trial.unfinished] == [4]
    assert len(arm(trial, "plif").runs) == 3
    assert [found.started for found in trial.repeated] == ["2026-01-02T00:00:00+00:00"]
    text = " ".join(reading.left_out(trial))
    assert "softmax seed 4, 2 of 6 epochs, lowest valid perplexity 141.00" in text
    assert "PLIF from the identity seed 2 of 2026-01-02" in text


def test_of_two_ways_a_run_went_on_the_exact_one_counts():
    exact, carried = run("penn_plif", 1, 58.0), run("penn_plif", 1, 57.0, packed=[{"step": 3}])
    for order in ((exact, carried), (carried, exact)):
        trial = only(*each_once(order))
        assert arm(trial, "plif").values("test_perplexity") == [58.0] and not trial.repeated
        (text,) = reading.left_out(trial)
        assert (
            "PLIF from the identity seed 1 of 2026-01-01T00:00:00+00:00 (carried in a file that loses digits"
            in text
        )
        assert "valid 59.00, test 57.00" in text and not reading.carried(trial)


def test_a_run_read_twice_counts_once_as_far_as_it_got():
    half, whole = run("penn_plif", 1, 58.0, done=3), run("penn_plif", 1, 58.0)
    for order in ((half, whole), (whole, half), (whole, whole, half)):
        (found,) = each_once(order)
        assert found["result"] is not None
    assert len(each_once([whole, run("penn_plif", 2, 58.0)])) == 2


def test_of_two_records_with_all_epochs_the_finished_one_counts():
    before, after = run("penn_plif", 1, 58.0, done=6), run("penn_plif", 1, 58.0)
    for order in ((before, after), (after, before)):
        (found,) = each_once(order)
        assert found["result"] is not None


def test_controls_are_of_one_size_where_there_is_one():
    small = ("model.hidden=100",)
    trial = only(
        run("penn_softmax", 1, 60.0),
        run("penn_softmax", 1, 63.0, small),
        run("penn_plif", 1, 62.0, small),
        run("penn_plif", 1, 59.0),
        run("penn_mos", 1, 56.0),
    )
    controls = {arm.label: trial.softmax_of(arm) for arm in trial.arms if arm.role != "softmax"}
    assert {label: control.label for label, control in controls.items() if control} == {
        "PLIF from the identity": "softmax",
        "PLIF from the identity (hidden=100)": "softmax (hidden=100)",
        "MoS": "softmax",
    }


def test_without_a_control_of_its_size_a_head_is_compared_with_the_plainest():
    trial = only(
        run("penn_softmax", 1, 60.0),
        run("penn_softmax", 1, 57.0, ("model.hidden=1500",)),
        run("penn_mos", 1, 56.0),
    )
    control = trial.softmax_of(arm(trial, "mos"))
    assert control is not None and control.label == "softmax"


@pytest.mark.parametrize("change", TUNED)
def test_a_control_stands_at_the_setting_that_did_best_on_valid(change):
    """A head with more dropout is compared with softmax as good as it gets, not with one made worse by it."""
    more, less = (f"{change}=0.7",), (f"{change}=0.35",)
    records = [
        run("penn_softmax", 1, 60.0),
        run("penn_softmax", 1, 61.0, more),
        run("penn_plif", 1, 59.0, more),
    ]
    trial = only(*records)
    row = cells(tables.perplexity_table(trial), arm(trial, "plif").label)
    assert row["test minus softmax"] == "-1.00"
    text = " ".join(reading.limits(trial))
    assert (
        "lowest on valid over the seeds they share: softmax of 2." in text
        and "settings of its own" not in text
    )
    trial = only(*records, run("penn_softmax", 1, 57.0, less))
    best = f"softmax ({change.removeprefix('model.')}=0.35)"
    assert cells(tables.perplexity_table(trial), arm(trial, "plif").label)["test minus softmax"] == "+2.00"
    text = " ".join(reading.limits(trial))
    assert f"{best} of 3." in text and f"{arm(trial, 'plif').label} with {best}" in text


def test_products_in_low_precision_are_of_the_budget():
    """No name of an arm tells of them, and older runs, which do not know of them, had float32."""
    low = run("penn_softmax", 1, 60.0, ("model.head.products=bfloat16",))
    new, old = run("penn_softmax", 1, 60.0), run("penn_softmax", 2, 60.0)
    del old["config"]["model"]["head"]["products"]
    first, second = trials(of(low, new, old))
    titles = {trial.title.endswith("products too in bfloat16"): trial for trial in (first, second)}
    assert [arm.label for arm in titles[True].arms] == ["softmax"]
    assert [len(arm.runs) for arm in titles[False].arms] == [2]


def test_falling_rates_are_of_the_budget():
    """Older runs, which do not know of them, are those whose rates stay."""
    falling = run("penn_softmax", 1, 60.0, ("optim.decay_epoch=0",))
    new, old = run("penn_softmax", 1, 60.0), run("penn_softmax", 2, 60.0)
    del old["config"]["optim"]["decay_epoch"]
    found = {"rates falling after epoch 0" in trial.details: trial for trial in trials(of(falling, new, old))}
    assert [[len(arm.runs) for arm in found[falls].arms] for falls in (True, False)] == [[1], [2]]
    assert found[True].title != found[False].title


def test_what_a_step_is_is_of_the_budget():
    """Older runs, which do not know of another, took plain steps."""
    adam = run("penn_softmax", 1, 60.0, ("optim.rule=adam", "optim.lr=0.002"))
    new, old = run("penn_softmax", 1, 60.0), run("penn_softmax", 2, 60.0)
    del old["config"]["optim"]["rule"], old["config"]["optim"]["beta2"]
    found = {"Adam without momentum" in trial.details: trial for trial in trials(of(adam, new, old))}
    assert [[len(arm.runs) for arm in found[divided].arms] for divided in (True, False)] == [[1], [2]]


def test_one_setting_of_each_head_needs_no_word():
    text = " ".join(reading.limits(only(run("penn_softmax", 1, 60.0), run("penn_plif", 1, 58.5))))
    assert "several settings" not in text and "settings of its own" not in text


def test_a_frozen_function_is_no_learned_one():
    frozen = "model.head.function.frozen=true"
    trial = only(
        run("penn_temperature", 1, 60.0),
        run("penn_temperature", 1, 59.0, (frozen,)),
        run("penn_mos_plif", 1, 56.0, (frozen,)),
        run("penn_plif", 1, 58.0),
        run("penn_plif_frozen", 1, 58.5),
    )
    roles = {found.label: found.role for found in trial.arms}
    assert roles["learned temperature"] == "temperature" and roles["PLIF, random and frozen"] == "plif_frozen"
    others = sorted(label for label, role in roles.items() if role == "other")
    assert [label.partition(" (")[0] for label in others] == ["MoS with PLIF, frozen", "Scale, frozen"]
    control = trial.control(arm(trial, "plif"), "temperature")
    assert control is not None and control.label == "learned temperature"


def test_finetuned_runs_of_several_seeds_are_one_arm():
    """Each goes on from a run of its own, and none is what was published without."""
    records = [
        run(f"penn_{head}", seed, 60.0 - seed, (f"finetune=runs/{head}-{seed}",))
        for head in ("softmax", "plif_authors")
        for seed in (1, 2, 3)
    ]
    trial = only(*records)
    assert [len(found.runs) for found in trial.arms] == [3, 3] and trial.title.endswith("finetuned")
    assert reading.sources(trial) is None
