"""Round to nearest: every weight to the nearest level of its group's grid, without statistics of inputs."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from squeeze.checkpoint.quantized import QuantizedTensor
from squeeze.engine.method import Result
from squeeze.quant.grid import QParams
from squeeze.quant.method import GridMethod

__all__ = ["RTN"]


@dataclass(frozen=True, kw_only=True)
class RTN(GridMethod):
    """Quantise a matrix W (out, in) without calibration: the baseline, and the fallback of methods that need
    statistics.

    The range of each group is that of its weights, or with `clip` the one with the least squared error.

    Attributes:
        bits: bits per weight, 2 to 8.
        group_size: inputs per scale, -1 for a whole row.
        symmetric: no zero points.
        grid: the values that a weight is rounded to, such as integer, nf4 or mxfp4.
        clip: search for each group's clipping range.
    """

    name: ClassVar[str] = "rtn"
    needs_hessian: ClassVar[bool] = False

    def apply(self, weight: torch.Tensor, hessian: torch.Tensor | None = None) -> QuantizedTensor:
        """Quantise a weight [O, I] of floats; `hessian` is ignored."""
        dtype, values = self.stored_as(weight), weight.float()
        params = self.fit(values, None, dtype)
        return self.assemble(encode(self, values, params), params, dtype)

    def compress(self, weight: torch.Tensor, hessian: torch.Tensor | None = None) -> Result[QuantizedTensor]:
        return Result(self.apply(weight))

    def fallback(self) -> "RTN":
        return self


def encode(method: GridMethod, weight: torch.Tensor, params: QParams) -> torch.Tensor:
    """Return the nearest codes [O, I], group by group."""
    quantizer, size = method.as_quantizer(), method.effective_group_size(weight.shape[1])
    return torch.cat([quantizer.encode(part, params[:, i]) for i, part in enumerate(torch.split(weight, size, 1))], 1)
