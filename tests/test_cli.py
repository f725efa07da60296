"""The command line: exit codes, one-line errors, and what happens without its extra."""

import subprocess
import sys

import pytest

from uncork import cli


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "uncork", *arguments]
    return subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)


def test_info_prints_versions(capsys):
    assert cli.main(["info"]) == 0
    printed = capsys.readouterr().out
    assert "torch" in printed and "hardware" in printed


def test_module_runs_as_a_command():
    answer = run("info")
    assert answer.returncode == 0 and "uncork" in answer.stdout


def test_help_lists_every_command():
    answer = run("--help")
    assert answer.returncode == 0
    assert all(name in answer.stdout for name in cli.COMMANDS)


def test_unknown_command_ends_in_code_2():
    answer = run("nonsense")
    assert answer.returncode == 2 and "Traceback" not in answer.stderr


@pytest.mark.parametrize("kind", [ValueError, TypeError, OSError])
def test_bad_input_is_one_line_and_code_2(kind, monkeypatch, capsys):
    def broken() -> None:
        raise kind("`knots` must be at least 2, got 1.")

    monkeypatch.setitem(cli.COMMANDS, "broken", broken)
    assert cli.main(["broken"]) == 2
    assert capsys.readouterr().err == "uncork: `knots` must be at least 2, got 1.\n"


def test_interrupt_is_code_130(monkeypatch, capsys):
    def stopped() -> None:
        raise KeyboardInterrupt

    monkeypatch.setitem(cli.COMMANDS, "stopped", stopped)
    assert cli.main(["stopped"]) == 130
    assert capsys.readouterr().err == "uncork: interrupted.\n"


def test_a_bug_is_not_disguised_as_bad_input(monkeypatch):
    def bug() -> None:
        raise RuntimeError("a bug")

    monkeypatch.setitem(cli.COMMANDS, "bug", bug)
    with pytest.raises(RuntimeError):
        cli.main(["bug"])


def test_without_its_extra_the_command_says_how_to_install_it():
    code = (
        "import sys; sys.modules.update(tyro=None, rich=None)\n"
        "from uncork.cli import main; sys.exit(main(['info']))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert answer.returncode == 2
    assert answer.stderr == "uncork: the command line needs `pip install 'uncork[cli]'`.\n"
