"""A weight matrix as trellis codes, and the tensors that a checkpoint has of it: docs/format.md specifies them."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from squeeze.errors import FormatError
from squeeze.kernels import trellis
from squeeze.numerics.hadamard import turned

__all__ = ["LEAST_RATE", "LEAVES", "MOST_RATE", "ROTATION", "TrellisTensor", "read", "tensors_of"]

LEAVES = ("trellis_codes", "trellis_scales", "trellis_grid")
ROTATION = 128  # inputs that are rotated together, at most
LEAST_RATE, MOST_RATE = 16, 64  # sixteenths of a bit


@dataclass(frozen=True)
class TrellisTensor:
    """A weight [O, I] whose inputs are rotated by numerics.hadamard.turned in blocks of at most ROTATION: levels of
    codes uint8 [I, bytes], times a scale for each output, scales [O] in the type in which they are stored. rate: of a
    weight, in sixteenths of a bit."""

    codes: torch.Tensor
    scales: torch.Tensor
    rate: int

    @property
    def shape(self) -> tuple[int, int]:
        """(O, I)."""
        return len(self.scales), len(self.codes)

    def dequantize(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """[O, I], computed in float32 and rounded once to `dtype`."""
        levels = trellis.decode(self.codes, len(self.scales), self.rate)
        return turned(levels * self.scales.to(torch.float32)[:, None], ROTATION).to(dtype)

    @property
    def stored_bits(self) -> int:
        """Bits of codes and scales."""
        return 8 * (self.codes.nbytes + self.scales.nbytes)


def tensors_of(module: str, weight: TrellisTensor) -> dict[str, torch.Tensor]:
    """By name, what a checkpoint stores of a module's weight."""
    grid = torch.tensor([*weight.shape, weight.rate])
    return dict(zip((f"{module}.{leaf}" for leaf in LEAVES), (weight.codes, weight.scales, grid), strict=True))


def read(module: str, leaves: Mapping[str, torch.Tensor]) -> TrellisTensor:
    """The weight of a module from its tensors by the last part of their names. Raises FormatError where they are
    missing or contradict each other."""
    for leaf in LEAVES:
        if leaf not in leaves:
            raise FormatError(f"{module}: has no {leaf}")
    codes, scales, grid = (leaves[leaf] for leaf in LEAVES)
    if grid.dtype != torch.int64 or grid.shape != (3,):
        raise FormatError(f"{module}: its trellis_grid is not three numbers")
    outputs, inputs, rate = (int(value) for value in grid.tolist())
    if not LEAST_RATE <= rate <= MOST_RATE:
        raise FormatError(f"{module}: {rate} sixteenths of a bit are not between {LEAST_RATE} and {MOST_RATE}")
    if scales.shape != (outputs,) or scales.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        raise FormatError(f"{module}: its trellis_scales are not {outputs} floats")
    if codes.dtype != torch.uint8 or codes.shape != (inputs, trellis.column_bytes(outputs, rate)):
        raise FormatError(f"{module}: its trellis_codes do not have {inputs} columns of {outputs} rows")
    return TrellisTensor(codes, scales, rate)
