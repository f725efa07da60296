"""What the documentation says of the first runs on Penn, and of a step, is what the committed files say."""

import csv
import json
import statistics

from tests.test_measured_numbers import ROOT, Perplexities, after, penn_runs, welch


FIRST = ROOT / "results" / "penn-first"
EPOCHS = (10, 20, 30, 40, 41, 50, 60, 70, 75, 80, 81)


def epochs(file: str) -> list[tuple[dict, dict[int, float]]]:
    """The configuration of each run, and its valid perplexity by epoch."""
    runs = [json.loads(line) for line in (FIRST / file).read_text().splitlines()]
    return [(run["config"], {m["epoch"]: m["valid_perplexity"] for m in run["metrics"]}) for run in runs]


def table(page: str, name: str) -> list[str]:
    """The rows between two comments, without their heading."""
    text = (ROOT / "docs" / page).read_text()
    part = text.split(f"<!-- {name} -->")[1].split(f"<!-- end of {name} -->")[0]
    return [line for line in part.splitlines() if line.startswith("|")][2:]


def precision_rows() -> list[str]:
    _, _, full = penn_runs()
    half: Perplexities = {str(config["seed"]): values for config, values in epochs("bfloat16.jsonl")}
    rows = []
    for epoch in (1, 2, 5, 8, 10):
        both = after(full, epoch), after(half, epoch)
        cells = [f"{statistics.mean(x):.1f} ± {statistics.stdev(x):.1f} ({len(x)})" for x in both]
        p, low, high = welch(*both)
        difference = statistics.mean(both[0]) - statistics.mean(both[1])
        rows.append(
            f"| epoch {epoch} | {' | '.join(cells)} | {difference:.1f} ({low:.1f} to {high:.1f}) | {p:.2g} |"
        )
    return rows


def first_rows() -> list[str]:
    runs = {(c["name"], c["optim"]["average_epoch"]): values for c, values in epochs("averaging.jsonl")}
    columns = [runs[key] for key in (("penn_softmax", 40), ("penn_softmax", 80), ("penn_plif", 40))]
    rows = []
    for epoch in EPOCHS:
        cells = [f"{values[epoch]:.2f}" if epoch in values else "-" for values in columns]
        rows.append(f"| {epoch} | {' | '.join(cells)} |")
    return rows


def step_rows() -> list[str]:
    """Milliseconds a step, a row for each recipe."""
    (path,) = (ROOT / "benchmarks" / "results").glob("training_*.csv")
    found: dict[str, dict[str, str]] = {}
    with open(path, newline="") as file:
        for record in csv.DictReader(file):
            found.setdefault(record["recipe"], {})[record["way"]] = record["ms"]
    ways = list(found["penn_softmax"])
    cell = lambda row, way: f"{float(row[way]):.2f}" if row.get(way) else "-"
    return [f"| `{name}` | {' | '.join(cell(row, way) for way in ways)} |" for name, row in found.items()]


def seconds(name: str) -> list[float]:
    """Of each run the median over the epochs after the others had ended."""
    runs = [json.loads(line)["metrics"] for line in (FIRST / "averaging.jsonl").read_text().splitlines()]
    return [statistics.median(m[name] for m in run if m["epoch"] > 20) for run in runs]


def test_seconds_of_runs_side_by_side():
    whole, training = seconds("seconds"), seconds("train_seconds")
    page = (ROOT / "docs" / "lm-results.md").read_text()
    assert f"at {min(whole):.1f} to {max(whole):.1f} seconds an epoch each" in page
    page = " ".join((ROOT / "docs" / "sweep.md").read_text().split())
    assert f"trained at {min(training):.1f} to {max(training):.1f} s an epoch each" in page
    assert f"a run alone takes {float(step_rows()[0].split(' | ')[-1].strip(' |')):.1f} ms a step" in page


def test_steps():
    assert table("lm.md", "training steps") == step_rows()


def test_precision():
    assert table("lm.md", "penn precision") == precision_rows()


def test_first_look():
    assert table("lm-results.md", "penn first") == first_rows()


def test_plif_is_ahead_at_every_epoch_shown():
    cells = [row.split(" | ") for row in first_rows()]
    shown = [(float(row[1]), float(row[3].strip(" |"))) for row in cells if "-" not in (row[1], row[3][:1])]
    assert len(shown) > 5 and all(softmax > plif for softmax, plif in shown)


def test_one_epoch_of_late_averages_is_lower_than_forty_of_early_ones():
    early, late = (row.split(" | ") for row in first_rows()[-2:])
    assert float(late[2]) < float(early[1])
