"""The public names and their arguments: changing one is a decision, recorded here."""

import inspect
from types import ModuleType
from typing import Any

import pytest
from torch import nn

import uncork
import uncork.functions
import uncork.heads


PUBLIC = {
    uncork: {
        "__version__",
        "chunk_bytes",
        "detect_nonfinite",
        "functions",
        "heads",
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
    uncork.mixture_cross_entropy: [
        "latent",
        "log_prior",
        "linear_weight",
        "target",
        *LOSS_KEYWORDS,
    ],
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
    uncork.heads.SoftmaxHead: ["in_features", "num_classes", "bias", "device", "dtype"],
    uncork.heads.MonotonicHead: [
        "in_features",
        "num_classes",
        "function",
        "bias",
        "device",
        "dtype",
    ],
    uncork.heads.MixtureHead: [
        "in_features",
        "num_classes",
        "components",
        "embedding_features",
        "function",
        "dropout",
        "bias",
        "device",
        "dtype",
    ],
}


@pytest.mark.parametrize("module", PUBLIC, ids=lambda module: module.__name__)
def test_public_names(module: ModuleType):
    assert set(module.__all__) == PUBLIC[module]
    assert all(hasattr(module, name) for name in module.__all__)


@pytest.mark.parametrize("subject", ARGUMENTS, ids=lambda subject: subject.__name__)
def test_arguments(subject: Any):
    has_own = not inspect.isclass(subject) or subject.__init__ is not nn.Module.__init__
    assert (list(inspect.signature(subject).parameters) if has_own else []) == ARGUMENTS[subject]


@pytest.mark.parametrize("subject", ARGUMENTS, ids=lambda subject: subject.__name__)
def test_misspelt_keyword_is_refused(subject: Any):
    with pytest.raises(TypeError, match="mispelt"):
        subject(mispelt=1)


@pytest.mark.parametrize("subject", ARGUMENTS, ids=lambda subject: subject.__name__)
def test_every_public_name_says_what_it_does(subject: Any):
    assert subject.__doc__
