"""Language-model runs: how they are compared, and what is said of it."""

import math
from statistics import mean, stdev

import pytest
from language_records import cells, only, run, story
from scipy import stats

from uncork.report.language import compare, reading, tables
from uncork.report.language.compare import count
from uncork.report.language.explanations import QUESTIONS, answers, explanation_table


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
    first, authors, others, note, seeds = reading.verdict(trial)
    assert first.startswith("PLIF from the identity: clearly lower than softmax by seeds alone (-2.00, ")
    assert first.count("clearly lower") == 3
    assert authors.count("not told apart") == 3 and "clearly" not in authors
    assert "MoS clearly lower than softmax" in others and "but not on valid" not in first
    assert seeds.startswith("By seeds alone: ") and "by seeds alone" not in authors
    assert "9 comparisons" in note and "0.05/9 = 0.0056" in note


def test_a_small_p_among_many_is_called_perhaps():
    records = story()
    for record in records:
        if record["config"]["name"] == "penn_plif":
            record["result"]["test_perplexity"] += 1.72  # 0.28 below softmax
    found = compare.to_softmax(only(*records))["PLIF from the identity"]
    assert 0.05 / 9 < found.p < 0.05
    assert "perhaps lower than softmax by seeds alone, not clearly" in reading.verdict(only(*records))[0]


def test_the_verdict_says_where_valid_disagrees():
    records = story()
    for record in records:
        if record["config"]["name"] == "penn_plif":
            record["result"]["valid_perplexity"] += 2.5
    first = reading.verdict(only(*records))[0]
    told = "PLIF from the identity: clearly lower than softmax by seeds alone, but not on valid (-2.00, "
    assert first.startswith(told)
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
    trial = parts_story(0.012)
    found = compare.to_softmax(trial)["PLIF from the identity"]
    softmax = [0.0, -0.1, 0.1, 0.0]  # nats around their mean, each worth the head's own perplexity
    plif = [nats - 0.012 * n for nats, n in zip(softmax, (-1.5, -0.5, 0.5, 1.5), strict=True)]
    gaps = [58.0 * (1.0 + a) - 60.0 * (1.0 + b) for a, b in zip(plif, softmax, strict=True)]
    assert found.over_text is not None and mean(gaps) == pytest.approx(found.mean)
    half = stats.t.ppf(0.975, 3) * stdev(gaps) / 2.0
    expected = [-2.0 - half, -2.0 + half]
    assert [found.over_text.low, found.over_text.high] == pytest.approx(expected)
    assert found.over_text.p == pytest.approx(stats.ttest_1samp(gaps, 0.0)[1])
    assert found.p < 0.05 / 9 < found.over_text.p < 0.05 and found.worst_p == found.over_text.p
    verdict = reading.verdict(trial)
    assert verdict[0].startswith("PLIF from the identity: perhaps lower than softmax, not clearly (-2.00, ")
    assert f"over text {expected[0]:+.2f} to {expected[1]:+.2f})" in verdict[0]
    assert "must leave no doubt" in verdict[-1] and "seeds alone" not in verdict[0]
    table = tables.comparison_table(trial, compare.count(trial))
    assert table is not None and "p over text" in table.columns
    first = dict(zip(table.columns, (text for text, _ in table.rows[0]), strict=True))
    assert first["p"] != first["p over text"] and first["p below 0.0056"] == "no"


def test_one_seed_is_judged_by_text_alone():
    trial = only(
        run("penn_softmax", 1, 60.0, test_nll_parts=[4.1, 4.0, 4.2]),
        run("penn_plif", 1, 58.0, test_nll_parts=[4.0, 3.95, 4.05]),
        run("penn_temperature", 1, 60.0),  # without parts
    )
    ((plif, softmax, found),) = compare.over_text_alone(trial)
    assert (plif.role, softmax.role) == ("plif", "softmax")
    gaps = [58.0 * plif - 60.0 * softmax for plif, softmax in ((0.0, 0.0), (-0.05, -0.1), (0.05, 0.1))]
    half = stats.t.ppf(0.975, 2) * stdev(gaps) / math.sqrt(3)
    assert (found.low, found.high) == pytest.approx((-2.0 - half, -2.0 + half))
    text = " ".join(reading.limits(trial))
    assert f"PLIF from the identity against softmax {found.low:+.2f} to {found.high:+.2f}. These are" in text
    assert compare.over_text_alone(parts_story(0.01)) == []  # several seeds have a test of their own


def test_without_scores_of_parts_nothing_is_said_of_text():
    for records in (
        story(),
        [*story()[:-1], story()[-1] | {"result": story()[-1]["result"] | {"test_nll_parts": [4.0]}}],
    ):
        trial = only(*records)
        assert all(found.over_text is None for found in compare.to_softmax(trial).values())
        assert "over text" not in " ".join(reading.verdict(trial)).lower()
        table = tables.comparison_table(trial, 9)
        assert table is not None and "p over text" not in table.columns


def test_the_interval_and_p_over_text_are_of_one_difference():
    """Where seeds spread, the mean perplexity and the mean loss may disagree about the sign."""
    scores = {"softmax": (65.0, 65.2, 64.8), "plif": (55.0, 55.5, 90.0)}
    nats = {
        "softmax": [-0.002, 0.001, 0.0, 0.001, 0.002, -0.002],
        "plif": [0.001, 0.0, -0.002, 0.0, 0.001, 0.0],
    }
    records = [
        run(f"penn_{head}", seed, test, test_nll_parts=[math.log(test) + n for n in nats[head]])
        for head, tests in scores.items()
        for seed, test in enumerate(tests)
    ]
    found = compare.to_softmax(only(*records))["PLIF from the identity"].over_text
    assert found is not None and 0.0 < found.low < found.high
    assert found.p < 0.05


def test_a_control_of_one_seed_is_shown_and_not_tested():
    records = [r for r in story() if r["config"]["name"] != "penn_temperature" or r["config"]["seed"] == 1]
    text = " ".join(reading.verdict(only(*records)))
    assert (
        "Not tested, for the control has one seed: PLIF from the identity against learned temperature" in text
    )
    assert f"learned temperature {58.0 - 59.95:+.2f} (valid {58.0 - 59.95:+.2f})" in text
    assert "Not tested" not in " ".join(reading.verdict(only(*story())))


def test_a_function_of_one_seed_is_not_missing_a_control():
    alone = only(run("penn_plif", 1, 58.0), run("penn_softmax", 1, 60.0))
    assert compare.untested(alone) == []


def test_numbers_agree_with_their_nouns():
    """Two seeds of two heads: one comparison, of one width; and one epoch."""
    tests = {("plif", 1): 58.0, ("plif", 2): 58.2, ("softmax", 1): 60.0, ("softmax", 2): 60.3}
    trial = only(*(run(f"penn_{head}", seed, test, epochs=1) for (head, seed), test in tests.items()))
    text = " ".join([*reading.verdict(trial), *reading.limits(trial)])
    assert "1 comparison is made" in text and "several seeds are known to ±" in text
    assert "means little" not in text
    assert trial.title == "Penn Treebank, 1 epoch"


def test_missing_controls_are_named():
    trial = only(*(record for record in story() if "plif_frozen" not in record["config"]["name"]))
    text = " ".join(reading.verdict(trial))
    assert "no finished run of PLIF, random and frozen" in text


def test_limits_speak_of_convergence_and_changed_settings():
    trial = only(*story())
    text = " ".join([*reading.conditions(trial), *reading.limits(trial)])
    assert text.startswith(f"All runs: {trial.details}. 18 of 18 runs had their lowest")
    assert "these runs change epochs=6" in text and "3 seeds for each head" in text
    assert "Mixtures have the widths" in text


def test_one_seed_shows_its_difference_and_no_test():
    trial = only(run("penn_softmax", 1, 60.0), run("penn_plif", 1, 58.5))
    table = tables.perplexity_table(trial)
    plif, softmax = cells(table, "PLIF from the identity"), cells(table, "softmax")
    assert plif["test minus softmax"] == "-1.50" and tables.comparison_table(trial, 1) is None
    assert softmax["test minus softmax"] == tables.NONE and softmax["training"] == f"{math.exp(4.0):.1f}"


def test_each_explanation_is_asked_of_the_runs():
    """The story: learning helps when it starts at the identity, and nothing else but a mixture does."""
    trial = only(*story())
    table = explanation_table(trial, count(trial))
    assert table is not None
    rows = [[text for text, _ in row] for row in table.rows]
    assert [row[0] for row in rows] == [question[0] for question in QUESTIONS]
    assert [row[-1] for row in rows] == [
        "open: not told apart", "open: not told apart", "yes, by seeds alone", "yes, by seeds alone",
        "open: not told apart", "yes, by seeds alone",
    ]  # fmt: skip
    assert rows[2][2:5] == ["3 and 3", "-1.95", "-1.95"]
    assert rows[-1][1] == "MoS is lower than softmax, with widths or batch of its own"


def test_an_explanation_may_fail_or_be_open():
    def word(role, other, **tests):
        records = [run(f"penn_{head}", s, t + 0.1 * s) for head, t in tests.items() for s in (1, 2, 3)]
        found = answers(only(*records), role, other, 1)
        return found[0].word if found else None

    assert word("plif_frozen", "softmax", softmax=60.0, plif_frozen=61.0) == "no, higher, by seeds alone"
    assert word("plif_frozen", "softmax", softmax=60.0, plif=58.0) is None
    assert word("plif", "softmax", plif=60.0) is None
    (alone,) = answers(only(run("penn_softmax", 1, 60.0), run("penn_plif", 1, 58.0)), "plif", "softmax", 1)
    assert alone and alone.word == "open: too few seeds" and alone.test == -2.0
    only_test = [run("penn_softmax", s, 60.0 + 0.1 * s) for s in (1, 2, 3)]
    only_test += [run("penn_plif", s, 59.0 + 0.1 * s, valid_perplexity=63.0) for s in (1, 2, 3)]
    (found,) = answers(only(*only_test), "plif", "softmax", 1)
    assert found and found.word == "on test only, by seeds alone"
    assert explanation_table(only(run("penn_softmax", 1, 60.0)), 0) is None
