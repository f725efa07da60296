"""The public names and their arguments: changing one is a decision, recorded here."""

import inspect
from types import ModuleType
from typing import Any

import pytest

import uncork
import uncork.functions
import uncork.heads


PUBLIC = {
    uncork: {
        "chunk_bytes",
        "detect_nonfinite",
        "linear_cross_entropy",
        "mixture_cross_entropy",
    },
    uncork.functions: {
        "AbstractMonotone",
        "GeneralizedSigSoftmax",
        "Identity",
        "MonotoneNetwork",
        "PLIF",
        "Scale",
        "SigSoftmax",
        "SoftCap",
        "Tabulated",
    },
    uncork.heads: {"AbstractHead", "MixtureHead", "MonotonicHead", "SoftmaxHead"},
}

LOSS_KEYWORDS = [
    "linear_bias",
    "function",
    "weight",
    "reduction",
    "ignore_index",
    "label_smoothing",
    "z_loss",
    "backend",
]

ARGUMENTS = {
    uncork.linear_cross_entropy: ["input", "linear_weight", "target", *LOSS_KEYWORDS],
    uncork.mixture_cross_entropy: ["latent", "log_prior", "linear_weight", "target", *LOSS_KEYWORDS],
    uncork.functions.Identity: [],
    uncork.functions.Scale: ["init", "device", "dtype"],
    uncork.functions.SigSoftmax: [],
    uncork.functions.GeneralizedSigSoftmax: ["shift", "steepness"],
    uncork.functions.SoftCap: ["cap"],
    uncork.functions.PLIF: ["knots", "bound", "init", "seed", "device", "dtype"],
    uncork.functions.MonotoneNetwork: [
        "units",
        "skip",
        "tabulate",
        "knots",
        "bound",
        "device",
        "dtype",
    ],
    uncork.functions.Tabulated: ["function", "knots", "bound"],
    uncork.heads.SoftmaxHead: ["in_features", "num_classes", "bias"],
    uncork.heads.MonotonicHead: ["in_features", "num_classes", "function", "bias"],
    uncork.heads.MixtureHead: [
        "in_features",
        "num_classes",
        "components",
        "embedding_features",
        "function",
        "dropout",
        "bias",
    ],
}


def public_names(module: ModuleType) -> set[str]:
    members = inspect.getmembers(module, lambda member: not inspect.ismodule(member))
    return {name for name, _ in members if not name.startswith("_")}


@pytest.mark.parametrize("module", PUBLIC, ids=lambda module: module.__name__)
def test_public_names(module: ModuleType):
    assert public_names(module) == PUBLIC[module]


@pytest.mark.parametrize("subject", ARGUMENTS, ids=lambda subject: subject.__name__)
def test_arguments(subject: Any):
    assert list(inspect.signature(subject).parameters) == ARGUMENTS[subject]


@pytest.mark.parametrize("subject", ARGUMENTS, ids=lambda subject: subject.__name__)
def test_no_argument_is_swallowed(subject: Any):
    kinds = {parameter.kind for parameter in inspect.signature(subject).parameters.values()}
    assert not kinds & {inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL}


@pytest.mark.parametrize("subject", ARGUMENTS, ids=lambda subject: subject.__name__)
def test_every_public_name_says_what_it_does(subject: Any):
    assert inspect.getdoc(subject)
