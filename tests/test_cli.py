"""The command line: exit codes, one-line errors, and what happens without its extra."""

import subprocess
import sys
import tomllib
from pathlib import Path

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


@pytest.mark.parametrize("command", ["theory", "demo"])
def test_a_missing_package_is_one_line_that_names_its_extra(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    assert cli.main([command]) == 2
    assert capsys.readouterr().err == "uncork: scipy is missing: `pip install 'uncork[theory]'`.\n"


def test_an_import_that_is_wrong_here_is_shown_whole(monkeypatch, tmp_path):
    """Nothing that could be installed would mend it."""

    def broken(*_):
        raise ImportError("cannot import name 'x'", name="uncork.report.page")

    monkeypatch.setattr(sys.modules["uncork.cli.report"], "write_report", broken)
    with pytest.raises(ImportError, match="cannot import name 'x'"):
        cli.main(["report", str(tmp_path), "-o", str(tmp_path / "page.html")])


def test_theory_replaces_no_other_file(tmp_path, capsys):
    other = tmp_path / "words.json"
    other.write_text("[]")
    assert cli.main(["theory", "--json", str(other)]) == 2
    assert "`json` must be a new file or a result file of this command" in capsys.readouterr().err
    assert other.read_text() == "[]"


@pytest.mark.parametrize("package, extra", cli.EXTRAS.items())
def test_every_extra_has_the_package_it_is_named_for(package, extra, monkeypatch, capsys):
    settings = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
    needs = settings["project"]["optional-dependencies"][extra]
    assert [need for need in needs if need.startswith(package)]

    def needy() -> None:
        raise ModuleNotFoundError("no module", name=f"{package}.part")

    monkeypatch.setitem(cli.COMMANDS, "needy", needy)
    assert cli.main(["needy"]) == 2
    assert f"{package} is missing: `pip install 'uncork[{extra}]'`" in capsys.readouterr().err


def test_an_import_of_something_else_that_fails_is_a_bug(monkeypatch):
    def bug() -> None:
        from uncork.cli import no_such_name  # noqa: F401 # pyright: ignore[reportAttributeAccessIssue]

    monkeypatch.setitem(cli.COMMANDS, "bug", bug)
    with pytest.raises(ImportError, match="no_such_name"):
        cli.main(["bug"])


def test_without_its_extra_the_command_says_how_to_install_it():
    code = (
        "import sys; sys.modules.update(tyro=None, rich=None)\n"
        "from uncork.cli import main; sys.exit(main(['info']))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert answer.returncode == 2
    assert answer.stderr == "uncork: the command line needs `pip install 'uncork[cli]'`.\n"


def test_overrides_may_stand_before_and_after_options(monkeypatch):
    """In both forms of the command. What follows an option that takes a value is that value."""
    from uncork.recipes import __main__ as without_extra

    seen = []
    note = lambda config, folder, resume: seen.append((config.seed, config.epochs, str(folder), resume)) or 0
    monkeypatch.setattr(sys.modules["uncork.cli.train"], "report_training", note)
    monkeypatch.setattr(without_extra, "report_training", note)
    recipe = "embedded_softmax"
    assert cli.main(["train", recipe, "seed=5", "--out", "a=b", "epochs=2", "--resume"]) == 0
    assert cli.main(["train", recipe, "--resume", "seed=5", "--out=a=b", "epochs=2"]) == 0
    assert without_extra.main([recipe, "seed=5", "--out", "a=b", "epochs=2", "--resume"]) == 0
    assert seen == [(5, 2, "a=b", True)] * 3
    for option in ("--no-resume", "--no_resume"):
        assert cli.main(["train", option, recipe, "seed=5", "--out", "a=b", "epochs=2"]) == 0
    assert seen[3:] == [(5, 2, "a=b", False)] * 2


@pytest.mark.parametrize("name", ["", "..", "a/b", "/a"])
def test_a_name_that_would_lead_elsewhere_needs_a_folder(name, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["train", "embedded_softmax", f"name={name}"]) == 2
    assert (
        f"`name` must be that of a folder where --out is not given; got {name!r}" in capsys.readouterr().err
    )
    assert not list(tmp_path.iterdir())


def test_an_option_given_twice_is_refused(capsys):
    """Of two only the last would count."""
    arguments = ["sweep", "embedded_softmax", "--set", "epochs=1", "--set", "seed=2", "--out", "never"]
    assert cli.main(arguments) == 2
    assert "`--set` must be given once; got it 2 times. Put its values together." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["report", "runs", "-o", "a.html", "--output", "b.html"], "-o"),
        (["pack", "run", "-o", "a.pack", "-o", "b.pack"], "-o"),
        (["train", "embedded_softmax", "epochs=1", "--out", "never", "epochs=2"], "epochs"),
    ],
)
def test_nor_may_it_be_given_by_another_name_or_an_override_twice(arguments, name, capsys):
    assert cli.main(arguments) == 2
    assert f"`{name}` must be given once; got it 2 times." in capsys.readouterr().err


def test_a_recipe_that_gives_no_configuration_is_not_shown(capsys):
    assert cli.main(["recipes", "os:getcwd"]) == 2
    out, err = capsys.readouterr()
    assert not out and "`recipe` must return an uncork.lm.Config; 'os:getcwd' returned str." in err
