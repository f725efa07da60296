"""The `uncork` command: one file per subcommand, listed once in `COMMANDS`."""

import sys
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from uncork.cli.bundle import bundle
from uncork.cli.corpus import corpus
from uncork.cli.demo import demo
from uncork.cli.evaluate import evaluate
from uncork.cli.generate import generate
from uncork.cli.info import info
from uncork.cli.pack import pack
from uncork.cli.recipes import recipes
from uncork.cli.report import report
from uncork.cli.sweep import sweep
from uncork.cli.synthetic import synthetic
from uncork.cli.theory import theory
from uncork.cli.train import train
from uncork.cli.unpack import unpack
from uncork.recipes.front import exit_code


COMMANDS: dict[str, Callable[..., Any]] = {
    "bundle": bundle,
    "corpus": corpus,
    "demo": demo,
    "evaluate": evaluate,
    "generate": generate,
    "info": info,
    "pack": pack,
    "recipes": recipes,
    "report": report,
    "sweep": sweep,
    "synthetic": synthetic,
    "theory": theory,
    "train": train,
    "unpack": unpack,
}


# Commands that take overrides, and those of their options that take no value.
OVERRIDDEN, FLAGS = ("evaluate", "train"), ("--help", "--no-resume", "--resume")
# What one option is also called.
SAME = {"-o": "--out", "--output": "--out"}
# The extra that has each package which a command may turn out to need.
EXTRAS = {"jinja2": "report", "matplotlib": "report", "rich": "cli", "scipy": "theory"}


def main(arguments: list[str] | None = None) -> int:
    """Run one subcommand; bad input or a missing package ends in one line on stderr and exit code 2."""
    try:
        from tyro.extras import subcommand_cli_from_dict
    except ImportError:
        print("uncork: the command line needs `pip install 'uncork[cli]'`.", file=sys.stderr)
        return 2
    given = sys.argv[1:] if arguments is None else arguments

    def run() -> int:
        _refuse_repetition(given)
        return subcommand_cli_from_dict(COMMANDS, args=_overrides_first(given), prog="uncork") or 0

    try:
        return exit_code(run)
    except ImportError as error:
        package = _missing(error)
        if package is None:  # a bug, not something to install
            raise
        print(f"uncork: {package} is missing: `pip install 'uncork[{EXTRAS[package]}]'`.", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("uncork: interrupted.", file=sys.stderr)
        return 130


def _refuse_repetition(arguments: list[str]) -> None:
    """Of an option given twice only the last would count, and the wrong experiment be run."""
    overridden = bool(arguments) and arguments[0] in OVERRIDDEN
    given = []
    for name, equals, _ in (argument.partition("=") for argument in arguments):
        if name.startswith("--") or name in SAME or (overridden and equals):
            given.append(name)
    meant = [SAME.get(name, name) for name in given]
    for name, same in zip(given, meant, strict=True):
        if meant.count(same) > 1:
            raise ValueError(
                f"`{name}` must be given once; got it {meant.count(same)} times. Put its values together."
            )


def _overrides_first(arguments: list[str]) -> list[str]:
    """Overrides may stand before and after options; tyro takes them from one place alone."""
    if not arguments or arguments[0] not in OVERRIDDEN:
        return arguments
    words, options = [], []
    for before, argument in pairwise(arguments):
        is_value = before.startswith("--") and "=" not in before and before.replace("_", "-") not in FLAGS
        (options if is_value or argument.startswith("-") else words).append(argument)
    return [arguments[0], *words, *options]


def _missing(error: BaseException | None) -> str | None:
    """The package of an extra that could not be imported, by the error or by what caused it."""
    while error is not None:
        package = (getattr(error, "name", None) or "").partition(".")[0]
        if isinstance(error, ImportError) and package in EXTRAS:
            return package
        error = error.__cause__
    return None
