"""A user's module called with other parameters than its own."""

from collections.abc import Callable
from itertools import chain
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call


def call_with(module: nn.Module, change: Callable[[Tensor], Tensor], z: Tensor) -> Any:
    """`module(z)`, with what `change` makes of each of its parameters and buffers in their places."""
    # Each module and each tensor once, however many names it has. With names of one module's twice, torch
    # puts back what it found there the second time, which is what it had put there the first.
    changed: dict[Tensor, Tensor] = {}
    state = {}
    for path, part in module.named_modules():
        own = chain(
            part.named_parameters(recurse=False, remove_duplicate=False),
            part.named_buffers(recurse=False, remove_duplicate=False),
        )
        for name, held in own:
            if held not in changed:
                changed[held] = change(held)
            if changed[held] is not held:
                state[f"{path}.{name}" if path else name] = changed[held]
    return functional_call(module, state, (z,), tie_weights=False) if state else module(z)
