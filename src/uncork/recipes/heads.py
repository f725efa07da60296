"""The heads the paper compares, as configurations. A PLIF's rate and decay are per unit of function."""

from uncork.lm.config import FunctionConfig, HeadConfig


# Settings of the function's authors (Parthiban et al. 2021, supplementary material 2.2).
KNOTS = 100_000
BOUND = 20.0
AUTHORS_SLOPE_LR = 0.02
AUTHORS_WEIGHT_DECAY = 1.2e-6
# From a 100-epoch look on Penn: a tenth of the model's learning rate moves the slopes usefully,
# the whole of it overfits.
IDENTITY_SLOPE_SHARE = 0.1
# One number sums the gradient of all logits: at the model's rate of 20 a step whose gradient is
# clipped to 0.25 could move a temperature by 5. This moves it by 0.025 at most.
TEMPERATURE_LR = 0.1
# For the same reason. Its line alone is half a temperature.
NETWORK_LR = 0.1


def softmax() -> HeadConfig:
    """softmax(z)."""
    return HeadConfig()


def sigsoftmax() -> HeadConfig:
    """softmax(2z - softplus(z)); nothing to learn."""
    return HeadConfig(kind="monotonic", function=FunctionConfig(name="SigSoftmax"))


def temperature() -> HeadConfig:
    """softmax(a z) with one learned a: the control every learned function must beat."""
    return HeadConfig(kind="monotonic", function=FunctionConfig(name="Scale", lr=TEMPERATURE_LR))


def plif(lr: float) -> HeadConfig:
    """softmax(f(z)), f starting as the identity; its slopes learn at a tenth of `lr`."""
    options = {"knots": KNOTS, "bound": BOUND, "init": "identity"}
    function = FunctionConfig(name="PLIF", options=options, lr=IDENTITY_SLOPE_SHARE * lr)
    return HeadConfig(kind="monotonic", function=function)


def plif_authors() -> HeadConfig:
    """softmax(f(z)) with the authors' random start and slope learning rate."""
    return HeadConfig(kind="monotonic", function=_authors_plif(KNOTS))


def plif_frozen() -> HeadConfig:
    """The same random f, never trained: the control for whether learning f matters."""
    function = FunctionConfig(
        name="PLIF", options={"knots": KNOTS, "bound": BOUND, "init": "random"}, frozen=True
    )
    return HeadConfig(kind="monotonic", function=function)


def monotone() -> HeadConfig:
    """softmax(f(z)), f a sum of 20 sigmoids and a line near the identity: smooth, with few parameters."""
    options = {"units": 20, "skip": True, "knots": KNOTS, "bound": BOUND}
    function = FunctionConfig(name="MonotoneNetwork", options=options, lr=NETWORK_LR)
    return HeadConfig(kind="monotonic", function=function)


def mos() -> HeadConfig:
    """A mixture of 15 softmaxes."""
    return HeadConfig(kind="mixture", components=15, latent_dropout=0.29)


def mos_plif() -> HeadConfig:
    """The mixture with one shared f inside every softmax; the paper's row has 1e6 knots."""
    return HeadConfig(kind="mixture", components=15, latent_dropout=0.29, function=_authors_plif(10 * KNOTS))


def _authors_plif(knots: int) -> FunctionConfig:
    """The authors state raw rates, so those per unit of function follow the knots they are applied to."""
    return FunctionConfig(
        name="PLIF",
        options={"knots": knots, "bound": BOUND, "init": "random"},
        lr=AUTHORS_SLOPE_LR * KNOTS / knots,
        weight_decay=AUTHORS_WEIGHT_DECAY * knots / KNOTS,
    )
