"""Numbers in the documentation are those of the result files they came from."""

import csv
import json
import re
from pathlib import Path


ROOT = Path(__file__).parents[1]
CONTENDERS = {
    "softmax": "uncork softmax",
    "PLIF, 100,000 knots": "uncork PLIF k=1e5",
    "monotone network, 10 units": "uncork MonotoneNetwork(10)",
    "mixture of 5 softmaxes": "uncork MoS K=5",
}


def measured() -> dict[tuple[str, str], tuple[str, str]]:
    """Time and memory against eager, as printed, by contender and number of words; the newest CPU file."""
    newest = sorted((ROOT / "benchmarks" / "results").glob("cpu_*.csv"))[-1]
    rows = list(csv.DictReader(newest.read_text().splitlines()))
    eager = {row["words"]: float(row["peak_bytes"]) for row in rows if row["contender"] == "torch eager"}
    return {
        (row["contender"], row["words"]): (
            f"{float(row['wall_ratio']):.2f}x",
            f"{float(row['peak_bytes']) / eager[row['words']]:.2f}x",
        )
        for row in rows
    }


def test_the_readme_states_the_newest_cpu_benchmark():
    found = measured()
    lines = (ROOT / "README.md").read_text().splitlines()
    for label, contender in CONTENDERS.items():
        (line,) = [
            text for text in lines if re.match(rf"\| {re.escape(label)}( \(|\s*\|)", text) and "x" in text
        ]
        cells = [re.findall(r"\d+\.\d\dx", cell) for cell in line.split("|")[2:4]]
        assert [tuple(cell) for cell in cells] == [found[contender, words] for words in ("10000", "50000")], (
            line
        )


def test_the_first_epochs_on_penn_are_those_of_the_files():
    folder = ROOT / "results" / "penn-epochs"
    rewrite = json.loads((folder / "reference-loop.json").read_text())["seeds"]
    expected = {
        ("rewrite of the reference's training loop", seed): epochs for seed, epochs in rewrite.items()
    }
    for seed in ("141", "142", "143"):
        library = json.loads((folder / f"library-{seed}.json").read_text())["all_epochs"]
        expected["this library", seed] = library
    text = (ROOT / "docs" / "lm.md").read_text()
    table = text.split("<!-- penn epochs -->")[1].split("<!-- end of penn epochs -->")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines() if "| 14" in line]
    stated = {(row[0], row[1]): row[2:] for row in rows if not row[0].startswith("original")}
    assert stated.keys() == expected.keys()
    for key, epochs in expected.items():
        by_epoch = {record["epoch"]: f"{record['valid_perplexity']:.1f}" for record in epochs}
        assert stated[key] == [by_epoch.get(epoch, "-") for epoch in (1, 5, 8, 10)], key
