"""`uncork info`: what is installed and what it runs on."""

import torch

from uncork.ops import cpu_pass
from uncork.ops.dispatch import BACKENDS, resolve
from uncork.results import provenance


def info() -> None:
    """Print versions, hardware and the backends that can run here."""
    facts = provenance() | {"backends": ", ".join(_backends()), "CPU pass": cpu_pass.status()}
    for name, value in facts.items():
        print(f"{name:>10}  {value}")


def _backends() -> list[str]:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    able = []
    for name in BACKENDS:
        try:
            able.append(resolve(name, device))
        except ValueError:  # it cannot run on this machine
            continue
    return able
