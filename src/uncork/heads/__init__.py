"""Output layers: drop-in replacements for `nn.Linear` + `CrossEntropyLoss`."""

from uncork.heads.base import AbstractHead as AbstractHead
from uncork.heads.mixture import MixtureHead as MixtureHead
from uncork.heads.monotonic import MonotonicHead as MonotonicHead
from uncork.heads.softmax import SoftmaxHead as SoftmaxHead


__all__ = ["AbstractHead", "MixtureHead", "MonotonicHead", "SoftmaxHead"]
