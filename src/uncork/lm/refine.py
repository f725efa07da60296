"""Coarse to fine: early on, the function moves as one with fewer knots would.

The table keeps its size, so that optimizer, averages and saved states never change theirs. Instead the
gradient is averaged over blocks of neighbouring slopes. Since the rate is per unit of function
(`uncork.lm.slope_unit`), that is the very step of the coarse table: its slope gathers the sum over the
block, at a rate smaller by the block's length. Equal slopes in a block stay equal to the last bit.
"""

import torch
from torch import nn

from uncork.functions import PLIF
from uncork.lm.awd_lstm import LanguageModel
from uncork.lm.config import Config, FunctionConfig


def knots_after(refine: dict[str, int], epoch: int) -> int | None:
    """The knots to learn at when `epoch` epochs are done; None for all of the table's."""
    begun = {int(start): knots for start, knots in refine.items() if int(start) <= epoch}
    return begun[max(begun)] if begun else None


def check_refine(config: FunctionConfig, function: nn.Module) -> None:
    """Every stage must divide the table into equal blocks."""
    for knots in config.refine.values():
        assert isinstance(function, PLIF)  # FunctionConfig sees to it
        if function.knots % knots:
            raise ValueError(
                f"`function.refine` must give divisors of the table's {function.knots} knots; got {knots}. "
                "Choose another, or another number of knots."
            )


@torch.no_grad()
def coarsen_gradient(model: LanguageModel, config: Config, epoch: int) -> None:
    """Average the slopes' gradient over the blocks of the stage that `epoch` is in."""
    function_config = config.model.head.function
    knots = None if function_config is None else knots_after(function_config.refine, epoch)
    if knots is None:
        return
    assert isinstance(model.function, PLIF)  # FunctionConfig sees to it
    gradient = model.function.v.grad
    if gradient is not None:
        blocks = gradient.view(knots, -1)
        blocks.copy_(blocks.mean(1, keepdim=True).expand_as(blocks))
