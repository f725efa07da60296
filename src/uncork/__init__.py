"""Output layers that break the softmax bottleneck."""

from importlib.metadata import PackageNotFoundError, version


try:
    __version__ = version("uncork")
except PackageNotFoundError:  # a source tree on the path, not installed
    __version__ = "0+source"
