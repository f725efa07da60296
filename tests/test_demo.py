"""`uncork demo` on a problem small enough for a test."""

import pytest

from uncork import cli


def test_demo_prints_a_row_for_every_head(capsys):
    sizes = ["--contexts", "20", "--words", "15", "--width", "3", "--steps", "2"]
    assert cli.main(["demo", *sizes]) == 0
    printed = capsys.readouterr().out
    for head in ("softmax", "temperature", "sigsoftmax", "PLIF", "monotone network", "mixture"):
        assert head in printed
    assert "nats" in printed


@pytest.mark.parametrize("option", ["--contexts", "--words", "--width", "--steps"])
def test_demo_refuses_sizes_below_one(option: str, capsys):
    assert cli.main(["demo", option, "0"]) == 2
    assert f"`{option[2:]}` must be at least 1, got 0" in capsys.readouterr().err
