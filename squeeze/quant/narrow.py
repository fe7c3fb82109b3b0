"""Scales of one byte: powers of two, as MXFP4 has them, and e4m3 below a factor of the matrix, as NVFP4 has them."""

import torch

__all__ = ["factor_of", "rounded"]

_TOP = 448.0  # of e4m3
_LEAST = 2.0**-9  # of e4m3 above 0
_FACTOR = 2.0**-8


def factor_of(scale: torch.Tensor) -> torch.Tensor:
    """float32 [], a power of two, so that scales below it are exact products. It is 2^-8 wherever that holds the
    largest of `scale`: servers take one factor for matrices that they join, such as queries, keys and values."""
    return torch.exp2(torch.ceil(torch.log2(scale.max().clamp(min=2.0**-100) / _TOP))).clamp(min=_FACTOR)


def rounded(kind: str, scale: torch.Tensor, factor: torch.Tensor | None) -> torch.Tensor:
    """float32, the nearest scales that can be stored. kind: "power" or "float8", which has a factor."""
    if factor is None:
        return torch.exp2(torch.log2(scale.clamp(min=2.0**-126)).round())
    return factor * (scale / factor).clamp(_LEAST, _TOP).to(torch.float8_e4m3fn).to(torch.float32)
