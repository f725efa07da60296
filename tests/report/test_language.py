"""Language-model runs: what is compared with what, and what is said of it."""

import math
from statistics import mean, stdev
from types import SimpleNamespace

import pytest
from language_records import LEARNED, TEST, run, story
from scipy import stats

from uncork.lm.optim import Doubling
from uncork.report.language import compare, figures, reading, tables
from uncork.report.language.runs import Run, each_once
from uncork.report.language.sections import language_sections
from uncork.report.language.trials import TUNED, trials


def of(*records):
    return [Run.of(record) for record in records]


def only(*records):
    (trial,) = trials(of(*records))
    return trial


def arm(trial, role):
    (found,) = [arm for arm in trial.arms if arm.role == role]
    return found


def cells(table, first):
    (row,) = [row for row in table.rows if row[0][0] == first]
    return dict(zip(table.columns, (text for text, _ in row), strict=True))


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
    assert [len(trial.arms) for trial in found] == [1, 1, 2, 1, 1, 1]
    assert len({trial.title for trial in found}) == len({trial.anchor for trial in found}) == 6
    assert found[-1].title.startswith("WikiText-2")


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
        "PLIF from the identity (function.options.seed=4)": [3],
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
    assert "penn_softmax seed 4, 2 of 6 epochs, lowest valid perplexity 141.00" in text
    assert "penn_plif seed 2 of 2026-01-02" in text


def test_a_run_read_twice_counts_once_as_far_as_it_got():
    half, whole = run("penn_plif", 1, 58.0, done=3), run("penn_plif", 1, 58.0)
    for order in ((half, whole), (whole, half), (whole, whole, half)):
        (found,) = each_once(of(*order))
        assert found.result is not None
    assert len(each_once(of(whole, run("penn_plif", 2, 58.0)))) == 2


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
    assert "lowest mean valid perplexity: softmax of 2." in text and "settings of its own" not in text
    trial = only(*records, run("penn_softmax", 1, 57.0, less))
    best = f"softmax ({change.removeprefix('model.')}=0.35)"
    assert cells(tables.perplexity_table(trial), arm(trial, "plif").label)["test minus softmax"] == "+2.00"
    text = " ".join(reading.limits(trial))
    assert f"{best} of 3." in text and f"{arm(trial, 'plif').label} with {best}" in text


def test_differences_are_welch_tests():
    own, other = [58.0, 58.5, 57.7], [60.0, 60.9]
    records = [run("penn_plif", i, value) for i, value in enumerate(own)]
    records += [run("penn_softmax", i, value) for i, value in enumerate(other)]
    (found,) = compare.to_controls(only(*records))
    # Welch's own formulas, in double precision.
    parts = [stdev(values) ** 2 / len(values) for values in (own, other)]
    error = math.sqrt(sum(parts))
    freedom = sum(parts) ** 2 / (parts[0] ** 2 / 2 + parts[1] ** 2 / 1)
    t = (mean(own) - mean(other)) / error
    assert found.mean == pytest.approx(mean(own) - mean(other)) and found.valid == pytest.approx(found.mean)
    assert found.p == pytest.approx(2 * stats.t.sf(abs(t), freedom), rel=1e-12)
    half = stats.t.ppf(0.975, freedom) * error
    assert (found.low, found.high) == pytest.approx((found.mean - half, found.mean + half))


def test_one_seed_or_no_spread_gives_no_test():
    alone = only(run("penn_plif", 1, 58.0), run("penn_softmax", 1, 60.0))
    assert compare.to_controls(alone) == [] and compare.count(alone) == 0
    assert "no difference can be judged" in " ".join(reading.limits(alone))
    equal = [run(f"penn_{head}", seed, 60.0) for head in ("plif", "softmax") for seed in (1, 2)]
    assert compare.to_controls(only(*equal)) == []


def test_the_verdict_says_what_the_data_say():
    trial = only(*story())
    # Five heads against softmax, and two functions against the two other controls.
    assert compare.count(trial) == 5 + 2 * 2
    first, authors, others, note = reading.verdict(trial)
    assert first.startswith("PLIF from the identity: clearly lower than softmax (-2.00, ")
    assert first.count("clearly lower") == 3
    assert authors.count("not told apart") == 3 and "clearly" not in authors
    assert "MoS clearly lower than softmax" in others and "but not on valid" not in first
    assert "9 comparisons" in note and "0.05/9 = 0.0056" in note


def test_a_small_p_among_many_is_called_perhaps():
    records = story()
    for record in records:
        if record["config"]["name"] == "penn_plif":
            record["result"]["test_perplexity"] += 1.72  # 0.28 below softmax
    found = compare.to_softmax(only(*records))["PLIF from the identity"]
    assert 0.05 / 9 < found.p < 0.05
    assert "perhaps lower than softmax, not clearly" in reading.verdict(only(*records))[0]


def test_the_verdict_says_where_valid_disagrees():
    records = story()
    for record in records:
        if record["config"]["name"] == "penn_plif":
            record["result"]["valid_perplexity"] += 2.5
    first = reading.verdict(only(*records))[0]
    assert first.startswith("PLIF from the identity: clearly lower than softmax, but not on valid (-2.00, ")
    assert "; valid +0.50)" in first


def parts_story(shift):
    """Seeds agree that PLIF is 2 lower; its parts of the text are lower by `shift` times 1, 2, 3 and 4."""
    records = story()
    for record in records:
        softmax = [4.1, 4.0, 4.2, 4.1]
        learned = record["config"]["name"] == "penn_plif"
        lower = [shift * n for n in (1, 2, 3, 4)] if learned else [0.0] * 4
        noise = 0.001 * record["config"]["seed"]
        record["result"]["test_nll_parts"] = [a - b + noise for a, b in zip(softmax, lower, strict=True)]
    return only(*records)


def test_a_difference_is_clear_only_if_it_is_over_text_too():
    trial = parts_story(0.01)
    found = compare.to_softmax(trial)["PLIF from the identity"]
    gaps = [-0.01, -0.02, -0.03, -0.04]
    half = stats.t.ppf(0.975, 3) * stdev(gaps) / 2.0
    assert found.over_text is not None
    per_nat = 60.0  # softmax's perplexity
    expected = [per_nat * (mean(gaps) - half), per_nat * (mean(gaps) + half)]
    assert [found.over_text.low, found.over_text.high] == pytest.approx(expected)
    assert found.over_text.p == pytest.approx(stats.ttest_1samp(gaps, 0.0)[1])
    assert found.p < 0.05 / 9 < found.over_text.p < 0.05 and found.worst_p == found.over_text.p
    verdict = reading.verdict(trial)
    assert verdict[0].startswith("PLIF from the identity: perhaps lower than softmax, not clearly (-2.00, ")
    assert f"over text {expected[0]:+.2f} to {expected[1]:+.2f})" in verdict[0]
    assert "must leave no doubt" in verdict[-1]
    table = tables.control_table(trial, compare.count(trial))
    assert table is not None and "p over text" in table.columns
    first = dict(zip(table.columns, (text for text, _ in table.rows[0]), strict=True))
    assert first["p"] != first["p over text"] and first["p below 0.0056"] == "no"


def test_without_scores_of_parts_nothing_is_said_of_text():
    for records in (
        story(),
        [*story()[:-1], story()[-1] | {"result": story()[-1]["result"] | {"test_nll_parts": [4.0]}}],
    ):
        trial = only(*records)
        assert all(found.over_text is None for found in compare.to_softmax(trial).values())
        assert "over text" not in " ".join(reading.verdict(trial)).lower()
        table = tables.control_table(trial, 9)
        assert table is not None and "p over text" not in table.columns


def test_missing_controls_are_named():
    trial = only(*(record for record in story() if "plif_frozen" not in record["config"]["name"]))
    text = " ".join(reading.verdict(trial))
    assert "no finished run of PLIF, random and frozen" in text


def test_limits_speak_of_convergence_and_changed_settings():
    text = " ".join(reading.limits(only(*story())))
    assert "18 of 18 runs had their lowest valid perplexity in the last epoch" in text
    assert "these runs change epochs=6" in text and "3 seeds for each head" in text
    assert "Mixtures have the widths" in text


def test_the_table_stands_beside_the_published_one():
    table = tables.perplexity_table(only(*story()))
    softmax = cells(table, "softmax")
    assert softmax["test"] == "60.00 ± 0.10" and softmax["valid"] == "62.00 ± 0.10"
    assert softmax["LMS, valid/test"] == "60.83/58.37" and softmax["AAAI, valid/test"] == "59.55/57.08±0.09"
    plif = cells(table, "PLIF from the identity")
    assert plif["test minus softmax"] == "-2.00" and plif["LMS, valid/test"] == "–"
    marked = {row[0][0]: [text for text, best in row if best] for row in table.rows}
    assert marked["MoS"] == ["58.00 ± 0.10", "56.00 ± 0.10"] and not marked["softmax"]


@pytest.mark.parametrize(
    "change", ["model.head.function.lr=0.5", "data.corpus=other", "data.limit_tokens=9000"]
)
def test_a_changed_head_or_text_has_no_published_number(change):
    trial = only(run("penn_plif_authors", 1, 59.0, (change,)))
    assert "LMS, valid/test" not in tables.perplexity_table(trial).columns
    assert reading.sources(trial) is None


def test_costs_fall_back_on_the_metrics_and_compare_one_hardware_only():
    records = [
        run("penn_softmax", 1, 60.0),  # without the key: the median of the epochs, not their mean
        run("penn_plif", 1, 59.0, seconds_per_epoch=15.0, peak_memory_bytes=3 * 2**20),
        run("penn_mos", 1, 56.0, seconds_per_epoch=40.0, peak_memory_bytes=None),
    ]
    records[2]["provenance"]["hardware"] = "another machine"
    table = tables.cost_table(only(*records))
    assert cells(table, "softmax")["seconds per epoch"] == "10"
    plif, mos = cells(table, "PLIF from the identity"), cells(table, "MoS")
    assert plif["against softmax"] == "1.50x" and plif["peak memory, MiB"] == "3"
    assert mos["seconds per epoch"] == "40" and mos["against softmax"] == mos["peak memory, MiB"] == "–"


def test_costs_are_compared_with_runs_of_the_same_time():
    """Two sweeps, the second with more runs side by side; each head is in one of them only."""
    first, second = "2026-01-01T00:00:00+00:00", "2026-01-01T00:05:00+00:00"
    records = []
    for name, seconds, started in (
        ("softmax", 10.0, first), ("plif", 11.0, first),
        ("softmax", 20.0, second), ("temperature", 21.0, second),
    ):  # fmt: skip
        records.append(run(f"penn_{name}", len(records), 60.0, seconds_per_epoch=seconds))
        records[-1]["provenance"]["started"] = started
    table = tables.cost_table(only(*records))
    assert cells(table, "PLIF from the identity")["against softmax"] == "1.10x"
    assert cells(table, "learned temperature")["against softmax"] == "1.05x"
    assert (
        cells(table, "softmax")["seconds per epoch"] == "15"
        and cells(table, "softmax")["against softmax"] == "1.00x"
    )
    # With none of its time it is compared with all.
    records[1]["provenance"]["started"] = "2026-01-02T00:00:00+00:00"
    assert cells(tables.cost_table(only(*records)), "PLIF from the identity")["against softmax"] == "0.73x"


def test_slopes_stand_beside_the_papers():
    table = tables.slope_table(only(*story()))
    assert table is not None
    rows = [[text for text, _ in row] for row in table.rows]
    assert rows[0] == ["PLIF from the identity", "over the table", "3", "1.25", "0.4", "0.5", "1.75", "0.31"]
    assert rows[1][:4] == ["PLIF from the identity", "at the logits", "3", "1.12"]
    assert rows[-1] == [
        "PLIF in table 2 of the paper",
        "as printed",
        "–",
        "1.10",
        "0.62",
        "0.02",
        "5.16",
        "–",
    ]
    assert tables.slope_table(only(run("penn_plif", 1, 58.0))) is None


def test_every_run_is_listed_with_its_command():
    table = tables.run_table(only(*story()))
    assert len(table.rows) == 3 * len(TEST)
    row = dict(zip(table.columns, (text for text, _ in table.rows[0]), strict=True))
    assert row["command"] == "uncork train penn_softmax seed=1 epochs=6"
    assert (row["best epoch"], row["averaged from"], row["seconds"]) == ("6 of 6", "4", "66")
    foreign = run("penn_softmax", 1, 60.0) | {"overrides": None}
    foreign["config"]["name"] = "mine"
    assert "not a recipe of this package" in tables.run_table(only(foreign)).rows[0][-1][0]


def test_curves_are_means_over_seeds_where_all_have_the_epoch():
    trial = only(run("penn_softmax", 1, 60.0), run("penn_softmax", 2, 62.0))
    epochs, means, deviations = figures.curve(arm(trial, "softmax"))
    assert epochs == [1, 2, 3, 4, 5, 6]
    assert means[-1] == pytest.approx(63.0) and deviations[-1] == pytest.approx(math.sqrt(2.0))


def test_averages_that_start_anew_are_told_and_drawn():
    changes = ("optim.average=doubling", "optim.average_epoch=3")
    record = run("penn_softmax", 1, 60.0, changes, epochs=14)
    doubling = Run.of(record)
    assert doubling.averaging_starts == [4, 7, 13] and doubling.averaged_from == 13
    rule = Doubling(3)  # the trainer's, which a report does not import
    assert [
        done + 1 for done in range(3, 14) if done == 3 or rule.restarts(done)
    ] == doubling.averaging_starts
    record["metrics"][10]["valid_nll"] = 1.0
    assert Run.of(record).averaged_from == 7
    assert Run.of(run("penn_softmax", 1, 60.0, ("optim.average=epoch",), epochs=14)).averaging_starts == [4]
    assert Run.of(run("penn_softmax", 1, 60.0, done=3)).averaging_starts == []
    assert cells(tables.run_table(only(record)), "softmax")["averaged from"] == "7"
    trial = only(record, run("penn_plif", 1, 60.0, changes, epochs=14))
    drawn: list[float] = []
    figures._averaging_marks(
        SimpleNamespace(axvline=lambda x, **_: drawn.append(x)), trial, figures.styles(trial)
    )
    assert drawn == [3.5, 6.5, 12.5]


def test_products_in_low_precision_are_of_the_budget():
    """No name of an arm tells of them, and older runs, which do not know of them, had float32."""
    low = run("penn_softmax", 1, 60.0, ("model.head.products=bfloat16",))
    new, old = run("penn_softmax", 1, 60.0), run("penn_softmax", 2, 60.0)
    del old["config"]["model"]["head"]["products"]
    first, second = trials(of(low, new, old))
    titles = {trial.title.endswith("products too in bfloat16"): trial for trial in (first, second)}
    assert [arm.label for arm in titles[True].arms] == ["softmax"]
    assert sum(len(arm.runs) for arm in titles[False].arms) == 2


def test_one_seed_shows_its_difference_and_no_test():
    trial = only(run("penn_softmax", 1, 60.0), run("penn_plif", 1, 58.5))
    table = tables.perplexity_table(trial)
    plif, softmax = cells(table, "PLIF from the identity"), cells(table, "softmax")
    assert plif["test minus softmax"] == "-1.50" and plif["p"] == plif["95 % interval"] == tables.NONE
    assert softmax["test minus softmax"] == tables.NONE and softmax["training"] == f"{math.exp(4.0):.1f}"


def test_one_setting_of_each_head_needs_no_word():
    text = " ".join(reading.limits(only(run("penn_softmax", 1, 60.0), run("penn_plif", 1, 58.5))))
    assert "several settings" not in text and "settings of its own" not in text


def test_arms_of_one_role_are_drawn_differently():
    trial = only(*(run("penn_plif", 1, 58.0, (f"model.head.function.lr={lr}",)) for lr in (1, 3, 4)))
    assert len(set(figures.styles(trial).values())) == 3


def test_pictures_say_in_words_what_they_show():
    trial = only(*story())
    curves, gaps = figures.curve_figure(trial), figures.gap_figure(trial)
    assert "softmax 62.00 (epoch 6)" in curves.alt and "MoS 58.00 (epoch 6)" in curves.alt
    assert "PLIF from the identity -2.00" in gaps.alt
    slope = figures.function_figure(trial, "slope")
    assert "PLIF from the identity: slopes 0.50 to 1.50 for logits from -2.0 to 2.0" in slope.alt


def test_a_function_without_a_table_or_a_known_start_is_shown_as_far_as_it_is_known():
    learned = LEARNED | {"moved": None, "slopes": LEARNED["slopes"] | {"over_knots": None}}
    table = tables.slope_table(only(run("penn_plif", 1, 58.0, learned_function=learned)))
    assert table is not None
    texts = [[text for text, _ in row] for row in table.rows]
    assert [row[1] for row in texts] == ["at the logits", "as printed"]
    assert [row[-1] for row in texts] == [tables.NONE] * 2


def test_sections_come_only_where_there_is_something_to_show():
    titles = [section.title.split(":")[0] for section in language_sections(of(*story()))]
    assert titles[1:] == ["Learned functions", "Runs"] and len(titles) == 3
    (alone,) = language_sections(of(run("penn_softmax", 1, 60.0, done=1)))
    assert "Not finished" in alone.paragraphs[0] and not alone.tables
    assert language_sections([]) == []


def test_no_path_of_a_machine_reaches_the_page():
    (section, *_) = language_sections(of(run("penn_softmax", 1, 60.0, ("data.corpus=/srv/me/texts",))))
    assert section.title.startswith("texts, 6 epochs") and "/srv" not in section.anchor
