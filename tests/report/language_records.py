"""Made-up language-model runs whose story is known, as bundle lines and as run folders."""

from uncork.lm.config_io import to_dict
from uncork.recipes import build
from uncork.recipes.command import overrides
from uncork.report.language.runs import Run
from uncork.report.language.trials import trials
from uncork.results import RUN_KIND, append_jsonl, write_json


# Mean test perplexity: the function from the identity beats every control, the authors' one does not.
TEST = {
    "softmax": 60.0,
    "temperature": 60.05,
    "plif": 58.0,
    "plif_authors": 59.9,
    "plif_frozen": 59.95,
    "mos": 56.0,
}
LEARNED = {
    "x": [-2.0, 0.0, 2.0],
    "f": [-3.0, 0.0, 1.0],
    "slope": [1.5, 1.5, 0.5],
    "logits": {"sampled": 9, "quantiles": {"0": -2.0, "0.5": 0.0, "1": 2.0}, "outside_bound": 0.0},
    "slopes": {
        "over_knots": {"mean": 1.25, "std": 0.4, "min": 0.5, "max": 1.75},
        "at_logits": {"mean": 1.125, "std": 0.25, "min": 0.5, "max": 1.5},
    },
    "moved": {"f": 1.0, "slope_over_knots": 0.31, "slope_at_logits": 0.42},
}


def run(recipe, seed, test, changes=(), epochs=6, done=None, **result):
    """A line of a bundle; without all of its epochs it has no result. Perplexities fall to `test` + 2."""
    config = to_dict(build(recipe, (f"seed={seed}", f"epochs={epochs}", *changes)))
    lines = [
        {
            "epoch": epoch,
            "step": 100 * epoch,
            "averaging": epoch > 3,
            "train_nll": 4.0,
            "valid_nll": 4.0 + 0.1 * (epochs - epoch),
            "valid_perplexity": test + 2.0 + 10.0 * (epochs - epoch),
            "train_seconds": 10.0 if epoch > 1 else 99.0,
            "seconds": 11.0,
        }
        for epoch in range(1, (epochs if done is None else done) + 1)
    ]
    values = {"kind": "language_model", "name": recipe, "seed": seed, "parameters": 24_221_600}
    values |= {
        "steps": 100 * epochs,
        "epochs": epochs,
        "valid_perplexity": test + 2.0,
        "test_perplexity": test,
    }
    provenance = {
        "uncork": "0",
        "commit": "abc",
        "torch": "2",
        "python": "3",
        "hardware": "a machine",
        "started": f"2026-01-0{seed % 10}T00:00:00+00:00",
    }
    return {
        "kind": RUN_KIND,
        "config": config,
        "overrides": overrides(config),
        "metrics": lines,
        "provenance": provenance,
        "result": None if done is not None else values | result,
    }


def story(corpus="penn", seeds=(1, 2, 3)):
    """Every head with noise of 0.1 around its mean."""
    return [
        run(
            f"{corpus}_{head}",
            seed,
            test + 0.1 * (seed - 2),
            learned_function=LEARNED if head in ("plif", "plif_authors") else None,
        )
        for seed in seeds
        for head, test in TEST.items()
    ]


def write_folder(folder, record):
    """The files a run leaves, with some that a report must pass over."""
    write_json(folder / "config.json", record["config"])
    write_json(folder / "provenance.json", record["provenance"])
    write_json(folder / "words.json", ["the", "of"])
    write_json(folder / "state" / "facts.json", {"step": 3})
    for line in record["metrics"]:
        append_jsonl(folder / "metrics.jsonl", line)
    if record["result"]:
        write_json(folder / "result.json", record["result"])
    return folder


def of(*records):
    return [Run.of(record) for record in records]


def only(*records):
    (trial,) = trials(of(*records))
    return trial


def arm(trial, role):
    (found,) = [arm for arm in trial.arms if arm.role == role]
    return found


def cells(table, first):
    (row,) = [row for row in table.rows if row[0][0] == first]
    return dict(zip(table.columns, (text for text, _ in row), strict=True))
