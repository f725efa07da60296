"""What is refused before anything is written, by every way in; and nothing stays behind."""

import json
import os
import subprocess
import sys

import pytest
import torch

from tests.folders import files, like_a_run
from uncork import cli
from uncork.lm.config_io import refuse_repeated
from uncork.recipes import __main__ as plain
from uncork.recipes.front import exit_code
from uncork.recipes.pack import parse_bytes
from uncork.recipes.plan import plan
from uncork.results import read_json, read_jsonl


TINY = ("data.limit_tokens=1500", "model.hidden=8", "epochs=1")


@pytest.fixture
def run(tmp_path):
    return like_a_run(tmp_path / "run")


def test_an_override_given_twice_is_refused_by_every_way_in(tmp_path, capsys):
    out = tmp_path / "out"
    twice = ["optim.lr=1", "epochs=1", "optim.lr=20"]
    assert plain.main(["embedded_softmax", *twice, "--out", str(out)]) == 2
    assert cli.main(["sweep", "embedded_softmax", "--out", str(out), "--set", *twice]) == 2
    assert cli.main(["sweep", f"embedded_softmax:{','.join(twice)}", "--out", str(out)]) == 2
    assert capsys.readouterr().err.count("`optim.lr` must be given once; got it 2 times") == 3
    assert not out.exists()


def test_what_a_variant_says_goes_before_what_is_said_for_all(tmp_path):
    (found,) = plan(["x=embedded_softmax:optim.lr=5"], [3], ["optim.lr=1", "epochs=2"], tmp_path)
    assert (found.config.optim.lr, found.config.epochs) == (5.0, 2)
    refuse_repeated(found.overrides)  # which the process of the run would refuse


@pytest.mark.parametrize(
    "change",
    ["finetune=/nonexistent", "data.batch_size=5000", "data.corpus=/etc", "graphs=true"],
)
def test_a_refused_run_leaves_no_folder(change, tmp_path, capsys):
    out = tmp_path / "deep" / "run"
    assert cli.main(["train", "embedded_softmax", *TINY, change, "--out", str(out)]) == 2
    assert capsys.readouterr().err.startswith("uncork: ") and not out.exists()


@pytest.mark.parametrize("name", ["batch_size", "valid_batch_size", "test_batch_size"])
def test_a_batch_that_is_too_large_is_named(name, tmp_path, capsys):
    assert cli.main(["train", "embedded_softmax", f"data.{name}=10000000", "--out", str(tmp_path / "x")]) == 2
    assert f"`data.{name}` must leave at least 2 tokens per column" in capsys.readouterr().err


def test_a_run_folder_that_is_a_file_is_refused(tmp_path, capsys):
    (tmp_path / "file").write_text("mine")
    assert cli.main(["train", "embedded_softmax", "--out", str(tmp_path / "file")]) == 2
    assert "must be a folder, but it is a file" in capsys.readouterr().err


def test_neither_a_sweep_nor_the_demo_is_put_into_a_run(run, capsys):
    before = files(run)
    assert cli.main(["sweep", "embedded_softmax", "--out", str(run)]) == 2
    assert cli.main(["demo", "--out", str(run)]) == 2
    assert capsys.readouterr().err.count("`out` must lie outside of runs") == 2
    assert files(run) == before


def test_the_demo_looks_at_its_grid_first(tmp_path, capsys):
    assert cli.main(["demo", "--out", str(tmp_path / "demo"), "--vocabulary", "1"]) == 2
    printed = capsys.readouterr()
    assert "`vocabulary` must be an integer of at least 2" in printed.err and not printed.out


@pytest.mark.parametrize("text", ["9" * 400, "1e400", "10000000000GiB0"])
def test_a_size_beyond_any_file_is_refused(text):
    with pytest.raises(ValueError, match="`bytes` must be a positive number"):
        parse_bytes(text)


def test_brackets_by_the_thousand_are_damage(tmp_path):
    path = tmp_path / "config.json"
    path.write_text("[" * 100_000)
    with pytest.raises(ValueError, match=r"must be a JSON file.*Put it back"):
        read_json(path)
    path.write_text("[" * 100_000 + "\n" + json.dumps({}) + "\n")
    with pytest.raises(ValueError, match="line 1 cannot be read"):
        list(read_jsonl(path))


@pytest.mark.parametrize(
    "error",
    [MemoryError(), torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("you can't allocate memory")],
    ids=["python", "cuda", "cpu"],
)
def test_memory_that_ran_out_is_one_line(error, monkeypatch, capsys):
    def fails() -> int:
        raise error

    monkeypatch.setitem(cli.COMMANDS, "bug", fails)
    assert exit_code(fails) == cli.main(["bug"]) == 2
    assert capsys.readouterr().err.count("uncork: memory ran out. Choose a smaller model") == 2


@pytest.mark.skipif(os.name != "posix", reason="pipes of a shell")
def test_a_reader_that_has_had_enough_is_no_error():
    command = f"{sys.executable} -m uncork recipes | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120)
    assert done.stderr == "" and done.stdout.splitlines()[-1] in ("0", "141")
