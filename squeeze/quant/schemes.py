"""Schemes of compressed-tensors by the names of llm-compressor's presets: a grid of weights, and one of inputs.

Nothing here needs torch: `--help` reads it.
"""

from dataclasses import dataclass

__all__ = ["SCHEMES", "Scheme"]


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
