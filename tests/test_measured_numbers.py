"""Numbers in the documentation are those of the result files, or of the code, they came from."""

import csv
import json
import re
import statistics

import pytest

from tests.documented import ROOT, welch


PENN = ROOT / "results" / "penn-epochs"
PENN_SEEDS = ("141", "142", "143")
CONTENDERS = {
    "softmax": "uncork softmax",
    "PLIF, 100,000 knots": "uncork PLIF k=1e5",
    "monotone network, 10 units": "uncork MonotoneNetwork(10)",
    "mixture of 5 softmaxes": "uncork MoS K=5",
    "mixture of 5 softmaxes, torch eager": "torch eager MoS K=5",
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
        (line,) = [text for text in lines if re.match(rf"\| {re.escape(label)}\s*\|", text) and "x" in text]
        cells = [re.findall(r"\d+\.\d\dx", cell) for cell in line.split("|")[2:4]]
        assert [tuple(cell) for cell in cells] == [found[contender, words] for words in ("10000", "50000")], (
            line
        )


EMBEDDED = {
    "softmax": "softmax",
    "sigsoftmax": "sigsoftmax",
    "learned temperature": "temperature",
    "PLIF from the identity": "plif",
    "PLIF, the authors' start": "plif_authors",
    "PLIF, random and frozen": "plif_frozen",
    "monotone network": "monotone",
    "MoS": "mos",
    "MoS with PLIF, the authors' start": "mos_plif",
}


def test_the_embedded_table_is_that_of_the_committed_runs():
    """Both files of these runs agree, and the table in docs/lm.md is made of them."""
    truth = json.loads((ROOT / "results" / "embedded" / "truth.json").read_text())["runs"]
    lines = (ROOT / "results" / "lm-embedded.jsonl").read_text().splitlines()
    bundle = [json.loads(line) for line in lines]
    perplexities = lambda runs: {(r["name"], r["seed"]): r["test_perplexity"] for r in runs}
    assert perplexities(truth) == perplexities([run["result"] for run in bundle])
    page = (ROOT / "docs" / "lm.md").read_text()
    for label, name in EMBEDDED.items():
        mine = [run for run in truth if run["name"] == f"embedded_{name}"]
        cells = []
        for key, factor, digits in (("test_perplexity", 1, 2), ("kl", 1, 3), ("mode_matching", 100, 1)):
            values = [factor * run[key] for run in mine]
            cells.append(f"{statistics.mean(values):.{digits}f} ± {statistics.stdev(values):.{digits}f}")
        assert f"| {label} | {' | '.join(cells)} |" in page, label
    entropies = {round(run["true_cross_entropy"], 3) for run in truth}
    assert entropies == {3.315} and "3.315 nats" in page


Perplexities = dict[str, dict[int, float]]  # by seed and epoch


def original_runs(section: dict) -> Perplexities:
    return {
        seed: {record["epoch"]: record["valid_perplexity_per_prediction"] for record in records}
        for seed, records in section["seeds"].items()
    }


def penn_runs() -> tuple[Perplexities, Perplexities, Perplexities]:
    """The original, the original with its last rate scaled, and the library."""
    stored = json.loads((PENN / "original.json").read_text())
    library: Perplexities = {}
    for seed in PENN_SEEDS:
        records = json.loads((PENN / f"library-{seed}.json").read_text())["all_epochs"]
        library[seed] = {record["epoch"]: record["valid_perplexity"] for record in records}
    first = json.loads((PENN / "first-epoch.json").read_text())["valid_perplexity"]
    library |= {seed: {1: value} for seed, value in first.items()}
    return original_runs(stored), original_runs(stored["last_window_scaled"]), library


def after(runs: Perplexities, epoch: int, seeds: tuple[str, ...] | None = None) -> list[float]:
    return [runs[seed][epoch] for seed in (seeds or runs) if epoch in runs[seed]]


def penn_table() -> list[str]:
    """The rows of both tables, as they must be printed."""
    original, scaled, library = penn_runs()
    rows = []
    for name, runs in (("original", original), ("this library", library)):
        for seed, values in sorted(runs.items()):
            cells = [f"{values[epoch]:.1f}" if epoch in values else "-" for epoch in (1, 5, 8, 10)]
            rows.append(f"| {name} | {seed} | {' | '.join(cells)} |")
    same = tuple(sorted(original))
    for label, theirs, ours in (
        ("epoch 1", after(original, 1), after(library, 1)),
        ("epoch 1, seeds 141 to 146", after(original, 1), after(library, 1, same)),
        ("epoch 1, last rate of the original scaled", after(scaled, 1), after(library, 1)),
        *((f"epoch {epoch}", after(original, epoch), after(library, epoch)) for epoch in (2, 5, 10)),
    ):
        spreads = [
            f"{statistics.mean(values):.1f} ± {statistics.stdev(values):.1f} ({len(values)})"
            for values in (theirs, ours)
        ]
        p, low, high = welch(theirs, ours)
        difference = f"{statistics.mean(theirs) - statistics.mean(ours):.1f} ({low:.1f} to {high:.1f})"
        rows.append(f"| {label} | {' | '.join(spreads)} | {difference} | {p:.2g} |")
    return rows


def penn_phrases() -> list[str]:
    """What the text around the tables must say."""
    original, scaled, library = penn_runs()
    stored = json.loads((PENN / "original.json").read_text())["seeds"]["141"][0]
    first = json.loads((PENN / "first-epoch.json").read_text())
    means = [statistics.mean(after(runs, 1)) for runs in (original, scaled, library)]
    deviations = [statistics.stdev(after(runs, 1)) for runs in (original, scaled)]
    shared = tuple(seed for seed in original if seed in scaled)
    moves = [f"{scaled[seed][1] - original[seed][1]:+.0f}" for seed in shared]
    assert shared == ("141", "142", "143", "144") and scaled.keys() - original.keys() == {"151", "152"}
    late = min(welch(after(original, epoch), after(library, epoch))[0] for epoch in range(3, 11))
    with_kernel, with_reference = (
        " and ".join(f"{first[name][seed]:.1f}" for seed in ("151", "152"))
        for name in ("valid_perplexity", "valid_perplexity_reference_backend")
    )
    return [
        f"prints {stored['valid_perplexity']:.1f} where the table has {original['141'][1]:.1f}",
        f"({original['141'][9]:.1f} the epoch before)",
        f"lower by {100.0 * (1.0 - means[2] / means[0]):.0f} %",
        f"gave p = {welch(after(original, 1, PENN_SEEDS), after(library, 1, PENN_SEEDS))[0]:.2g};",
        f"with all of them it is {welch(after(original, 1), after(library, 1))[0]:.2g}",
        f"(smallest p = {late:.2g})",
        f"move by {', '.join(moves[:-1])} and {moves[-1]} after epoch 1",
        f"the mean falls from {means[0]:.1f} to {means[1]:.1f}",
        f"the standard deviation from {deviations[0]:.1f} to {deviations[1]:.1f}",
        f"at {with_kernel} with the default backend",
        f"at {with_reference} with the reference backend",
    ]


def test_the_first_epochs_on_penn_are_those_of_the_files():
    section = (ROOT / "docs" / "lm-agreement.md").read_text()
    tables = section.split("<!-- penn epochs -->")[1].split("<!-- end of penn epochs -->")[0]
    stated = [line for line in tables.splitlines() if re.match(r"\| (original|this library|epoch \d)", line)]
    assert stated == penn_table()
    words = " ".join(section.split())
    for phrase in penn_phrases():
        assert phrase in words, phrase


def test_the_two_perplexities_of_the_original_are_one_loss():
    """It prints the sum of the loss over 7376 positions, of which 7375 are predictions."""
    stored = json.loads((PENN / "original.json").read_text())
    for section in (stored, stored["last_window_scaled"]):
        for records in section["seeds"].values():
            for record in records:
                own = record["valid_perplexity"] ** (7376 / 7375)
                assert record["valid_perplexity_per_prediction"] == pytest.approx(own, rel=2e-5)
