import pytest
from records import BASE, STEP, grid, record

from uncork.report import reading
from uncork.report.summary import compare, comparisons, panels, spread, steep_share


def panel(*records):
    (found,) = panels(records)
    return found


def everyone(width=4, **values):
    return [record(head, width, **values) for head in BASE]


def test_spread_is_the_sample_standard_deviation():
    assert spread([1.0, 3.0]).std == pytest.approx(2**0.5)
    assert spread([1.0]).std is None


def test_panels_are_one_per_setting_the_largest_first():
    found = panels(grid())
    assert [(p.setting.vocabulary, p.setting.concentration) for p in found] == [
        (1000, 0.01), (1000, 0.1), (100, 0.01), (100, 0.1)
    ]  # fmt: skip
    assert found[0].widths == [2, 4, 8] and len(found[0].records["mos"][2]) == 2


def test_best_knows_which_way_is_better():
    found = panel(record("softmax", 2, kl=1.0, modes=10.0), record("plif", 2, kl=0.5, modes=5.0))
    assert found.best(2, "kl") == "plif" and found.best(2, "mode_matching") == "softmax"


def test_a_diverged_fit_counts_for_nothing():
    found = panel(record("softmax", 2, metrics=None, stopped="diverged"), record("plif", 2))
    assert found.spread("softmax", 2, "kl") is None and found.best(2, "kl") == "plif"
    assert "1 diverged" in reading.convergence_reading([record("plif", 2, stopped="diverged")])


def test_comparison_is_against_the_stronger_rival():
    found = compare(panel(*everyone()), "plif", 4)
    assert found is not None and found.ahead == {"kl": True, "mode_matching": True}
    assert found.gain == pytest.approx(1 - 0.6 / 0.9) and found.seeds == 1
    assert not any(found.clear.values())  # one seed shows no spread


def clear(*records):
    found = compare(panel(*records), "plif", 2)
    assert found is not None
    return found.clear["kl"]


def test_clear_needs_more_than_two_standard_deviations():
    near = [record("plif", 2, seed, kl=kl) for seed, kl in enumerate((0.80, 0.90))]
    rivals = [record(head, 2, seed, kl=1.0) for head in ("softmax", "mos") for seed in (0, 1)]
    assert clear(*near, *rivals)
    wide = [record("plif", 2, seed, kl=kl) for seed, kl in enumerate((0.70, 0.99))]
    assert not clear(*wide, *rivals)


def test_no_comparison_without_all_rivals():
    assert compare(panel(record("plif", 2), record("softmax", 2)), "plif", 2) is None
    assert reading.verdict([]) == []


def test_the_verdict_follows_the_numbers():
    good = " ".join(reading.verdict(comparisons(panels(grid()))))
    assert "in 12 of 12 combinations" in good and "“most cases” holds" in good
    reverse = [record(r["cell"]["head"], 2, kl=1 / r["metrics"]["kl"]) for r in everyone(2)]
    bad = " ".join(reading.verdict(comparisons(panels(reverse))))
    assert "in 0 of 1 combinations" in bad and "does not hold" in bad and "standard deviations" not in bad


def test_where_the_gain_is():
    low = [record("plif", w, kl=k) for w, k in ((2, 0.5), (8, 0.9))]
    rivals = [record(h, w, kl=1.0) for h in ("softmax", "mos") for w in (2, 8)]
    big = [
        record(r["cell"]["head"], r["cell"]["width"], vocabulary=900, kl=r["metrics"]["kl"] - 0.05)
        for r in low
    ] + [record(h, w, vocabulary=900, kl=1.0) for h in ("softmax", "mos") for w in (2, 8)]
    text = reading.verdict(comparisons(panels([*low, *rivals, *big])))[-1]
    assert "so do these results" in text and "52.5 %" in text and "12.5 %" in text
    flipped = [{**r, "cell": {**r["cell"], "width": 10 - r["cell"]["width"]}} for r in [*low, *rivals, *big]]
    assert "these results do not" in reading.verdict(comparisons(panels(flipped)))[-1]


def test_figure_reading_names_leaders_and_the_largest_gap():
    text = reading.figure_reading(panel(*everyone(2), *everyone(8)), "kl")
    assert "LMS, PLIF at D = 2, 8" in text and "D = 2: 0.6 nats for LMS, PLIF against 1 nats" in text


def test_a_figure_of_fits_that_all_diverged_says_so():
    lost = record("plif", 2, metrics=None, stopped="diverged", rank=None, function=None)
    assert reading.figure_reading(panel(lost), "kl") == "Every fit diverged: there is nothing to compare."


def test_steep_share_tells_lines_from_steps():
    assert steep_share({"f": [float(i) for i in range(101)]}) == pytest.approx(0.1)
    assert steep_share(STEP) == 1.0
    assert "close to a staircase" in reading.function_reading([("plif", 2, STEP)])
    line = {"f": [float(i) for i in range(101)]}
    assert "nearly a line" in reading.function_reading([("plif", 2, line)])


def test_certificate_and_temperature_readings():
    assert "1.0 %" in str(reading.certificate_reading([panel(*everyone())]))
    half = record("softmax", 2, kl=1.0)
    half["certified"] |= {"kl_optimum": 0.5}  # from 1 to 0.5 is a fall by half
    assert "by at most 50.0 % (average 50.0 %)" in str(reading.certificate_reading([panel(half)]))
    assert "0.0 %" in str(reading.temperature_reading([panel(*everyone())]))
    assert reading.certificate_reading([panel(record("plif", 2))]) is None
