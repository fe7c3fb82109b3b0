"""What a linear layer is given, rounded as compressed-tensors describes it: by token, group or tensor.

Scales follow from the largest magnitude as the package compressed-tensors has it (Apache-2.0, 0.20), whose simulation
in float32 gives the same numbers. They are found for each token as it comes, but for what `ranged` says.
"""

from dataclasses import dataclass

import torch

__all__ = ["ACTIVATIONS", "ActivationGrid"]

_FP8 = torch.float8_e4m3fn
_FP8_TOP, _FP4_TOP = 448.0, 6.0
_INT8_TOP = 127.5  # half of the range of -128 to 127
_AT_ONCE = 1 << 18  # values that a processor rounds at once: what they take stays near it
_UP_FROM = 0.875  # of the next power of two, what is rounded up to it


@dataclass(frozen=True)
class ActivationGrid:
    """kind: "int8", "fp8" (e4m3) or "fp4" (e2m1). group_size: inputs that share a scale; -1: all of a token; 0: all of
    a tensor. scales: "float"; "fp8" (below one for the tensor, as NVFP4 has it); "power" (of two, as MXFP4 has it).
    ranged: whether the calibration finds the tensor's scale, from the largest magnitude that it sees."""

    kind: str
    group_size: int
    scales: str = "float"
    ranged: bool = False

    def __call__(self, x: torch.Tensor, largest: torch.Tensor | None = None) -> torch.Tensor:
        """x [..., I] as its rounded values, in its type. largest: float32 [], the largest magnitude that the
        calibration saw; None where it saw none, or where `ranged` is false. Raises RuntimeError where inputs are not
        whole groups."""
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
        top = {"int8": _INT8_TOP, "fp8": _FP8_TOP, "fp4": _FP4_TOP}[self.kind]
        if self.scales == "power":
            mantissa, exponent = torch.frexp(highest)
            step = exponent - 1 + (mantissa >= _UP_FROM).int() - 2  # 6 = 1.5 * 2^2 is the largest level
            return torch.exp2(torch.where(highest > 0, step, -127).clamp(-127, 128).float())
        if self.scales == "fp8":
            factor = self.factor(largest).to(highest.device)
            scale = (factor * (highest / top)).clamp(max=_FP8_TOP).to(_FP8).to(torch.float32)
            return torch.where(scale == 0, 0.125, scale) / factor
        if self.group_size == 0:
            return self.factor(largest).to(highest.device)
        return torch.where(highest == 0, torch.finfo(torch.float32).eps, highest / top)

    def factor(self, largest: torch.Tensor | None) -> torch.Tensor:
        """float32 [], what is stored of a tensor: the scale itself, or what scales of e4m3 were multiplied with."""
        if largest is None:
            return torch.ones(())
        highest = largest.float().clamp(min=torch.finfo(torch.float32).tiny)
        return (_FP8_TOP * _FP4_TOP / highest if self.scales == "fp8" else highest / _FP8_TOP).reshape(())

    def largest(self, factor: torch.Tensor) -> torch.Tensor:
        """The inverse of `factor`."""
        top = _FP8_TOP * _FP4_TOP / factor.float() if self.scales == "fp8" else factor.float() * _FP8_TOP
        return top.reshape(())

    def _rounded(self, values: torch.Tensor) -> torch.Tensor:
        if self.kind == "int8":
            return values.clamp(-128, 127).round()
        if self.kind == "fp8":
            return values.clamp(-_FP8_TOP, _FP8_TOP).to(_FP8).to(torch.float32)
        return _to_fp4(values)


def _to_fp4(values: torch.Tensor) -> torch.Tensor:
    """The nearest e2m1, that with an even code where two are as near."""
    size = values.abs()
    step = torch.where(size < 2, 0.5, torch.where(size < 4, 1.0, 2.0))  # from a level to the next
    return torch.copysign((size / step).round_().mul_(step).clamp_(max=_FP4_TOP), values)


ACTIVATIONS = {
    "int8-token": ActivationGrid("int8", -1),
    "fp8-token": ActivationGrid("fp8", -1),
    "fp8-group": ActivationGrid("fp8", 128),
    "fp8-tensor": ActivationGrid("fp8", 0, ranged=True),
    "nvfp4": ActivationGrid("fp4", 16, "fp8", ranged=True),
    "mxfp4": ActivationGrid("fp4", 32, "power"),
}
