"""AWQ checkpoints as AutoAWQ writes them (version GEMM): 4 bits with zero points, one group size for all matrices.

A module has qweight int32 [I, O / 8], qzeros int32 [G, O / 8] and scales float16 [G, O]. A word has eight outputs in
the order 0 2 4 6 1 3 5 7, from its lowest bits. A weight is (code - zero) * scale.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from squeeze.checkpoint.quantized import QuantizedTensor
from squeeze.errors import FormatError, printable
from squeeze.quant.formats.common import (
    expect,
    group_size_of,
    only_fitting,
    only_integers,
    only_plain,
    scales_as,
    split_groups,
    take,
    understood,
)
from squeeze.quant.formats.spec import Grid, QuantizationSpec

__all__ = ["AWQFormat"]

_ORDER = torch.tensor((0, 2, 4, 6, 1, 3, 5, 7))
_SHIFTS = torch.arange(0, 32, 4)
_VERSION = "gemm"


@dataclass(frozen=True)
class AWQFormat:
    """The format `awq`."""

    name: str = "awq"
    leaves: tuple[str, ...] = ("qweight", "qzeros", "scales")
    scale_dtype: torch.dtype | None = torch.float16
    transposed: bool = False

    def describes(self, config: Mapping[str, Any]) -> bool:
        return config.get("quant_method") == "awq"

    def check(self, spec: QuantizationSpec) -> None:
        only_integers(self.name, spec)
        grids = set(spec.grids.values())
        if any(grid.bits != 4 for grid in grids):
            raise FormatError("the format awq needs 4 bits")
        if any(grid.symmetric for grid in grids):
            raise FormatError("the format awq needs zero points: add `asymmetric`")
        if len(grids) > 1:
            raise FormatError("the format awq needs one group size for all matrices")

    def misfit(self, grid: Grid, outputs: int, inputs: int) -> str | None:
        if outputs % 8:
            return f"{outputs} outputs do not fill the words of awq"
        return split_groups(self.name, grid, inputs)

    def needs_one_grid(self, grid: Grid) -> bool:
        """Return True: a folder has one description for all modules."""
        return True

    def keeps_weight(self, grid: Grid) -> bool:
        return False

    def tensors(
        self, name: str, weight: QuantizedTensor, dtype: torch.dtype, grid: Grid | None = None
    ) -> dict[str, torch.Tensor]:
        """Return the tensors of a weight; see Format.tensors. Scales are float16 in any case, as AutoAWQ's kernels take
        them."""
        only_plain(self.name, name, weight)
        if weight.bits != 4 or weight.zeros is None:
            raise FormatError(f"{name}: the format awq needs codes of 4 bits with zero points")
        only_fitting(name, self.misfit(grid or Grid(4, weight.group_size, False), *weight.shape))
        return {
            f"{name}.qweight": _packed(weight.codes.T),
            f"{name}.qzeros": _packed(weight.zeros.T),
            f"{name}.scales": scales_as(torch.float16, name, weight.scales[0]).T.contiguous(),
        }

    def weight(self, name: str, tensors: Mapping[str, torch.Tensor], spec: QuantizationSpec) -> QuantizedTensor:
        words, zeros = (take(name, tensors, leaf, torch.int32) for leaf in ("qweight", "qzeros"))
        scales = take(name, tensors, "scales")
        if words.ndim != 2 or scales.ndim != 2:
            raise FormatError(f"{name}: qweight and scales are not matrices")
        inputs, outputs, groups = len(words), 8 * words.shape[1], len(scales)
        expect(name, "scales", scales, groups, outputs)
        expect(name, "qzeros", zeros, groups, words.shape[1])
        size = group_size_of(name, inputs, groups, spec.of(name).group_size)
        codes, points = (_unpacked(packed).T.contiguous() for packed in (words, zeros))
        return QuantizedTensor(codes, scales.T.contiguous()[None], points, 4, size)

    def config(self, spec: QuantizationSpec) -> dict[str, Any]:
        self.check(spec)
        return {
            "quant_method": self.name,
            "bits": 4,
            "group_size": spec.group_size,
            "zero_point": True,
            "version": _VERSION,
            "modules_to_not_convert": list(spec.ignored),
        }

    def spec(self, config: Mapping[str, Any]) -> QuantizationSpec:
        bits, version = config.get("bits", 4), str(config.get("version") or config.get("format") or _VERSION)
        if bits != 4 or version.lower() != _VERSION:
            said = f"{printable(bits)} bits in version {printable(repr(version))}"
            raise FormatError(f"expected AWQ of 4 bits in version '{_VERSION}', got {said}")
        with understood("the quantization_config of awq"):
            size = int(config.get("group_size", 128))
            ignored = tuple(str(name) for name in config.get("modules_to_not_convert") or ())
        return QuantizationSpec(4, size, False, ignored=ignored)


def _packed(values: torch.Tensor) -> torch.Tensor:
    """Pack uint8 [R, O] into int32 [R, O / 8]."""
    fields: torch.Tensor = values.to(torch.int64).unflatten(-1, (-1, 8))[..., _ORDER]
    words = (fields << _SHIFTS).sum(-1)
    return torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)


def _unpacked(words: torch.Tensor) -> torch.Tensor:
    """Unpack int32 [R, O / 8] into uint8 [R, O]."""
    fields = (words[..., None] >> _SHIFTS.to(torch.int32) & 15).to(torch.uint8)
    return fields[..., _ORDER.argsort()].flatten(-2)
