"""Language-model runs: tables, pictures and sections."""

import math
from types import SimpleNamespace

import pytest
from language_records import LEARNED, TEST, arm, cells, of, only, run, story

from uncork.lm.optim import Doubling
from uncork.report.language import figures, reading, tables
from uncork.report.language.runs import Run
from uncork.report.language.sections import language_sections
from uncork.report.language.trials import trials
from uncork.report.markdown import markdown
from uncork.report.section import Section


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
    assert cells(table, "softmax")["training seconds per epoch"] == "10"
    plif, mos = cells(table, "PLIF from the identity"), cells(table, "MoS")
    assert plif["against softmax"] == "1.50x" and plif["peak memory, MiB"] == "3"
    assert (
        mos["training seconds per epoch"] == "40" and mos["against softmax"] == mos["peak memory, MiB"] == "–"
    )


def test_costs_stand_beside_the_published_ones():
    table = tables.cost_table(only(*story()))
    names = ("LMS, parameters", "LMS, seconds per epoch", "LMS, against softmax")
    printed = lambda head: [cells(table, head)[name] for name in names]
    assert printed("PLIF, the authors' start") == ["24.4M", "about 70", "1.2x"]
    assert printed("MoS") == ["26.6M", "about 150", "2.5x"]
    assert printed("PLIF from the identity") == [tables.NONE] * 3
    assert names[0] not in tables.cost_table(only(run("embedded_softmax", 1, 50.0))).columns


def test_memory_is_the_most_of_all_seeds():
    peaks = ((1, 5), (2, 7), (3, 6))
    trial = only(*(run("penn_softmax", s, 60.0 + s, peak_memory_bytes=m * 2**20) for s, m in peaks))
    assert cells(tables.cost_table(trial), "softmax")["peak memory, MiB"] == "7"


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
        cells(table, "softmax")["training seconds per epoch"] == "15"
        and cells(table, "softmax")["against softmax"] == "1.00x"
    )
    # With none of its time, it is compared with one that had as much company: here none.
    records[1]["provenance"]["started"] = "2026-01-02T00:00:00+00:00"
    assert cells(tables.cost_table(only(*records)), "PLIF from the identity")["against softmax"] == "1.10x"
    # With two beside it, of which one did not end, it is compared with none.
    for extra in (run("penn_sigsoftmax", 1, 60.0), run("penn_mos", 1, 60.0, done=5)):
        extra["provenance"]["started"] = "2026-01-02T00:00:01+00:00"
        records.append(extra)
    assert cells(tables.cost_table(only(*records)), "PLIF from the identity")["against softmax"] == "–"


def test_seconds_of_runs_that_were_not_made_alike_are_a_range():
    """A seed with another beside it, one on other hardware and one of other code have no mean together."""
    shown = lambda records: cells(tables.cost_table(only(*records)), "softmax")["training seconds per epoch"]
    records = [run("penn_softmax", seed, 60.0, seconds_per_epoch=s) for seed, s in ((1, 4.53), (2, 6.27))]
    assert shown(records) == "5.4"
    beside = run("penn_plif", 2, 59.0)
    assert shown([*records, beside]) == "4.5 to 6.3"
    records[1]["result"]["seconds_per_epoch"] = 14.6
    for name, other in (("hardware", "another machine"), ("commit", "def")):
        changed = [records[0], records[1] | {"provenance": records[1]["provenance"] | {name: other}}]
        assert shown(changed) == "4.5 to 15"
    records[1]["result"]["seconds_per_epoch"] = 4.54
    assert shown([*records, beside]) == "4.5"


def test_runs_of_another_corpus_count_as_company():
    """Three runs on WikiText-2 beside it, and none beside softmax: no ratio can be said."""
    softmax, plif = run("penn_softmax", 1, 60.0), run("penn_plif", 2, 59.0, seconds_per_epoch=20.0)
    beside = [run("wikitext2_softmax", seed, 70.0) for seed in (12, 22, 32)]
    assert (
        cells(tables.cost_table(only(softmax, plif)), "PLIF from the identity")["against softmax"] == "2.00x"
    )
    (shared,) = [t for t in trials(of(softmax, plif, *beside)) if "Penn" in t.title]
    assert cells(tables.cost_table(shared), "PLIF from the identity")["against softmax"] == "–"
    # As many beside softmax, but on Penn: no more alike.
    others = [run("penn_sigsoftmax", seed, 60.0) for seed in (11, 21, 31)]
    (shared,) = [t for t in trials(of(softmax, plif, *beside, *others)) if "Penn" in t.title]
    assert cells(tables.cost_table(shared), "PLIF from the identity")["against softmax"] == "–"
    for record in beside:
        record["provenance"]["hardware"] = "another machine"
    (apart,) = [t for t in trials(of(softmax, plif, *beside)) if "Penn" in t.title]
    assert cells(tables.cost_table(apart), "PLIF from the identity")["against softmax"] == "2.00x"


def test_a_result_whose_epochs_were_lost_is_still_shown():
    records = story()
    lost = [r for r in records if r["config"]["name"] == "penn_plif"]
    for record in lost:
        record["metrics"] = []
    trial = only(*records)
    assert "PLIF from the identity" not in figures.curve_figure(trial).alt
    assert "PLIF from the identity" not in figures.gap_figure(trial).alt
    assert cells(tables.perplexity_table(trial), "PLIF from the identity")["test"] == "58.00 ± 0.10"


def test_seconds_side_by_side():
    first, second = of(run("penn_softmax", 1, 60.0), run("penn_plif", 1, 60.0, epochs=2))
    for start, expected in (("00:00:00", 22.0), ("00:00:50", 16.0), ("00:01:06", 0.0), ("00:02:00", 0.0)):
        second.provenance["started"] = f"2026-01-01T{start}+00:00"
        assert first.seconds_beside(second) == second.seconds_beside(first) == expected
    second.provenance["started"] = ""
    assert first.seconds_beside(second) == 0.0


@pytest.mark.parametrize("step", [200, 250])
def test_seconds_side_by_side_of_a_run_that_paused(step):
    """Epochs 1 and 2 of 11 s each at noon, 3 to 6 an hour later: paused at the end of one, or within one."""
    paused, other = of(run("penn_mos", 1, 60.0), run("penn_softmax", 1, 60.0))
    paused.provenance["started"] = "2026-01-01T12:00:00+00:00"
    paused.provenance["resumed"] = [
        paused.provenance | {"step": step, "started": "2026-01-01T13:00:00+00:00"}
    ]
    for start, expected in (("11:59:30", 22.0), ("12:30:00", 0.0), ("13:00:20", 24.0)):
        other.provenance["started"] = f"2026-01-01T{start}+00:00"
        assert paused.seconds_beside(other) == other.seconds_beside(paused) == expected


def test_all_origins_of_a_run_are_named_and_losses_on_the_way_too():
    record = run("penn_softmax", 1, 60.0, packed=[{"step": 250}])
    record["provenance"]["resumed"] = [
        record["provenance"] | {"step": 250, "commit": "def", "hardware": "another"}
    ]
    paragraphs = language_sections(of(record))[-1].paragraphs
    assert "Carried between machines in a file that loses digits: softmax seed 1." in paragraphs
    assert paragraphs[-2:] == [
        "Made by uncork 0 (commit abc) with torch 2 on a machine.",
        "Made by uncork 0 (commit def) with torch 2 on another.",
    ]


def test_slopes_stand_beside_the_papers():
    table = tables.slope_table(only(*story()))
    assert table is not None
    rows = [[text for text, _ in row] for row in table.rows]
    assert rows[0] == ["PLIF from the identity", "over the table", "3", "1.25", "0.4", "0.5", "1.75", "0.31"]
    assert rows[1][:4] == ["PLIF from the identity", "at the logits", "3", "1.12"]
    assert rows[-1] == [
        "PLIF in table 2 of the paper, WikiText-2",
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
    assert row["commit"] == "abc"
    resumed = run("penn_softmax", 1, 60.0)
    first = resumed["provenance"] | {"commit": "0123456789ab"}
    later = [first | {"step": 250}, first | {"step": 350, "commit": "ba9876543210+changes"}]
    resumed["provenance"] = first | {"resumed": later}
    assert cells(tables.run_table(only(resumed)), "softmax")["commit"] == "0123456, ba98765+changes"
    unknown = run("penn_softmax", 1, 60.0)
    unknown["provenance"]["commit"] = None
    assert cells(tables.run_table(only(unknown)), "softmax")["commit"] == "–"
    foreign = run("penn_softmax", 1, 60.0) | {"overrides": None}
    foreign["config"]["name"] = "mine"
    assert "not a recipe of this package" in tables.run_table(only(foreign)).rows[0][-1][0]


def test_curves_are_means_over_seeds_where_all_have_the_epoch():
    trial = only(run("penn_softmax", 1, 60.0), run("penn_softmax", 2, 62.0))
    epochs, means, deviations = figures.curve(arm(trial, "softmax"))
    assert epochs == [1, 2, 3, 4, 5, 6]
    assert means[-1] == pytest.approx(63.0) and deviations[-1] == pytest.approx(math.sqrt(2.0))


DOUBLING = ("optim.average=doubling", "optim.average_epoch=3")


def test_averages_that_start_anew_are_told_and_drawn():
    record = run("penn_softmax", 1, 60.0, DOUBLING, epochs=14)
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
    trial = only(record, run("penn_plif", 1, 60.0, DOUBLING, epochs=14))
    drawn: list[float] = []
    figures._averaging_marks(
        SimpleNamespace(axvline=lambda x, **_: drawn.append(x)), trial, figures.styles(trial)
    )
    assert drawn == [3.5, 6.5, 12.5]


def test_no_average_begins_after_the_last_epoch():
    assert Run.of(run("penn_softmax", 1, 60.0, DOUBLING, epochs=12)).averaging_starts == [4, 7]


def test_the_first_epoch_of_an_average_belongs_to_it():
    record = run("penn_softmax", 1, 60.0, DOUBLING, epochs=14)
    record["metrics"][6]["valid_nll"] = 1.0
    assert Run.of(record).best_epoch == Run.of(record).averaged_from == 7


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
    assert titles[1:] == ["Differences", "Curves", "Learned functions", "Runs"] and len(titles) == 5
    (alone,) = language_sections(of(run("penn_softmax", 1, 60.0, done=1)))
    assert "Not finished" in alone.paragraphs[0] and not alone.tables
    assert language_sections([]) == []


def test_no_path_of_a_machine_reaches_the_page():
    (section, *_) = language_sections(of(run("penn_softmax", 1, 60.0, ("data.corpus=/srv/me/texts",))))
    assert section.title.startswith("texts, 6 epochs") and "/srv" not in section.anchor
    mine = only(run("penn_softmax", 1, 60.0, ("data.corpus=/srv/me/my texts #1 (ü)",)))
    assert mine.anchor == "my-texts-1-6"
    (row,) = tables.run_table(mine).rows
    assert "'data.corpus=my texts #1 (ü)'" in row[-1][0] and "/srv" not in row[-1][0]
    tuned = only(run("penn_softmax", 1, 60.0, ("finetune=/srv/me/runs/first",)))
    (row,) = tables.run_table(tuned).rows
    assert "finetune=first" in row[-1][0] and "/srv" not in row[-1][0]


def test_an_unfinished_run_stands_beside_what_it_would_be_compared_with():
    begun = (run("penn_mos_plif", 1, 55.0, done=4), run("penn_plif", 7, 58.0, done=0))
    trial = only(*story(), *begun)
    table = tables.unfinished_table(trial)
    assert table is not None and len(table.rows) == 1  # of the other nothing is known yet
    found = cells(table, "MoS with PLIF")
    assert found["epochs"] == "4 of 6" and found["lowest valid"] == "77.00"
    assert found["another head then"] == "MoS, same seed 77.90"
    assert found["published"] == "LMS 58.20/56.02"
    assert tables.unfinished_table(only(*story())) is None


def test_an_unfinished_run_is_compared_within_its_seed_where_that_can_be():
    """Also with one that has not ended; a softmax is compared with none, and rows are in order of seeds."""
    half = lambda recipe, seed, valid: run(recipe, seed, valid, done=3)
    trial = only(
        run("penn_softmax", 1, 60.0),
        half("penn_plif", 3, 58.0),
        half("penn_plif", 2, 57.0),
        half("penn_softmax", 2, 61.0),
    )
    table = tables.unfinished_table(trial)
    assert table is not None
    rows = [[cell[0] for cell in row] for row in table.rows]
    then = {(row[0], row[1]): row[5] for row in rows}
    metrics = {
        r.seed: r.metrics[2]["valid_perplexity"]
        for r in [*trial.arms[0].runs, *trial.unfinished]
        if r.role == "softmax"
    }
    assert [key[1] for key in then] == ["2", "3", "2"]
    assert list(then.values()) == [f"softmax, same seed {metrics[2]:.2f}", f"softmax {metrics[1]:.2f}", "–"]


def test_an_unfinished_run_is_told_from_another_of_its_name():
    """Two softmaxes of somebody's own recipe: their labels alone would not say which one is meant."""

    def mine(seed, done, lr):
        record = run("penn_softmax", seed, 60.0 + lr, (f"optim.lr={lr}",), done=done)
        return record | {"config": record["config"] | {"name": "mine"}, "overrides": None}

    trial = only(mine(1, None, 20), mine(1, None, 30), mine(2, 3, 20), run("penn_plif", 2, 58.0, done=3))
    table = tables.unfinished_table(trial)
    assert table is not None
    then = [row[5][0] for row in table.rows]
    assert then[0].startswith("softmax (optim.lr=20.0), same seed") and then[1] == "–"


def test_columns_of_words_stand_to_the_left():
    trial = only(*story(), run("penn_plif", 7, 58.0, done=2))
    table = tables.unfinished_table(trial)
    assert table is not None
    text = markdown([Section("a", "A", [], [], [table])])
    assert "\n|---|---:|---:|---:|---:|---|---|\n" in text


def test_how_far_random_starts_moved():
    said = reading.movement(only(*story()))
    assert said is not None and said.endswith("PLIF, the authors' start by 77 %.")  # 0.31 of 0.4
    assert reading.movement(only(run("penn_plif", 1, 58.0, learned_function=LEARNED))) is None


@pytest.mark.parametrize("start", ["random", "identity"])
def test_a_mixture_has_a_random_start_only_if_its_configuration_says_so(start):
    change = f"model.head.function.options.init={start}"
    trial = only(run("penn_mos_plif", 1, 56.0, (change,), learned_function=LEARNED))
    picture = figures.function_figure(trial, "slope")
    assert (
        (reading.movement(trial) is not None) == ("running means" in picture.reading) == (start == "random")
    )


def test_a_recipe_that_has_changed_since_a_run_is_named():
    """Stored overrides are those against the recipe of then."""
    records = [run("penn_plif", 1, 58.0, ("model.output_dropout=0.4",)), run("penn_softmax", 1, 60.0)]
    assert reading.commands(only(*records)) == []
    records[0]["overrides"] = [each for each in records[0]["overrides"] if "dropout" not in each]
    (said,) = reading.commands(only(*records))
    assert said.endswith("Changed since: penn_plif (model.output_dropout).")


def test_a_long_name_and_many_names_fit_the_picture(monkeypatch):
    """The legend inside the picture, and the lines as tall as with few names."""
    boxes = []

    def finish(figure, *_):
        figure.canvas.draw()
        boxes.append((figure.bbox, figure.legends[0].get_window_extent(), figure.axes[0].get_window_extent()))

    monkeypatch.setattr(figures, "finish", finish)
    long = ("model.head.function.options.init=identity", "model.head.function.options.knots=100000",
            "model.head.function.lr=2", "model.head.function.weight_decay=0")  # fmt: skip
    few = [run("penn_softmax", 1, 60.0), run("penn_plif", 1, 59.0)]
    figures.curve_figure(only(*few))
    figures.curve_figure(only(*story(), run("penn_mos_plif", 1, 56.0, long)))
    (_, _, short), (whole, legend, lines) = boxes
    assert whole.x0 <= legend.x0 and legend.x1 <= whole.x1 and whole.y0 <= legend.y0
    assert lines.height > 0.9 * short.height
