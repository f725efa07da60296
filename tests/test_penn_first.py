"""What the documentation says of the first runs on Penn, and of a step, is what the committed files say."""

import csv
import json
import math
import re
import statistics

from benchmarks import penn_heads
from tests.documented import ROOT, assert_told, page, table, welch
from tests.test_measured_numbers import Perplexities, after, penn_runs
from uncork.recipes import build


FIRST = ROOT / "results" / "penn-first"
EPOCHS = (10, 20, 30, 40, 41, 50, 60, 70, 75, 80, 81)


def epochs(file: str) -> list[tuple[dict, dict[int, float]]]:
    """The configuration of each run, and its valid perplexity by epoch."""
    runs = [json.loads(line) for line in (FIRST / file).read_text().splitlines()]
    return [(run["config"], {m["epoch"]: m["valid_perplexity"] for m in run["metrics"]}) for run in runs]


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


HEADS = ("penn_softmax", "penn_temperature", "penn_plif", "penn_plif_frozen")
COMPARED = (10, 20, 40, 41, 60, 80, 81, 85, 90, 95, 100, 104)


def heads(name: str) -> dict[str, dict[int, float]]:
    """A perplexity of each of four heads by epoch, "valid_nll" or "train_nll"."""
    runs = [json.loads(line) for line in (FIRST / "heads.jsonl").read_text().splitlines()]
    return {r["config"]["name"]: {m["epoch"]: math.exp(m[name]) for m in r["metrics"]} for r in runs}


def heads_rows() -> list[str]:
    valid, train = heads("valid_nll"), heads("train_nll")
    cell = lambda head, epoch: f"{valid[head][epoch]:.2f} ({train[head][epoch]:.1f})"
    return [f"| {epoch} | {' | '.join(cell(head, epoch) for head in HEADS)} |" for epoch in COMPARED]


def step_rows(day: str) -> list[str]:
    """Milliseconds a step, a row for each recipe."""
    (path,) = (ROOT / "benchmarks" / "results").glob(f"training_*_{day}.csv")
    found: dict[str, dict[str, str]] = {}
    with open(path, newline="") as file:
        for record in csv.DictReader(file):
            found.setdefault(record["recipe"], {})[record["way"]] = record["ms"]
    ways = list(found["penn_softmax"])
    cell = lambda row, way: f"{float(row[way]):.2f}" if row.get(way) else "-"
    return [f"| `{name}` | {' | '.join(cell(row, way) for way in ways)} |" for name, row in found.items()]


def seconds(name: str, file: str) -> list[float]:
    """Of each run the median over the epochs after the others had ended."""
    runs = [json.loads(line)["metrics"] for line in (FIRST / file).read_text().splitlines()]
    return [statistics.median(m[name] for m in run if m["epoch"] > 20) for run in runs]


def test_seconds_of_runs_side_by_side():
    whole, training = seconds("seconds", "averaging.jsonl"), seconds("train_seconds", "heads.jsonl")
    told = [f"three runs side by side at {min(whole):.1f} to {max(whole):.1f} seconds an epoch each"]
    whole = seconds("seconds", "heads.jsonl")
    told += [f"four at {min(whole):.1f} to {max(whole):.1f}"]
    assert_told(told, page("lm-earlier-runs.md"))
    alone = float(step_rows("2026-11-16")[0].split(" | ")[-1].strip(" |"))
    runs = [json.loads(line)["metrics"] for line in (FIRST / "heads.jsonl").read_text().splitlines()]
    steps = [run[-1]["step"] / run[-1]["epoch"] for run in runs]
    ms = 1e3 * statistics.mean(time / number for time, number in zip(training, steps, strict=True))
    told = (
        f"| 1 | - | {alone:.1f} |",
        f"| 4 | {min(training):.1f} to {max(training):.1f} | {ms / len(runs):.1f} |",
    )
    assert_told(told, page("sweep.md"))


def test_steps():
    assert table("lm.md", "training steps") == step_rows("2026-11-16")
    assert table("lm.md", "all ways") == step_rows("2026-11-15")
    batches = [build(recipe).data.batch_size for recipe in ("penn_mos", "penn_softmax")]
    widths = [build(recipe).model.hidden for recipe in ("penn_mos", "penn_softmax")]
    assert widths[0] < widths[1]
    told = ("a batch of {} where the others have {}, and narrower layers".format(*batches),)
    assert_told(told, page("lm.md"))


def test_four_heads():
    assert table("lm-earlier-runs.md", "penn heads") == heads_rows()


def test_the_picture_of_four_heads(tmp_path):
    """Of differences of perplexities, as far as both runs of a pair went."""
    out = tmp_path / "heads.svg"
    assert penn_heads.main(FIRST / "heads.jsonl", out) == 0
    text = out.read_text()
    assert text.startswith("<?xml") and "</svg>" in text
    lines = (FIRST / "heads.jsonl").read_text().splitlines()
    runs = {r["config"]["name"]: r["metrics"] for r in map(json.loads, lines)}
    gaps = penn_heads.behind(runs["penn_plif"], runs["penn_softmax"], "valid_nll")
    valid = heads("valid_nll")
    last = min(max(valid[head]) for head in ("penn_plif", "penn_softmax"))
    assert list(gaps) == list(range(penn_heads.FIRST_EPOCH, last + 1))
    assert gaps[104] == valid["penn_plif"][104] - valid["penn_softmax"][104]


def test_what_is_said_of_four_heads():
    valid, train = heads("valid_nll"), heads("train_nll")
    ahead = lambda head, epoch: valid["penn_softmax"][epoch] - valid[head][epoch]
    leads = [ahead("penn_plif", epoch) for epoch in (80, 81, 90, 104)]
    behind = [-ahead("penn_plif_frozen", epoch) for epoch in (81, 104)]
    gaps = {head: [-ahead(head, epoch) for epoch in (41, 104)] for head in ("penn_plif", "penn_plif_frozen")}
    ended = [json.loads(line)["result"] for line in (FIRST / "heads.jsonl").read_text().splitlines()]
    (result,) = [r for r in ended if r]
    scores = (result["valid_perplexity"], result["test_perplexity"])
    told = (
        "{:.2f} at epoch 80, {:.2f} at 81, {:.2f} at 90 and {:.2f} at 104".format(*leads),
        "{:.2f} behind at epoch 81 and {:.2f} at 104".format(*behind),
        f"{-ahead('penn_temperature', 104):.2f} behind at 104",
        f"rises from {gaps['penn_plif'][0]:.1f} towards 0",
        "falls from {:.1f} to {:.1f} on valid".format(*gaps["penn_plif_frozen"]),
        "a valid perplexity of {:.2f} and a test perplexity of {:.2f}".format(*scores),
    )
    assert_told(told, page("lm-earlier-runs.md"))
    assert all(train["penn_plif"][e] < train["penn_softmax"][e] for e in range(5, 105))
    assert all(train["penn_plif_frozen"][e] > train["penn_softmax"][e] for e in range(5, 105))


def test_precision():
    rows = precision_rows()
    assert table("lm.md", "penn precision") == rows
    # The intervals of float32 minus bfloat16: none leaves out zero.
    ends = {row.split(" | ")[0]: re.findall(r"\((-?[0-9.]+) to (-?[0-9.]+)\)", row)[0] for row in rows}
    assert all(float(low) < 0 < float(high) for low, high in ends.values())
    told = (
        f"{ends['| epoch 8'][1]} in favour of bfloat16 at epoch 8 is not excluded",
        f"neither is {ends['| epoch 10'][0].lstrip('-')} against it at epoch 10",
    )
    assert_told(told, page("lm.md"))


def test_first_look():
    assert table("lm-earlier-runs.md", "penn first") == first_rows()


def test_plif_is_ahead_at_every_epoch_shown():
    cells = [row.split(" | ") for row in first_rows()]
    shown = [(float(row[1]), float(row[3].strip(" |"))) for row in cells if "-" not in (row[1], row[3][:1])]
    assert len(shown) > 5 and all(softmax > plif for softmax, plif in shown)


def test_one_epoch_of_late_averages_is_lower_than_forty_of_early_ones():
    early, late = (row.split(" | ") for row in first_rows()[-2:])
    assert float(late[2]) < float(early[1])
