"""The methods that quantise a matrix, by name, with their options; and presets of llm-compressor and our own.

`--help` reads this module, so it does not import torch. The methods inherit their options from here.
"""

from dataclasses import dataclass

from squeeze.options import Lazy, Reference, option
from squeeze.quant.bits import Bits

__all__ = ["METHODS", "SCHEMES", "AWQOptions", "GPTQOptions", "GridOptions", "Scheme", "TrellisOptions"]


@dataclass(frozen=True, kw_only=True)
class GridOptions:
    """Options of every method that rounds to a grid (method.py)."""

    bits: int | Bits = option(
        4,
        "Bits per weight, also by part of the model: experts=2,attention=4,8",
        least=2,
        most=8,
        parse=Bits.parse,
    )
    group_size: int = option(64, "Inputs per scale, -1 for a whole row")
    symmetric: bool = option(True, "Symmetric grid, without zero points", off="--asymmetric")
    grid: str = option(
        "integer",
        "Grid: integer, whole, nf4[-nested|-fp8], mxfp4, nvfp4, fp6-e3m2, fp6-e2m3, fp8, ternary[-planes]",
    )
    clip: bool = option(True, "Search for each group's clipping range with the least error")


@dataclass(frozen=True, kw_only=True)
class GPTQOptions(GridOptions):
    """Options of GPTQ (gptq.py)."""

    damping: float = option(0.1, "Damping, as a share of the Hessian's mean diagonal", least=0)
    block_size: int = option(128, "Columns per block of error updates", least=1)
    act_order: bool = option(True, "Columns with the largest inputs first")
    dynamic: bool = option(False, "Dynamic groups: each scale is computed when its group is reached")
    weighted: bool = option(True, "Weigh errors by the Hessian's diagonal in the search for ranges")
    refine: int = option(1, "Rounds of refitting scales and rounding columns again", least=0)
    outliers: int = option(0, "Columns kept exact, those with the largest inputs", least=0)
    exact: bool = option(False, "Compute in float64")


@dataclass(frozen=True, kw_only=True)
class AWQOptions(GridOptions):
    """Options of AWQ (awq.py)."""

    strengths: int = option(20, "Number of scaling strengths to try", least=1)
    sweep: bool = option(False, "Round with GPTQ after scaling, not to nearest")


@dataclass(frozen=True, kw_only=True)
class TrellisOptions:
    """Options of trellis codes (trellis/method.py)."""

    rate: float = option(2.0, "Bits per weight, in sixteenths, such as 2.25", least=1, most=4)
    damping: float = option(0.01, "Damping, as a share of the Hessian's mean diagonal", least=0)
    act_order: bool = option(True, "Columns with the largest inputs first")


METHODS: dict[str, Reference] = {
    "awq": Lazy(AWQOptions, "squeeze.quant.awq:AWQ"),
    "gptq": Lazy(GPTQOptions, "squeeze.quant.gptq:GPTQ"),
    "rtn": Lazy(GridOptions, "squeeze.quant.rtn:RTN"),
    "trellis": Lazy(TrellisOptions, "squeeze.quant.trellis.method:Trellis"),
}


@dataclass(frozen=True)
class Scheme:
    """A preset, by llm-compressor's name or ours: a grid of weights, and one of activations.

    Attributes:
        grid, bits, group_size, symmetric: see GridMethod.
        activations: a name in activations.ACTIVATIONS; None if activations are not rounded.
        any_group: whether groups may have another size.
        smooth: strength of smoothing before GPTQ.
        format: the storage that holds it.
        outer: bits of the input embedding and the output head; None leaves them as they are.
    """

    grid: str
    bits: int
    group_size: int
    activations: str | None = None
    symmetric: bool = True
    any_group: bool = False
    smooth: float = 0.0
    format: str = "compressed-tensors"
    outer: int | None = None


SCHEMES = {
    "w8a8": Scheme("integer", 8, -1, "int8-token", smooth=0.5),
    "fp8_dynamic": Scheme("fp8", 8, -1, "fp8-token"),
    "fp8_block": Scheme("fp8-block", 8, 128, "fp8-group"),
    "fp8": Scheme("fp8-tensor", 8, -1, "fp8-tensor"),
    "nvfp4": Scheme("nvfp4", 4, 16, "nvfp4"),
    "nvfp4a16": Scheme("nvfp4", 4, 16),
    "mxfp4": Scheme("mxfp4", 4, 32, "mxfp4"),
    "mxfp4a16": Scheme("mxfp4", 4, 32),
    "w4a8": Scheme("integer", 4, 128, "int8-token", any_group=True),
    "w4a16": Scheme("integer", 4, 128, any_group=True),
    "w4a16_asym": Scheme("integer", 4, 128, symmetric=False, any_group=True),
    "w8a16": Scheme("integer", 8, 128, any_group=True),
    "whole4": Scheme("nf4-fp8", 4, 32, any_group=True, format="squeeze", outer=4),
}
