"""Rounding of differences outside the blocks' matrices, such as those of embeddings, before `pack --base` codes them.

They are rounded to multiples of one step a tensor, as coarse as a number of bits needs. A uniform step with entropy
coding is close to the least error for a number of bits, whatever the distribution (Gish and Pierce, 1968). Rows that
training hardly changed cost next to nothing.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch

from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.packing.tensors import ulps
from squeeze.prune.delta.base import BaseWeights

__all__ = ["RoundedCheckpoint", "Rounding", "rounded"]

_NAMES = {torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32"}
_LEAST_ROWS = 32  # matrices with fewer rows stay exact
_SAMPLE = 1 << 22  # values that a step is chosen from
_FINER = 0.125  # resolution of a step's base-2 exponent in the search
_MOST = 16  # most doublings of a step that are tried


@dataclass(frozen=True)
class Rounding:
    """The rounding of a tensor's difference.

    Attributes:
        step: differences become multiples of it.
        bits: coded bits of a value, about.
        error: norm of the error, relative to that of the difference.
    """

    step: float
    bits: float
    error: float

    def __str__(self) -> str:
        return f"its difference rounded to {self.bits:.1f} bits a weight, with an error of {self.error:.0%} of it"


def rounded(weight: torch.Tensor, base: torch.Tensor, step: float) -> torch.Tensor:
    """Return a weight, in its own dtype, as the base plus a multiple of `step`."""
    before = base.to(weight.device).float()
    return ((weight.float() - before).div_(step).round_().mul_(step).add_(before)).to(weight.dtype)


@dataclass(frozen=True)
class RoundedCheckpoint(Checkpoint):
    """A fine-tune with rounded differences from its base in the tensors that `roundings` name."""

    base: BaseWeights | None = None
    roundings: dict[str, Rounding] = field(default_factory=dict)

    @classmethod
    def of(cls, tuned: Checkpoint, base: BaseWeights, bits: float, names: Iterable[str]) -> "RoundedCheckpoint":
        """Round the tensors that are matrices and whose differences take more than `bits` bits a weight when coded
        exactly.

        Args:
            tuned: the fine-tune.
            base: its base.
            bits: a weight.
            names: tensors to look at.
        """
        found: dict[str, Rounding] = {}
        for name in names:
            shape = tuned.info(name).shape
            if len(shape) == 2 and shape[0] >= _LEAST_ROWS:
                rounding = _rounding(tuned.load([name])[name], base.load(name), bits)
                found |= {name: rounding} if rounding else {}
        return cls(tuned.folder, tuned.files, base, found)

    def load(
        self, names: Iterable[str], device: torch.device | str = "cpu", strict: bool = True
    ) -> dict[str, torch.Tensor]:
        loaded, base = super().load(names, device, strict), self.base
        if base is not None:
            for name in loaded.keys() & self.roundings.keys():
                loaded[name] = rounded(loaded[name], base.load(name), self.roundings[name].step)
        return loaded


def _rounding(weight: torch.Tensor, base: torch.Tensor, bits: float) -> Rounding | None:
    """Return the finest step that needs at most `bits` bits; None if no rounding is needed, or the dtypes differ."""
    every = max(weight.numel() // _SAMPLE, 1)
    weight, base = weight[::every].cpu().contiguous(), base[::every].contiguous()
    if weight.dtype != base.dtype or _bits(weight, base) <= bits:
        return None
    spread = float((weight.float() - base.float()).std(correction=0))
    step, factor = spread * 2.0 ** (1 - bits), 2.0**_FINER
    fits = _bits(rounded(weight, base, step), base) <= bits
    for _ in range(round(_MOST / _FINER)):
        other = step / factor if fits else step * factor
        if (_bits(rounded(weight, base, other), base) <= bits) != fits:
            step = step if fits else other
            break
        step = other
    found = rounded(weight, base, step)
    lost, whole = (float((one.float() - weight.float()).norm()) for one in (found, base))
    return Rounding(step, _bits(found, base), lost / whole)


def _bits(weight: torch.Tensor, base: torch.Tensor) -> float:
    """Return the coded bits of a value, given its base."""
    data, other = (one.reshape(-1).view(torch.uint8).numpy() for one in (weight, base))
    payload = ulps.encode(data, other, _NAMES[weight.dtype])
    return 8 * (data if payload is None else payload).nbytes / weight.numel()
