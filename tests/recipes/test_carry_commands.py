"""`sweep`, `pack` and `unpack` as commands, with and without the command-line extra."""

import sys

import pytest

from uncork.cli import main
from uncork.lm import train
from uncork.recipes import build, pack, unpack
from uncork.recipes.pack import describe, parse_bytes
from uncork.results import read_json


TINY = ("data.limit_tokens=2000", "epochs=1", "data.batch_size=8", "log_every=1000")


@pytest.mark.parametrize(
    ("text", "size"),
    [("60MiB", 62_914_560), ("500000", 500_000), ("1.5 MB", 1_500_000), ("2KiB", 2048), ("1GB", 10**9)],
)
def test_sizes_are_read(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "MiB", "-3", "0", "60 mib", "1e6", "6TB"])
def test_other_sizes_are_refused(text):
    with pytest.raises(ValueError, match="`bytes` must be a positive number.*MiB"):
        parse_bytes(text)


def test_a_loss_is_described():
    note = {
        "step": 9,
        "bits": {"base": 12, "iterate": 8},
        "relative_error": {"base": 0.001, "iterate": 0.016},
    }
    assert describe(note) == (
        "step 9, with loss: model in 12 bits, iterate beside the average in 8 bits; "
        "largest relative error 0.016"
    )
    assert describe({"step": 9, "bits": None, "relative_error": {}}) == "step 9, nothing lost"


def test_both_forms_carry_a_run(tmp_path, capsys):
    run, file = str(tmp_path / "run"), str(tmp_path / "file")
    train(build("embedded_softmax", TINY), run)
    capsys.readouterr()
    assert main(["pack", run, "-o", file, "--bytes", "10MiB"]) == 0
    assert "nothing lost" in capsys.readouterr().out
    assert main(["unpack", file, "--out", str(tmp_path / "a")]) == 0
    assert pack.main([run, "-o", file]) == 0
    assert unpack.main([file, "--out", str(tmp_path / "b")]) == 0
    for name in ("a", "b"):
        assert read_json(tmp_path / name / "result.json") == read_json(tmp_path / "run" / "result.json")
    capsys.readouterr()
    for call in (main, lambda arguments: unpack.main(arguments[1:])):
        assert call(["unpack", file, "--out", str(tmp_path / "a")]) == 2
        assert "must be a new folder" in capsys.readouterr().err
    assert main(["pack", str(tmp_path / "none"), "-o", file]) == 2
    assert pack.main([run, "-o", file, "--bytes", "much"]) == 2


def test_the_sweep_command_passes_everything_on(tmp_path, monkeypatch):
    seen = {}
    module = sys.modules["uncork.cli.sweep"]  # the package's own `sweep` is the function
    monkeypatch.setattr(module, "work", lambda *a, **k: seen.update(k, recipes=a[0], out=a[1]) or 7)
    command = "sweep a b:c=1 --seeds 1 2 --set x=1 y=2 --out o --parallel 6 --minutes 2.5 --resume --mps"
    assert main(command.split()) == 7
    assert seen.pop("out").name == "o"
    assert seen == {
        "recipes": ("a", "b:c=1"), "seeds": (1, 2), "changes": ("x=1", "y=2"), "parallel": 6,
        "minutes": 2.5, "resume": True, "mps": True,
    }  # fmt: skip
