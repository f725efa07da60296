"""`uncork info`: what is installed and what it runs on."""

from uncork.ops import cpu_pass
from uncork.ops.dispatch import BACKENDS
from uncork.results import provenance


def info() -> None:
    """Print versions, hardware and the backends that can run here."""
    facts = provenance() | {"backends": ", ".join(BACKENDS), "CPU pass": cpu_pass.status()}
    for name, value in facts.items():
        print(f"{name:>10}  {value}")
