"""Language-model runs of several sizes: compared within one, and named by what tells them apart."""

import pytest
from language_records import cells, only, run, story

from uncork.report.language import reading, tables
from uncork.report.language.compare import count, to_controls
from uncork.report.language.explanations import answers, explanation_table


SMALL = ("model.hidden=128", "model.tied=false")


def at(width, head, seed, test, *changes, **more):
    return run(f"penn_{head}", seed, test, (*SMALL, f"model.last_hidden={width}", *changes), **more)


def narrow():
    """At 8 the function helps by 20, at 32 by 5; the frozen one was run at 8 alone."""
    tests = {
        (8, "softmax"): 200.0,
        (8, "plif"): 180.0,
        (8, "plif_frozen"): 201.0,
        (32, "softmax"): 150.0,
        (32, "plif"): 145.0,
    }
    return [
        at(width, head, seed, test + 0.1 * seed) for (width, head), test in tests.items() for seed in (1, 2)
    ]


def rows(table):
    return [[text for text, _ in row] for row in table.rows]


def test_explanations_are_asked_at_each_width():
    trial = only(*narrow())
    table = explanation_table(trial, count(trial))
    assert table is not None
    assert [(row[1], row[4]) for row in rows(table)] == [
        ("PLIF, random and frozen, is lower than softmax, at width 8", "+1.00"),
        ("PLIF from the identity is lower than the frozen one, at width 8", "-21.00"),
        ("PLIF from the identity is lower than softmax, at width 8", "-20.00"),
        ("PLIF from the identity is lower than softmax, at width 32", "-5.00"),
    ]


def test_no_head_is_compared_with_one_of_another_width():
    trial = only(*narrow())
    pairs = [(found.arm.size.width, found.control.size.width) for found in to_controls(trial)]
    assert sorted(pairs) == [(8, 8), (8, 8), (32, 32)]
    trial = only(at(8, "softmax", 1, 200.0), at(32, "plif", 1, 145.0))
    assert trial.softmax_of(trial.arms[1]) is None and answers(trial, "plif", "softmax", 1) == []
    table = tables.perplexity_table(trial)
    assert [row[-1] for row in rows(table)] == [tables.NONE] * 2
    said = " ".join(reading.verdict(only(*narrow())))
    assert (
        "PLIF from the identity at width 32 has no finished run of learned temperature or PLIF, ran" in said
    )
    assert "PLIF from the identity at width 8 has no finished run of learned temperature to be" in said


def test_two_widths_are_not_two_settings():
    assert "several settings" not in " ".join(reading.limits(only(*narrow())))
    more = at(8, "softmax", 1, 190.0, "model.output_dropout=0.1")
    said = " ".join(reading.limits(only(*narrow(), more)))
    assert "softmax (last_hidden=8, output_dropout=0.1) of 2." in said
    assert "Compared with softmax at settings of its own: PLIF from the identity (last_hidden=8) with" in said
    assert "(last_hidden=32) with" not in said


def test_names_leave_out_what_all_runs_change():
    trial = only(*narrow())
    assert [arm.label for arm in trial.arms] == [
        "softmax (last_hidden=32)",
        "softmax (last_hidden=8)",
        "PLIF from the identity (last_hidden=32)",
        "PLIF from the identity (last_hidden=8)",
        "PLIF, random and frozen (last_hidden=8)",
    ]
    said = reading.conditions(trial)
    assert "All change in their recipes, and are named without it: hidden=128, tied=false." in said
    assert not any("All change" in line for line in reading.conditions(only(*story())))
    # A run that has not ended is named in the same way; one by itself by all it changes.
    half = only(*narrow(), at(32, "plif", 3, 140.0, done=3))
    table = tables.unfinished_table(half)
    assert table is not None
    found = cells(table, "PLIF from the identity (last_hidden=32)")
    assert found["another head then"].startswith("softmax (last_hidden=32) ")
    (alone,) = only(at(8, "plif", 1, 180.0)).arms
    assert alone.label == "PLIF from the identity (hidden=128, last_hidden=8, tied=false)"


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        (("model.embedding=200",), "width 200"),
        (("model.hidden=500", "model.layers=2"), "hidden 500, layers 2"),
        (("model.tied=false",), "not tied"),
    ],
)
def test_a_size_is_named_by_what_differs(changes, name):
    records = [
        run(f"penn_{head}", 1, 60.0, change) for head in ("softmax", "plif") for change in (changes, ())
    ]
    shown = [row[1] for row in rows(explanation_table(only(*records), 1))]
    assert f"PLIF from the identity is lower than softmax, at {name}" in shown and len(shown) == 2


def test_a_mixture_has_the_widths_of_its_publication():
    """Of several softmaxes it stands beside one of its own size, else the plainest."""
    trial = only(*narrow(), run("penn_mos", 1, 56.0, SMALL))
    (found,) = answers(trial, "mos", "softmax", 1)
    assert found.control.role == "softmax"
    table = explanation_table(trial, 1)
    assert table is not None
    assert rows(table)[-1][1] == "MoS is lower than softmax, with widths or batch of its own"
