"""AWQ: channels whose inputs are large are scaled up before rounding, by the strength with the least error.

Lin et al. 2023 (arXiv 2306.00978). The scales are searched by scaling.py before any matrix is rounded, and folded into
what lies before; here is what the search is told, and the rounding that follows.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from squeeze.checkpoint.quantized import QuantizedTensor
from squeeze.engine.method import HessianError, Result
from squeeze.quant.gptq import GPTQ
from squeeze.quant.method import GridMethod
from squeeze.quant.methods import AWQOptions
from squeeze.quant.rtn import RTN, encode

__all__ = ["AWQ"]


@dataclass(frozen=True, kw_only=True)
class AWQ(AWQOptions, GridMethod):
    """strengths: how many are tried, from 0 up; a channel's scale is the mean magnitude of its inputs to the power of
    the strength. sweep: round by GPTQ with its defaults, which makes up for errors, and not to the nearest level of
    ranges that are clipped by the error weighted with the inputs' squares."""

    name: ClassVar[str] = "awq"
    needs_hessian: ClassVar[bool] = True

    def compress(self, weight: torch.Tensor, hessian: torch.Tensor | None = None) -> Result[QuantizedTensor]:
        if hessian is None or hessian.shape != (weight.shape[1], weight.shape[1]):
            raise HessianError(f"a matrix of {weight.shape[1]} inputs needs a Hessian of that size")
        if self.sweep:
            return GPTQ(**self._grid()).compress(weight, hessian)
        dtype, values = self.stored_as(weight), weight.float()
        params = self.fit(values, hessian.diagonal().float(), dtype)
        return Result(self.assemble(encode(self, values, params), params, dtype))

    def fallback(self) -> RTN:
        return RTN(**self._grid())

    def _grid(self) -> dict[str, Any]:
        options = ("bits", "group_size", "symmetric", "grid", "clip", "scale_dtype", "activations")
        return {name: getattr(self, name) for name in options}
