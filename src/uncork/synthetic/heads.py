"""The heads of the experiment by name, all without bias, as in the paper's equations."""

from torch import nn

from uncork.functions import PLIF, MonotoneNetwork, Scale, SigSoftmax, Tabulated
from uncork.heads import AbstractHead, MixtureHead, MonotonicHead, SoftmaxHead
from uncork.synthetic.config import Settings


def build_head(name: str, width: int, vocabulary: int, settings: Settings) -> AbstractHead:
    """A fresh head; the caller seeds torch's generator.

    Learnable functions are evaluated through one table of `settings.table` intervals in training and
    evaluation alike: the function measured is the function trained, also beyond the bound, where the end
    pieces continue.
    """
    if name == "softmax":
        return SoftmaxHead(width, vocabulary, bias=False)
    if name == "mos":
        return MixtureHead(width, vocabulary, components=settings.components, bias=False)
    return MonotonicHead(width, vocabulary, build_function(name, settings), bias=False)


def build_function(name: str, settings: Settings) -> nn.Module:
    """The increasing function of a pointwise head."""
    tabulated = lambda f: Tabulated(f, knots=settings.table, bound=settings.bound)
    makers = {
        "temperature": lambda: Scale(),
        "sigsoftmax": lambda: SigSoftmax(),
        "monotone": lambda: tabulated(MonotoneNetwork(settings.units)),
        "plif": lambda: tabulated(PLIF(knots=settings.knots, bound=settings.bound)),
    }
    return makers[name]()
