"""The methods that quantise a matrix, by name, and the options of each.

The methods themselves import torch, which `--help` does not wait for: each inherits its options from here.
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
        "Bits of a code; by name as in experts=2,attention=4,8.",
        least=2,
        most=8,
        parse=Bits.parse,
    )
    group_size: int = option(64, "Inputs that share a scale; -1 for all of a row.")
    symmetric: bool = option(True, "Without zero points.", off="--asymmetric")
    grid: str = option(
        "integer", "integer, whole (one scale for a matrix), nf4(-nested), mxfp4, nvfp4, fp8, ternary(-planes)."
    )
    clip: bool = option(True, "Search each group's range for the least error.")


@dataclass(frozen=True, kw_only=True)
class GPTQOptions(GridOptions):
    """Options of GPTQ (gptq.py)."""

    damping: float = option(0.1, "Share of the Hessian's mean diagonal added to it.", least=0)
    block_size: int = option(128, "Columns whose errors are spread to those behind at once.", least=1)
    act_order: bool = option(True, "Take the largest inputs first.")
    dynamic: bool = option(False, "Choose a group's scale when it is reached.")
    weighted: bool = option(True, "Weigh errors with the Hessian's diagonal when a range is searched.")
    refine: int = option(1, "Rounds of refitting scales and re-rounding columns.", least=0)
    outliers: int = option(0, "Inputs kept as they are, those that are largest.", least=0)
    exact: bool = option(False, "Compute in float64.")


@dataclass(frozen=True, kw_only=True)
class AWQOptions(GridOptions):
    """Options of AWQ (awq.py)."""

    strengths: int = option(20, "Strengths of scaling that are tried.", least=1)
    sweep: bool = option(False, "Round by GPTQ after scaling, and not to the nearest.")


@dataclass(frozen=True, kw_only=True)
class TrellisOptions:
    """Options of trellis codes (trellis/method.py)."""

    rate: float = option(2.0, "Bits of a weight, in sixteenths: 2.25.", least=1, most=4)
    damping: float = option(0.01, "Share of the Hessian's mean diagonal added to it.", least=0)
    act_order: bool = option(True, "Take the largest inputs first.")


METHODS: dict[str, Reference] = {
    "awq": Lazy(AWQOptions, "squeeze.quant.awq:AWQ"),
    "gptq": Lazy(GPTQOptions, "squeeze.quant.gptq:GPTQ"),
    "rtn": Lazy(GridOptions, "squeeze.quant.rtn:RTN"),
    "trellis": Lazy(TrellisOptions, "squeeze.quant.trellis.method:Trellis"),
}


@dataclass(frozen=True)
class Scheme:
    """grid, bits, group_size, symmetric: as GridMethod has them. activations: one of activations.ACTIVATIONS;
    None for inputs that are not rounded. any_group: whether groups may have another size. smooth: the strength with
    which inputs are smoothed before GPTQ."""

    grid: str
    bits: int
    group_size: int
    activations: str | None = None
    symmetric: bool = True
    any_group: bool = False
    smooth: float = 0.0


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
}
