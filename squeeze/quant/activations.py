"""Rounding of activations, as compressed-tensors describes it: one scale a token, a group, or a tensor.

Scales follow from the largest magnitude as in the package compressed-tensors (Apache-2.0, 0.20), whose simulation in
float32 gives the same numbers. Scales are computed for each token at run time, unless `ranged` says that calibration
finds them.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

__all__ = ["ACTIVATIONS", "TOPS", "ActivationGrid", "are_rounded"]

_FP8 = torch.float8_e4m3fn
_FP8_TOP, _FP4_TOP = 448.0, 6.0
# The magnitude that becomes the largest level; of integers, half of the range of -2^(n-1) to 2^(n-1) - 1.
TOPS = {"int8": 127.5, "int4": 7.5, "fp8": _FP8_TOP, "fp6-e3m2": 28.0, "fp6-e2m3": 7.5, "fp4": _FP4_TOP}
_SMALL_FLOATS = {"fp6-e3m2": (3, 2), "fp6-e2m3": (2, 3), "fp4": (2, 1)}  # bits of exponent and mantissa
_AT_ONCE = 1 << 18  # values that a CPU rounds at once, so that they stay in its cache
_ROUND_UP_FROM = 0.875  # share of the next power of two from which a scale is rounded up to it


@dataclass(frozen=True)
class ActivationGrid:
    """A grid on which the inputs of a linear layer are rounded at run time.

    Attributes:
        kind: a name in TOPS: "int8", "int4", "fp8" (e4m3), "fp6-e3m2", "fp6-e2m3" or "fp4" (e2m1).
        group_size: inputs that share a scale; -1 for a whole token, 0 for the whole tensor.
        scales: "float", "fp8" (relative to a scale of the tensor, as in NVFP4) or "power" (of two, as in MXFP4).
        ranged: whether calibration finds the tensor's scale from the largest magnitude that it sees.
    """

    kind: str
    group_size: int
    scales: str = "float"
    ranged: bool = False

    def __call__(self, x: torch.Tensor, largest: torch.Tensor | None = None) -> torch.Tensor:
        """Round activations to the grid.

        Args:
            x: activations [..., I] of floats.
            largest: a float [], the largest magnitude seen in calibration; None without one, or if `ranged` is false.

        Returns:
            The rounded values [..., I] in the dtype of x.

        Raises:
            RuntimeError: I is not a multiple of the group size.
        """
        if x.device.type == "cpu" and x.numel() > _AT_ONCE:
            rows = torch.split(x.reshape(-1, x.shape[-1]), max(1, _AT_ONCE // x.shape[-1]))
            return torch.cat([self._of(part, largest) for part in rows]).reshape(x.shape)
        return self._of(x, largest)

    def _of(self, x: torch.Tensor, largest: torch.Tensor | None) -> torch.Tensor:
        values = x.to(torch.float32)
        groups = values.unflatten(-1, (-1, self.group_size)) if self.group_size > 0 else values
        scale = self._scale(groups.abs().amax(-1, keepdim=True), largest)
        return (self._rounded(groups / scale) * scale).reshape(x.shape).to(x.dtype)

    def _scale(self, highest: torch.Tensor, largest: torch.Tensor | None) -> torch.Tensor:
        top = TOPS[self.kind]
        if self.scales == "power":
            mantissa, exponent = torch.frexp(highest)
            step = exponent - 1 + (mantissa >= _ROUND_UP_FROM).int() - 2  # 6 = 1.5 * 2^2 is the largest level
            return torch.exp2(torch.where(highest > 0, step, -127).clamp(-127, 128).float())
        if self.scales == "fp8":
            factor = self.factor(largest).to(highest.device)
            scale = (factor * (highest / top)).clamp(max=_FP8_TOP).to(_FP8).to(torch.float32)
            return torch.where(scale == 0, 0.125, scale) / factor
        if self.group_size == 0:
            return self.factor(largest).to(highest.device)
        return torch.where(highest == 0, torch.finfo(torch.float32).eps, highest / top)

    def factor(self, largest: torch.Tensor | None) -> torch.Tensor:
        """Return what a checkpoint stores for the tensor, float32 []: its scale, or the factor of its e4m3 scales."""
        if largest is None:
            return torch.ones(())
        highest = largest.double().clamp(min=torch.finfo(torch.float32).tiny)
        return (_FP8_TOP * _FP4_TOP / highest if self.scales == "fp8" else highest / _FP8_TOP).float().reshape(())

    def largest(self, factor: torch.Tensor) -> torch.Tensor:
        """Return the largest magnitude that a stored `factor` was computed from, float64 []: it gives that again."""
        top = _FP8_TOP * _FP4_TOP / factor.double() if self.scales == "fp8" else factor.double() * _FP8_TOP
        return top.reshape(())

    def _rounded(self, values: torch.Tensor) -> torch.Tensor:
        if self.kind in ("int8", "int4"):
            half = TOPS[self.kind] + 0.5
            return values.clamp(-half, half - 1).round()
        if self.kind == "fp8":
            return values.clamp(-_FP8_TOP, _FP8_TOP).to(_FP8).to(torch.float32)
        return _to_small_float(values, *_SMALL_FLOATS[self.kind], TOPS[self.kind])


def _to_small_float(values: torch.Tensor, exponent_bits: int, mantissa_bits: int, top: float) -> torch.Tensor:
    """Round to the nearest value of a float format without infinities; a tie goes to the even code.

    Args:
        values: float32.
        exponent_bits: Bits of the exponent.
        mantissa_bits: Bits of the mantissa.
        top: The largest value.
    """
    least = 2 - (1 << exponent_bits - 1)  # exponent of the smallest normal value, and of those below
    _, exponent = torch.frexp(values)
    step = torch.exp2((exponent - 1).clamp(min=least).float() - mantissa_bits)  # from a level to the next
    size = (values.abs() / step).round_().mul_(step).clamp_(max=top)
    return torch.copysign(size, values)


ACTIVATIONS = {
    "int8-token": ActivationGrid("int8", -1),
    "fp8-token": ActivationGrid("fp8", -1),
    "fp8-group": ActivationGrid("fp8", 128),
    "fp8-tensor": ActivationGrid("fp8", 0, ranged=True),
    "nvfp4": ActivationGrid("fp4", 16, "fp8", ranged=True),
    "mxfp4": ActivationGrid("fp4", 32, "power"),
}


def are_rounded(described: object) -> bool:
    """Return whether a `quantization_config` rounds activations; one that is no mapping does not."""
    if not isinstance(described, Mapping):
        return False
    groups = described.get("config_groups")
    if isinstance(groups, Mapping) and any(
        isinstance(group, Mapping) and group.get("input_activations") for group in groups.values()
    ):
        return True
    return described.get("quant_method") in ("fp8", "mxfp4") or bool(described.get("activation_scheme"))
