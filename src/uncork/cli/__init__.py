"""The `uncork` command: one file per subcommand, listed once in `COMMANDS`."""

import sys
from collections.abc import Callable
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


def main(arguments: list[str] | None = None) -> int:
    """Run one subcommand; bad input ends in one line on stderr and exit code 2."""
    try:
        from tyro.extras import subcommand_cli_from_dict
    except ImportError:
        print("uncork: the command line needs `pip install 'uncork[cli]'`.", file=sys.stderr)
        return 2
    try:
        return subcommand_cli_from_dict(COMMANDS, args=arguments, prog="uncork") or 0
    except (ValueError, TypeError, OSError) as error:
        print(f"uncork: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("uncork: interrupted.", file=sys.stderr)
        return 130
