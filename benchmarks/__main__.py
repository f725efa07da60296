"""`python -m benchmarks <what>`: one subcommand per kind of hardware."""

import argparse
import sys
from pathlib import Path


RESULTS = Path(__file__).with_name("results")


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark named on the command line; 1 if its correctness gate is red."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    cpu = commands.add_parser("cpu", help="losses of output layers on CPU, against torch's own")
    cpu.add_argument("--quick", action="store_true", help="tiny sizes and few rounds: does it run at all?")
    cpu.add_argument("--rounds", type=int, default=None, help="timed rounds, each of every contender in turn")
    cpu.add_argument("--out", type=Path, default=RESULTS, help="folder for the CSV and the Markdown file")
    memory = commands.add_parser("memory", help="peak memory of one contender: what `cpu` runs as a process")
    memory.add_argument("contender")
    memory.add_argument("sizes", type=int, nargs=3, metavar=("N", "D", "V"))
    chosen = parser.parse_args(arguments)

    from benchmarks import cpu as on_cpu

    if chosen.command == "memory":
        return on_cpu.print_peak_memory(chosen.contender, tuple(chosen.sizes))
    return on_cpu.run(chosen.quick, chosen.rounds, chosen.out)


if __name__ == "__main__":
    sys.exit(main())
