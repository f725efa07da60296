"""Language-model runs: which had the same text, whatever it was called."""

import random

import pytest
from language_records import cells, of, only, run

from uncork.lm import train
from uncork.recipes import build
from uncork.recipes.bundle import bundle
from uncork.report import load
from uncork.report.language import tables
from uncork.report.language.trials import trials


ONE, OTHER = "1a2b3c4d" * 8, "9f8e7d6c" * 8


def on(corpus, head, seed, test, text=None, **more):
    known = {} if text is None else {"corpus_fingerprint": text}
    return run(f"penn_{head}", seed, test, (f"data.corpus={corpus}",), **known, **more)


def sizes(records):
    return {trial.title: [len(arm.runs) for arm in trial.arms] for trial in trials(of(*records))}


def test_one_text_under_two_paths_is_compared():
    trial = only(
        on("/srv/me/texts", "softmax", 1, 60.0, ONE),
        on("/data/words", "softmax", 2, 60.2, ONE),
        on("/data/words", "plif", 1, 58.0, ONE),
    )
    assert [len(arm.runs) for arm in trial.arms] == [2, 1] and trial.title == "texts, 6 epochs"
    assert cells(tables.perplexity_table(trial), "PLIF from the identity")["test minus softmax"] == "-2.10"
    assert [arm.label for arm in trial.arms] == ["softmax", "PLIF from the identity"]


def test_a_public_name_goes_before_a_path():
    trial = only(on("penn", "softmax", 1, 60.0, ONE), on("/a/copy", "plif", 1, 58.0, ONE))
    assert trial.title == "Penn Treebank, 6 epochs" and trial.anchor == "penn-6"


def test_other_text_under_one_path_is_not_compared():
    records = [on("/srv/texts", "softmax", 1, 60.0, ONE), on("/srv/texts", "plif", 1, 40.0, OTHER)]
    assert sizes(records) == {"texts, 6 epochs, text 1a2b3c4d": [1], "texts, 6 epochs, text 9f8e7d6c": [1]}
    assert len({trial.anchor for trial in trials(of(*records))}) == 2


def test_runs_without_a_fingerprint_go_by_the_path():
    """Those of before there was one, and those that have not ended."""
    older, half = on("texts", "softmax", 1, 60.0), on("texts", "plif", 2, 58.0, done=3)
    trial = only(older, half, on("texts", "plif", 1, 58.0, ONE))
    assert [len(arm.runs) for arm in trial.arms] == [1, 1] and len(trial.unfinished) == 1
    assert trial.title == "texts, 6 epochs"
    assert sizes([older, on("words", "plif", 1, 58.0, ONE)]) == {
        "texts, 6 epochs": [1],
        "words, 6 epochs": [1],
    }


def test_where_a_path_had_several_texts_a_run_without_a_fingerprint_stays_alone():
    records = [on("texts", "plif", 1, 58.0, ONE), on("texts", "plif", 2, 40.0, OTHER)]
    found = sizes([*records, on("texts", "softmax", 1, 60.0)])
    assert len(found) == 3 and found["texts, 6 epochs, text unknown"] == [1]


def test_the_load_of_a_machine_goes_by_the_text_too():
    """Softmax and PLIF each ran beside another run of one text, under two paths."""
    records = [
        on("a", "softmax", 1, 60.0, ONE, seconds_per_epoch=10.0),
        on("a", "sigsoftmax", 1, 60.0, ONE),
        on("b", "plif", 2, 59.0, ONE, seconds_per_epoch=15.0),
        on("b", "temperature", 2, 59.0, ONE),
    ]
    table = tables.cost_table(only(*records))
    assert cells(table, "PLIF from the identity")["against softmax"] == "1.50x"


def write_corpus(folder, seed):
    folder.mkdir(exist_ok=True)
    draw = random.Random(seed)
    for split in ("train", "valid", "test"):
        words = draw.choices([f"w{number}" for number in range(50)], k=900)
        (folder / f"{split}.txt").write_text(" ".join(words) + "\n")


@pytest.mark.parametrize("bundled", [False, True])
def test_a_run_keeps_the_fingerprint_of_its_text(tmp_path, bundled):
    """The text in a folder changes between two runs, and a copy of it lies elsewhere."""

    def trained(name, corpus, head):
        changes = (f"data.corpus={tmp_path / corpus}", "epochs=1", "data.batch_size=4", "model.hidden=8")
        train(build(f"embedded_{head}", changes), tmp_path / "runs" / name)

    write_corpus(tmp_path / "texts", 1)
    trained("first", "texts", "softmax")
    write_corpus(tmp_path / "copy", 1)
    trained("second", "copy", "temperature")
    write_corpus(tmp_path / "texts", 2)
    trained("third", "texts", "plif")
    runs = tmp_path / "runs"
    if bundled:
        bundle([runs], tmp_path / "all.jsonl")
        runs = tmp_path / "all.jsonl"
    found = trials(load([runs]).runs)
    assert sorted([each.role for each in trial.arms] for trial in found) == [
        ["plif"],
        ["softmax", "temperature"],
    ]
