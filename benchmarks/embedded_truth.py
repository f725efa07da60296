"""Runs on the embedded corpus against the process its text was drawn from, which is known.

`python benchmarks/embedded_truth.py runs/embedded --out results` reads finished run folders and writes
`embedded/truth.json`: for each run its test perplexity, the KL divergence from the true distributions over
the test text, and how often the likeliest word is the true one.
"""

import argparse
from pathlib import Path
from typing import Any

from uncork.lm import load_run
from uncork.lm.build import EMBEDDED_SEED
from uncork.lm.embedded import compare, make_corpus, make_process
from uncork.results import find_runs, provenance, read_json, write_json


def measure(folder: Path) -> dict[str, Any]:
    """One run's record; its text must be the whole embedded corpus."""
    process = make_process(seed=EMBEDDED_SEED)
    model, config, _ = load_run(folder)
    if config.data.corpus != "embedded" or config.data.limit_tokens is not None:
        raise ValueError(f"`runs` must be of the whole embedded corpus; `{folder}` is not.")
    found = compare(model, process, make_corpus(process).test)
    result = read_json(folder / "result.json")
    return {
        "name": config.name,
        "seed": config.seed,
        "test_perplexity": result["test_perplexity"],
        "true_cross_entropy": found.true_cross_entropy,
        "kl": found.kl,
        "mode_matching": found.mode_matching,
        "run": read_json(folder / "provenance.json"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path, help="folder of finished runs")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    records = [measure(folder) for folder in find_runs(options.runs)]
    records.sort(key=lambda record: (record["name"], record["seed"]))
    write_json(options.out / "embedded" / "truth.json", {"provenance": provenance(), "runs": records})
    for record in records:
        print(
            f"{record['name']} {record['seed']}: KL {record['kl']:.3f}, modes {record['mode_matching']:.1%}"
        )


if __name__ == "__main__":
    main()
