"""`python -m benchmarks <what>`: one subcommand per kind of hardware, and those that present the results."""

import argparse
import sys
from pathlib import Path
from typing import Any


RESULTS = Path(__file__).with_name("results")
README = Path(__file__).parents[1] / "README.md"
PAGES = (README, *(README.parent / "docs" / name for name in ("speed.md", "kernels.md")))


def main(arguments: list[str] | None = None) -> int:
    """Run what the command line names; 1 if a correctness gate is red."""
    chosen = _parser().parse_args(arguments)
    if chosen.command == "gpu":
        from benchmarks import gpu

        options = gpu.Options(
            groups=tuple(chosen.groups or gpu.Options().groups),
            device=chosen.device,
            tiny=chosen.tiny,
            seconds=chosen.seconds,
            commit=chosen.commit,
            name=chosen.name,
            spreads=tuple(chosen.spreads),
            modes=tuple(chosen.modes),
            leave_out=tuple(chosen.leave_out),
        )
        return gpu.run(options, chosen.out)
    if chosen.command == "training":
        from benchmarks import training

        return training.run(
            recipes=tuple(chosen.recipes or training.RECIPES),
            ways=tuple(chosen.ways or training.WAYS),
            device=chosen.device,
            tiny=chosen.tiny,
            seconds=chosen.seconds,
            commit=chosen.commit,
            out=chosen.out,
        )
    if chosen.command in ("counters", "once"):
        from benchmarks import counters

        if chosen.command == "counters":
            return counters.run(chosen.commit, chosen.out)
        return counters.once(chosen.shape, chosen.tokens, chosen.contender, chosen.dtype, chosen.spread)
    if chosen.command == "plots":
        from benchmarks import plots

        return plots.run(chosen.csv)
    if chosen.command == "docs":
        from benchmarks import docs

        return docs.run(chosen.results, chosen.pages)

    from benchmarks import cpu

    if chosen.command == "memory":
        return cpu.print_peak_memory(chosen.contender, tuple(chosen.sizes))
    return cpu.run(chosen.quick, chosen.rounds, chosen.out)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    _add_measurements(commands)
    _add_processes(commands)
    _add_presentations(commands)
    return parser


def _shared(*options: str) -> list[argparse.ArgumentParser]:
    """What several subcommands take, as the parent of their parsers."""
    parent = argparse.ArgumentParser(add_help=False)
    if "out" in options:
        parent.add_argument(
            "--out", type=Path, default=RESULTS, help="folder for the CSV and the Markdown file"
        )
    if "commit" in options:
        parent.add_argument("--commit", help="the commit measured, where there is no git to ask")
    if "device" in options:
        parent.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
        parent.add_argument("--tiny", action="store_true", help="tiny sizes: does it run at all?")
    return [parent]


def _add_measurements(commands: Any) -> None:
    """What is run to measure."""
    cpu = commands.add_parser(
        "cpu", help="losses of output layers on CPU, against torch's own", parents=_shared("out")
    )
    cpu.add_argument("--quick", action="store_true", help="tiny sizes and few rounds: does it run at all?")
    cpu.add_argument("--rounds", type=int, default=None, help="timed rounds, each of every contender in turn")
    gpu = commands.add_parser(
        "gpu",
        help="the same on a GPU, against torch and other libraries",
        parents=_shared("out", "commit", "device"),
    )
    gpu.add_argument("--groups", nargs="+", choices=GROUPS, help="what to measure; all of them unless told")
    gpu.add_argument("--seconds", type=float, default=60.0, help="time for each group, 60 unless told")
    gpu.add_argument("--spreads", nargs="+", type=float, choices=SPREADS, default=SPREADS, help="of logits")
    gpu.add_argument(
        "--modes", nargs="+", choices=MODES, default=MODES, help="ways of calling; all unless told"
    )
    gpu.add_argument(
        "--leave-out", nargs="+", default=(), metavar="NAME", help='contenders, such as "CCE exact"'
    )
    gpu.add_argument("--name", help="of the files, without ending; rows are added to a CSV that is there")
    training = commands.add_parser(
        "training",
        help="whole training steps of the language models",
        parents=_shared("out", "commit", "device"),
    )
    training.add_argument("--recipes", nargs="+", help="which; Penn's softmax, PLIF and MoS unless told")
    training.add_argument("--ways", nargs="+", help='such as "plain torch"; all unless told')
    training.add_argument("--seconds", type=float, default=3.0, help="time for each row, 3 unless told")
    commands.add_parser(
        "counters", help="what bounds the kernels of a loss; needs ncu", parents=_shared("out", "commit")
    )


def _add_processes(commands: Any) -> None:
    """What the measurements start as processes of their own."""
    memory = commands.add_parser("memory", help="peak memory of one contender: what `cpu` runs as a process")
    memory.add_argument("contender")
    memory.add_argument("sizes", type=int, nargs=3, help="tokens, width and words")
    once = commands.add_parser("once", help="one step of a loss: what `counters` profiles as a process")
    kinds = {"shape": str, "tokens": int, "contender": str, "dtype": str, "spread": float}
    for name, kind in kinds.items():
        once.add_argument(name, type=kind)


def _add_presentations(commands: Any) -> None:
    """What makes figures and pages of the results."""
    plots = commands.add_parser("plots", help="figures of a GPU benchmark's CSV, and its page with them")
    plots.add_argument("csv", type=Path)
    docs = commands.add_parser("docs", help="the newest GPU benchmark into its pages and the README")
    docs.add_argument("--results", type=Path, default=RESULTS, help="folder with the CSV")
    docs.add_argument("--pages", type=Path, nargs="+", default=PAGES, help="the Markdown files to fill")


# Written out, so that asking for help does not import torch; a test compares them with `benchmarks.groups`.
GROUPS = ("large", "wide", "penn", "wikitext2", "scaling", "deterministic")
SPREADS = (0.3, 3.5)
MODES = ("calls", "CUDA graph", "graphed calls")


if __name__ == "__main__":
    sys.exit(main())
