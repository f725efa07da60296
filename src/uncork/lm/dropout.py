"""Dropouts of AWD-LSTM: masks that stay fixed over time, and whole words left out.

Masks are drawn on the device of the data, from torch's default generator, so a restored generator
state restores them. Shapes: T time, B streams, V words, D width.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class LockedDropout(nn.Module):
    """Dropout over (T, ...) with one mask (1, ...) shared by all T steps.

    The reference implementation once drew its mask over the wrong axis, at a cost of several
    perplexity points; time is the first axis here, as everywhere in this package.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = check_probability("p", p)

    def forward(self, x_TBD: Tensor) -> Tensor:
        mask = self.mask(x_TBD[:1])
        return x_TBD if mask is None else x_TBD * mask

    def mask(self, like: Tensor) -> Tensor | None:
        """A new mask in the shape of `like`, or None in evaluation and where nothing is dropped."""
        return keep_mask(like, self.p) if self.training and self.p > 0.0 else None

    def extra_repr(self) -> str:
        return f"p={self.p}"


def embedding_dropout(weight_VD: Tensor, tokens_TB: Tensor, p: float, training: bool) -> Tensor:
    """Look tokens up in an embedding from which a share `p` of the words is left out.

    A word left out is left out at all its places in the batch.
    """
    embedded_TBD = F.embedding(tokens_TB, weight_VD)
    if not training or p == 0.0:
        return embedded_TBD
    # Scaling the rows after the look-up equals masking the whole table and touches T B rows, not V.
    mask_V1 = keep_mask(weight_VD[:, :1], p)
    return embedded_TBD * F.embedding(tokens_TB, mask_V1)


def drop(x: Tensor, p: float) -> Tensor:
    """`x` times a new `keep_mask`; on a GPU one kernel draws the mask and multiplies."""
    return F.dropout(x, p)


def keep_mask(like: Tensor, p: float) -> Tensor:
    """A mask of zeros (chance `p`) and 1 / (1 - p), in the shape, dtype and place of `like`."""
    return torch.empty_like(like, requires_grad=False).bernoulli_(1.0 - p).div_(1.0 - p)


def check_probability(name: str, p: float) -> float:
    if not 0.0 <= p < 1.0:
        raise ValueError(
            f"`{name}` must be a dropout probability in [0, 1); got {p}. Give a share such as 0.4."
        )
    return p
