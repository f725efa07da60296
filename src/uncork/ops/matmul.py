"""The three matrix products of the loss: low-precision operands, results at least float32.

On CPU a low-precision operand is widened first; on CUDA the library multiplies bfloat16 or float16 and
gives float32 back.
"""

import torch
from torch import Tensor


def widened(x: Tensor) -> Tensor:
    """An operand as the products below take it: itself, or in float32 where mixing is not on offer."""
    low = x.dtype in (torch.bfloat16, torch.float16)
    return x.float() if low and x.device.type != "cuda" else x


def logits(x_ND: Tensor, weight_VD: Tensor, bias_V: Tensor | None, out_NV: Tensor) -> Tensor:
    """x W^T + b written into `out_NV`."""
    if x_ND.dtype == out_NV.dtype:
        if bias_V is None:
            return torch.mm(x_ND, weight_VD.T, out=out_NV)
        return torch.addmm(bias_V.to(out_NV.dtype), x_ND, weight_VD.T, out=out_NV)
    if out_NV.dtype.itemsize < x_ND.dtype.itemsize:  # widened operands, for kernels run by an interpreter
        out_NV.copy_(x_ND @ weight_VD.T)
    else:
        torch.mm(x_ND, weight_VD.T, out_dtype=out_NV.dtype, out=out_NV)
    return out_NV if bias_V is None else out_NV.add_(bias_V.to(out_NV.dtype))


def add_outer(total_VD: Tensor, dlogits_NV: Tensor, x_ND: Tensor, first: bool) -> None:
    """total += dlogits^T x, in the dtype of `total` (at least float32); the first call overwrites."""
    if x_ND.dtype == total_VD.dtype:
        total_VD.addmm_(dlogits_NV.T, x_ND, beta=0 if first else 1)
    elif first:
        torch.mm(dlogits_NV.T, x_ND, out_dtype=total_VD.dtype, out=total_VD)
    else:
        torch.addmm(total_VD, dlogits_NV.T, x_ND, out_dtype=total_VD.dtype, out=total_VD)
