import io
import sys

import pytest

from uncork.lm.progress import Progress, duration


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_durations_read_as_a_clock():
    assert [duration(s) for s in (0, 59.6, 3723, -5)] == ["0:00:00", "0:01:00", "1:02:03", "0:00:00"]


def test_time_left_is_judged_by_the_work_of_this_start(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("uncork.lm.progress.time.monotonic", lambda: now[0])
    progress = Progress("x", enabled=False)
    assert progress.left(0.5) == "unknown"  # resumed half way: nothing is known of the speed
    now[0] += 30.0
    assert progress.left(0.75) == "0:00:30"


def test_plain_lines_without_a_terminal(capsys):
    progress = Progress("x")
    progress.step(0.25, 10, 1, 2.0, 5.0)
    progress.say("done")
    progress.download("http://a/b", 65536, 131072)
    progress.close()
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith(" 25.0%  epoch 1  step 10  train ppl 7.4  5 ms/step")
    assert lines[1] == "done" and "64 of 128 KiB" in lines[2]


def test_no_digits_are_told_of_a_run_that_diverges(capsys):
    Progress("x").step(0.25, 10, 1, 25.0, 5.0)
    assert "train ppl over 1e6  5 ms/step" in capsys.readouterr().err


def test_a_live_bar_on_a_terminal(monkeypatch):
    pytest.importorskip("rich")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    progress = Progress("run")
    assert progress.bar is not None
    progress.step(0.5, 10, 1, 2.0, 5.0)
    progress.say("epoch 1: done")
    progress.close()
    assert "epoch 1: done" in terminal.getvalue() and "50%" in terminal.getvalue()


def test_other_processes_are_silent(capsys):
    progress = Progress("x", enabled=False)
    progress.step(0.25, 10, 1, 2.0, 5.0)
    progress.say("done")
    progress.close()
    assert capsys.readouterr().err == ""
