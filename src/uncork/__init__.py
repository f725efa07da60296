"""Output layers that break the softmax bottleneck."""

from importlib.metadata import PackageNotFoundError, version

from uncork import functions as functions, heads as heads
from uncork.ops import (
    chunk_bytes as chunk_bytes,
    detect_nonfinite as detect_nonfinite,
    linear_cross_entropy as linear_cross_entropy,
    mixture_cross_entropy as mixture_cross_entropy,
)


try:
    __version__ = version("uncork")
except PackageNotFoundError:  # a source tree on the path, not installed
    __version__ = "0+source"

__all__ = [
    "__version__",
    "chunk_bytes",
    "detect_nonfinite",
    "functions",
    "heads",
    "linear_cross_entropy",
    "mixture_cross_entropy",
]
