"""The three matrix products of the loss: low-precision operands, results at least float32.

On CPU a low-precision operand is widened first; on CUDA the library multiplies bfloat16 or float16 and
gives float32 back.
"""

import torch
from torch import Tensor
from torch.nn.functional import linear


# A GPU has fast products for operands whose rows and columns are multiples of this many bytes.
ALIGNED = 16
# Where products run over padded words, and from how many on: below, a copy of the weight gains nothing.
PADDED_FROM = {"cuda": 512}
# Where float32 products may be TF32.
TF32_ON = {"cuda"}


def padded_words(weight_VD: Tensor, room: int) -> int:
    """How many words the products run over: V, or a few more if that is faster and a copy fits `room` bytes.

    The width enters all three products: one that is not aligned makes them slow, whatever the words are.
    """
    words, width = weight_VD.shape
    multiple = ALIGNED // weight_VD.dtype.itemsize
    fewest = PADDED_FROM.get(weight_VD.device.type)
    if fewest is None or words < fewest or width % multiple or weight_VD.nbytes > room:
        return words
    return -(-words // multiple) * multiple


def with_zeros(x: Tensor, length: int) -> Tensor:
    """x followed by rows of zeros; itself, at no cost, if it is long enough."""
    missing = length - x.shape[0]
    return torch.cat([x, x.new_zeros(missing, *x.shape[1:])]) if missing else x


def widened(x: Tensor) -> Tensor:
    """An operand as the products below take it: itself, or in float32 where mixing is not on offer."""
    low = x.dtype in (torch.bfloat16, torch.float16)
    return x.float() if low and not x.is_cuda else x


def in_tf32(dtype: torch.dtype) -> bool:
    """Whether CUDA products of `dtype` keep 10 bits: those of float32, where torch was told so."""
    # torch's default keeps them all.
    return dtype == torch.float32 and torch.backends.cuda.matmul.fp32_precision == "tf32"


def by_columns(x_ND: Tensor) -> Tensor:
    """x as products that sum over its rows are fast with: in TF32 a copy stored column by column.

    Hopper multiplies TF32 numbers only along what it sums over, and turns other operands round on the way,
    which takes longer than to copy them once.
    """
    if x_ND.device.type not in TF32_ON or not in_tf32(x_ND.dtype):
        return x_ND
    rows, width = x_ND.shape
    multiple = ALIGNED // x_ND.dtype.itemsize
    return x_ND.new_empty_strided((rows, width), (1, -(-rows // multiple) * multiple)).copy_(x_ND)


def logits(x_ND: Tensor, weight_VD: Tensor, bias_V: Tensor | None, out_NV: Tensor) -> Tensor:
    """x W^T + b written into `out_NV`."""
    if x_ND.dtype == out_NV.dtype:
        if bias_V is None:
            return torch.mm(x_ND, weight_VD.T, out=out_NV)
        return torch.addmm(bias_V.to(out_NV.dtype), x_ND, weight_VD.T, out=out_NV)
    if out_NV.dtype.itemsize < x_ND.dtype.itemsize:  # widened operands, for kernels run by an interpreter
        bias = None if bias_V is None else bias_V.to(x_ND.dtype)
        return out_NV.copy_(linear(x_ND, weight_VD, bias))
    torch.mm(x_ND, weight_VD.T, out_dtype=out_NV.dtype, out=out_NV)
    return out_NV if bias_V is None else out_NV.add_(bias_V.to(out_NV.dtype))


def back(dlogits_NV: Tensor, weight_VD: Tensor, factor_N1: Tensor | None, out_ND: Tensor) -> None:
    """dlogits W, each row times its factor if it has one, written into `out_ND`."""
    if factor_N1 is None and out_ND.dtype == weight_VD.dtype:
        torch.mm(dlogits_NV, weight_VD, out=out_ND)
    elif factor_N1 is None:
        out_ND.copy_(torch.mm(dlogits_NV, weight_VD))
    elif weight_VD.dtype == factor_N1.dtype:
        torch.mul(torch.mm(dlogits_NV, weight_VD), factor_N1, out=out_ND)
    else:  # rounded once, after the factor
        product_ND = torch.mm(dlogits_NV, weight_VD, out_dtype=factor_N1.dtype)
        torch.mul(product_ND, factor_N1, out=out_ND)


def add_rows(total_V: Tensor, dlogits_NV: Tensor, factor_N1: Tensor | None, first: bool) -> None:
    """total += the sum of the rows of dlogits, each times its factor if any; the first call overwrites."""
    if factor_N1 is not None and dlogits_NV.dtype == factor_N1.dtype:
        total_V.addmv_(dlogits_NV.T, factor_N1[:, 0], beta=0 if first else 1)
        return
    if factor_N1 is not None:
        parts_PN = _parts(factor_N1[:, 0], dlogits_NV.dtype)
        dlogits_NV = torch.mm(parts_PN, dlogits_NV, out_dtype=total_V.dtype)
    if first:
        torch.sum(dlogits_NV, 0, dtype=total_V.dtype, out=total_V)
    else:
        total_V += dlogits_NV.sum(0, dtype=total_V.dtype)


def add_outer(total_VD: Tensor, dlogits_NV: Tensor, x_ND: Tensor, first: bool) -> None:
    """total += dlogits^T x, in the dtype of `total` (at least float32); the first call overwrites."""
    x_ND = by_columns(x_ND)
    if x_ND.dtype == total_VD.dtype:
        total_VD.addmm_(dlogits_NV.T, x_ND, beta=0 if first else 1)
    elif first:
        torch.mm(dlogits_NV.T, x_ND, out_dtype=total_VD.dtype, out=total_VD)
    else:
        torch.addmm(total_VD, dlogits_NV.T, x_ND, out_dtype=total_VD.dtype, out=total_VD)


def _parts(x_N: Tensor, dtype: torch.dtype) -> Tensor:
    """Three rows of a low precision that add up to x in float32."""
    parts, rest_N = [], x_N
    for _ in range(3):
        parts.append(rest_N.to(dtype))
        rest_N = rest_N - parts[-1].to(rest_N.dtype)
    return torch.stack(parts)
