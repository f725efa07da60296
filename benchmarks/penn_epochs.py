"""Validation perplexity of the first epochs on Penn, for comparison with the reference.

    PYTHONPATH=src python benchmarks/penn_epochs.py --data data/penn --out results

Each seed is a process of its own on the same accelerator. The first seed must finish: when it
would not within `--minutes`, seeds are stopped from the last on. Writes one `penn-<recipe>-<seed>.json`
per seed with the perplexity after epochs 1, 5 and 10, whatever was reached. `--out` also gets logs.
Runs of the reference itself, to compare with, are in `results/penn-epochs/original.json`.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from uncork.results import provenance, read_json, read_jsonl, write_json


REPORTED_EPOCHS = (1, 5, 10)
# The reference implementation's own runs, epoch by epoch; compare with its perplexity per prediction.
REFERENCE = "results/penn-epochs/original.json"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with train, valid and test.txt")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--recipe", default="penn_softmax_reference")
    parser.add_argument("--seeds", type=int, nargs="+", default=[141, 142, 143])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--minutes", type=float, default=4.0)
    parser.add_argument("overrides", nargs="*")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as runs:
        children = {seed: start(options, seed, Path(runs)) for seed in options.seeds}
        watch(children, Path(runs), options)
        for seed in options.seeds:
            collect(Path(runs) / str(seed), options, seed)
    codes = {seed: child.returncode for seed, child in children.items()}
    print(f"exit codes {codes}", flush=True)
    return 0 if codes[options.seeds[0]] == 0 else 1


def start(options: argparse.Namespace, seed: int, runs: Path) -> subprocess.Popen[bytes]:
    command = [
        sys.executable, "-m", "uncork.recipes", options.recipe, f"seed={seed}", f"epochs={options.epochs}",
        f"data.corpus={options.data.resolve()}", *options.overrides, "--out", str(runs / str(seed)),
    ]  # fmt: skip
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    with open(options.out / f"log-{seed}.txt", "wb") as log:  # the child keeps its own handle
        return subprocess.Popen(command, stdout=log, stderr=log, env=environment)


def watch(children: dict[int, subprocess.Popen[bytes]], runs: Path, options: argparse.Namespace) -> None:
    """Wait for all; give up the last seed while the first would not finish in time."""
    deadline = time.monotonic() + 60.0 * options.minutes
    first, *others = options.seeds
    seen = 0
    while any(child.poll() is None for child in children.values()):
        time.sleep(1.0)
        records = metrics(runs / str(first))
        if len(records) > max(seen, 1):
            seen = len(records)
            left = (options.epochs - seen) * records[-1]["seconds"]
            if others and time.monotonic() + left > deadline:
                children[others.pop()].send_signal(signal.SIGTERM)
        if time.monotonic() > deadline:
            for child in children.values():
                if child.poll() is None:
                    child.send_signal(signal.SIGTERM)
            for child in children.values():
                child.wait(timeout=60)


def metrics(run: Path) -> list[dict]:
    path = run / "metrics.jsonl"
    return list(read_jsonl(path)) if path.exists() else []


def collect(run: Path, options: argparse.Namespace, seed: int) -> None:
    records = metrics(run)
    result = {
        "recipe": options.recipe,
        "seed": seed,
        "overrides": options.overrides,
        "valid_perplexity": {
            str(r["epoch"]): r["valid_perplexity"] for r in records if r["epoch"] in REPORTED_EPOCHS
        },
        "all_epochs": [{n: r[n] for n in ("epoch", "step", "train_nll", "valid_perplexity", "train_seconds")}
                       for r in records],
        "reference": REFERENCE,
        "provenance": provenance(),
    }  # fmt: skip
    if (run / "result.json").exists():
        result["result"] = read_json(run / "result.json")
    write_json(options.out / f"penn-{options.recipe}-{seed}.json", result)
    print(seed, result["valid_perplexity"], flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
