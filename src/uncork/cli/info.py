"""`uncork info`: what is installed and what it runs on."""

from uncork.results import provenance


def info() -> None:
    """Print versions, hardware and the backends that can run here."""
    for name, value in provenance().items():
        print(f"{name:>10}  {value}")
