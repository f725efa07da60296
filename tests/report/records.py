"""Made-up results whose story is known, so that sentences can be checked against it."""

from uncork.results import write_json


BASE = {"softmax": 1.0, "temperature": 1.0, "sigsoftmax": 1.02, "mos": 0.9, "monotone": 0.7, "plif": 0.6}
STEP = {"x": [0.0, 1.0, 2.0, 3.0], "f": [0.0, 0.0, 5.0, 5.0], "slope": [0.0, 5.0, 5.0, 0.0]}


def record(head, width, seed=0, vocabulary=100, concentration=0.1, kl=None, modes=None, **changes):
    """A cell's record: the KL falls with width, the head's base and a little noise by seed."""
    value = BASE[head] * 2 / width + 0.001 * seed if kl is None else kl
    values = {
        "kind": "synthetic-cell",
        "cell": {
            "vocabulary": vocabulary,
            "width": width,
            "concentration": concentration,
            "contexts": 1000,
            "head": head,
            "seed": seed,
        },
        "settings": {
            "rates": [0.1, 0.3],
            "trial_contexts": 500,
            "tolerance": 1e-3,
            "patience": 4,
            "decays": 4,
            "max_passes": 300,
            "components": 4,
            "units": 20,
            "knots": 100,
        },
        "metrics": {
            "kl": value,
            "mode_matching": 100 - 50 * value if modes is None else modes,
            "cross_entropy": value + 2,
            "entropy_floor": 2.0,
        },
        "certified": None,
        "function": None,
        "rank": {"shape": [256, vocabulary], "press": width + 1, "effective": {"1e-05": width}},
        "search": [{"rate": 0.1, "kl": value}],
        "rate": 0.1,
        "stopped": "converged",
        "passes": 40,
        "history": [value],
        "parameters": {"words": vocabulary * width, "beside_words": 0, "contexts": 1000 * width},
        "fit_seconds": 1.0,
        "seconds": 1.2,
        "provenance": {
            "uncork": "0",
            "commit": "abc",
            "torch": "2",
            "python": "3",
            "hardware": "a machine",
            "started": "now",
        },
    }
    if head == "softmax":
        values["certified"] = {
            "contexts": 256,
            "kl_reached": value,
            "kl_optimum": 0.99 * value,
            "kl_lower_bound": 0.98 * value,
            "largest_gap": 1e-7,
        }
    if head in ("monotone", "plif"):
        statistics = {"mean": 1.5, "std": 2.0, "min": 0.0, "max": 5.0}
        values["function"] = {**STEP, "slope_statistics": statistics}
    return {**values, **changes}


def grid(seeds=(0, 1), vocabularies=(100, 1000), widths=(2, 4, 8), concentrations=(0.01, 0.1)):
    return [
        record(head, width, seed, vocabulary, concentration)
        for seed in seeds
        for vocabulary in vocabularies
        for concentration in concentrations
        for width in widths
        for head in BASE
    ]


THEORY = {
    "kind": "theory",
    "seed": 0,
    "provenance": {},
    "rows": [
        {
            "statement": "Theorem <1>",
            "computed": "something",
            "left": 2.0,
            "relation": ">=",
            "right": 1.0,
            "holds": True,
            "as_printed_false": False,
            "as_expected": True,
        },
        {
            "statement": "Theorem 1 as printed",
            "computed": "something",
            "left": 1.0,
            "relation": ">=",
            "right": 2.0,
            "holds": False,
            "as_printed_false": True,
            "as_expected": True,
        },
    ],
}


def write_runs(folder, records=None):
    """A folder as the commands leave it."""
    for i, value in enumerate(grid() if records is None else records):
        write_json(folder / "synthetic" / "cells" / f"{i}.json", value)
    write_json(folder / "synthetic" / "config.json", {"kind": "synthetic"})
    write_json(folder / "theory.json", THEORY)
    return folder
