"""Increasing functions for the logits: `f(z)`, `f.derivative(z)`."""

from uncork.functions.base import AbstractMonotone as AbstractMonotone
from uncork.functions.identity import Identity as Identity
from uncork.functions.network import MonotoneNetwork as MonotoneNetwork
from uncork.functions.plif import PLIF as PLIF
from uncork.functions.scale import Scale as Scale
from uncork.functions.sigsoftmax import (
    GeneralizedSigSoftmax as GeneralizedSigSoftmax,
    SigSoftmax as SigSoftmax,
)
from uncork.functions.softcap import SoftCap as SoftCap
from uncork.functions.tabulated import Tabulated as Tabulated


__all__ = [
    "PLIF",
    "AbstractMonotone",
    "GeneralizedSigSoftmax",
    "Identity",
    "MonotoneNetwork",
    "Scale",
    "SigSoftmax",
    "SoftCap",
    "Tabulated",
]
