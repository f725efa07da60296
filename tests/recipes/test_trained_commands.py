"""`uncork evaluate` and `uncork generate` on a trained run: every option acts, and nothing found is lost."""

import shutil
import sys

import pytest

from uncork.cli import main
from uncork.lm import train
from uncork.recipes import build
from uncork.results import read_json


SHORT = ("data.limit_tokens=1500", "epochs=1", "data.batch_size=8", "model.hidden=8")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained") / "run"
    train(build("embedded_softmax", SHORT), folder)
    return folder


@pytest.fixture
def run(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "run")


@pytest.mark.parametrize("split", ["valid", "test"])
def test_the_split_that_is_asked_for_is_read(run, split, capsys):
    result = read_json(run / "result.json")
    assert result["valid_perplexity"] != pytest.approx(result["test_perplexity"], abs=0.01)
    assert main(["evaluate", str(run), "--split", split]) == 0
    assert f"{split} perplexity {result[f'{split}_perplexity']:.2f} over" in capsys.readouterr().out


def test_a_seed_draws_its_own_text(run, capsys):
    def text(seed):
        assert main(["generate", str(run), "--length", "30", "--seed", str(seed)]) == 0
        return capsys.readouterr().out

    assert text(1) == text(1) != text(2)


def test_an_evaluation_says_how_it_was_made(run):
    change = "data.limit_tokens=600"
    assert main(["evaluate", str(run), change, "--method", "cache", "--cache.share", "0.2"]) == 0
    record = read_json(run / "evaluation-cache-test.json")
    assert record["settings"] == {"theta": 1.0, "share": 0.2, "size": 500} and record["overrides"] == [change]
    assert main(["evaluate", str(run), change, "--method", "dynamic", "--dynamic.lr", "0.001"]) == 0
    settings = read_json(run / "evaluation-dynamic-test.json")["settings"]
    assert settings == {"lr": 0.001, "decay": 0.02, "epsilon": 0.001}
    assert main(["evaluate", str(run), change]) == 0
    assert read_json(run / "evaluation-plain-test.json")["settings"] == {}


def test_each_evaluation_takes_the_overrides_that_act(run):
    for options, change in (
        (["--split", "valid"], "data.valid_batch_size=3"),
        (["--split", "valid", "--method", "cache"], "data.test_batch_size=3"),
        ([], "data.bptt=7"),
    ):
        assert main(["evaluate", str(run), change, *options]) == 0


def test_what_cannot_be_written_is_printed(run, monkeypatch, capsys):
    def refuse(*_):
        raise PermissionError(13, "Permission denied", "a temporary file")

    monkeypatch.setattr(sys.modules["uncork.cli.evaluate"], "write_json", refuse)  # `cli` has its function
    assert main(["evaluate", str(run)]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("test perplexity ")
    path = run / "evaluation-plain-test.json"
    assert printed.err == f"uncork: `{path}` could not be written (Permission denied).\n"


def test_no_command_tells_digits_of_a_run_that_diverged(tmp_path, capsys):
    folder = str(tmp_path / "run")
    wild = ("data.limit_tokens=1500", "model.hidden=8", "optim.lr=3000", "optim.clip=None")
    assert main(["train", "embedded_softmax", *wild, "epochs=2", "--out", folder]) == 0
    printed = capsys.readouterr()
    assert printed.out == f"{folder}: valid over 1e6  test over 1e6\n"
    assert "train ppl over 1e6, valid ppl over 1e6, " in printed.err
    assert "\nvalid ppl over 1e6, test ppl over 1e6\n" in printed.err
    assert main(["evaluate", folder]) == 0
    assert capsys.readouterr().out.startswith("test perplexity over 1e6 over ")


@pytest.mark.parametrize(
    ("options", "missing"),
    [(["--cache.share", "0.5"], "cache"), (["--method", "cache", "--dynamic.lr", "1"], "dynamic")],
)
def test_settings_of_another_method_are_refused(run, options, missing, capsys):
    assert main(["evaluate", str(run), *options]) == 2
    assert f"Add --method {missing}, or leave them out." in capsys.readouterr().err
    assert not list(run.glob("evaluation-*"))


@pytest.mark.parametrize(
    ("change", "options"),
    [
        *((change, []) for change in ("optim.lr=3", "device=cuda", "data.batch_size=3", "epochs=7")),
        ("data.valid_batch_size=3", ["--split", "test"]),
        ("data.test_batch_size=3", ["--split", "valid"]),
        ("data.valid_batch_size=3", ["--split", "valid", "--method", "cache"]),
        ("data.bptt=7", ["--method", "cache"]),
        ("data.bptt=7", ["--method", "dynamic"]),
    ],
)
def test_overrides_that_could_not_act_are_refused(run, change, options, capsys):
    assert main(["evaluate", str(run), change, *options]) == 2
    error = capsys.readouterr().err
    assert f"got {change!r}. Leave it out" in error and "must be among data.corpus, data.root" in error
    assert not list(run.glob("evaluation-*"))
