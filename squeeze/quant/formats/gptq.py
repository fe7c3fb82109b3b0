"""GPTQ checkpoints of AutoGPTQ, GPTQModel, transformers and vLLM: the formats `gptq` and `gptq_v2`.

A module has qweight int32 [I bits / 32, O], packed along the inputs, and qzeros int32 [G, O bits / 32], packed along
the outputs. It also has scales [G, O], and g_idx int32 [I], the group of each input. Version 1 stores zero points minus
one. Its words are those of version 2 minus 1 in every field, with borrows between fields in files of GPTQModel. Clients
disagree about a zero point of 0, and GPTQModel loads only asymmetric grids of its own making, so asymmetric grids are
written as version 2.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from squeeze.checkpoint import quantized as packing
from squeeze.checkpoint.quantized import QuantizedTensor
from squeeze.errors import FormatError, printable
from squeeze.quant.formats.common import (
    expect,
    group_size_of,
    of_columns,
    only_bits,
    only_fitting,
    only_integers,
    only_plain,
    scales_as,
    split_groups,
    take,
    understood,
)
from squeeze.quant.formats.spec import Grid, QuantizationSpec
from squeeze.version import __version__

_HEAD = "lm_head"
_BITS = (2, 3, 4, 8)  # that its clients read
# Modules that vLLM fuses: a rule for the parts has to match the fused module, too.
_FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}


def version_of(config: Mapping[str, Any]) -> Any:
    """Return the version of the format that a `quantization_config` names."""
    return config.get("checkpoint_format") or config.get("format") or "gptq"


@dataclass(frozen=True)
class GPTQFormat:
    """The formats `gptq` (version 1) and `gptq_v2`."""

    version: int
    leaves: tuple[str, ...] = ("qweight", "qzeros", "scales", "g_idx")
    scale_dtype: torch.dtype | None = None
    transposed: bool = False

    @property
    def name(self) -> str:
        return "gptq" if self.version == 1 else "gptq_v2"

    def describes(self, config: Mapping[str, Any]) -> bool:
        return config.get("quant_method") == "gptq" and version_of(config) == self.name

    def check(self, spec: QuantizationSpec) -> None:
        only_integers(self.name, spec)
        only_bits(self.name, spec, _BITS)
        if self.version == 1 and not all(grid.symmetric for grid in spec.grids.values()):
            raise FormatError(
                "the format gptq needs symmetric grids, as its clients disagree on zero points: use gptq_v2"
            )

    def misfit(self, grid: Grid, outputs: int, inputs: int) -> str | None:
        if outputs * grid.bits % 32 or inputs * grid.bits % 32:
            return f"{outputs} x {inputs} codes of {grid.bits} bits do not fill the words of {self.name}"
        return split_groups(self.name, grid, inputs)

    def needs_one_grid(self, grid: Grid) -> bool:
        return False

    def keeps_weight(self, grid: Grid) -> bool:
        return False

    def tensors(
        self, name: str, weight: QuantizedTensor, dtype: torch.dtype, grid: Grid | None = None
    ) -> dict[str, torch.Tensor]:
        only_plain(self.name, name, weight)
        (outputs, inputs), bits = weight.shape, weight.bits
        only_fitting(name, self.misfit(grid or Grid(bits, weight.group_size), outputs, inputs))
        zeros = weight.zeros
        if zeros is None:
            zeros = torch.full((outputs, weight.scales.shape[2]), 1 << (bits - 1), dtype=torch.uint8)
        if self.version == 1 and bool(torch.any(zeros == 0)):
            raise FormatError(f"{name}: has a zero point of 0, on which clients of gptq disagree: use gptq_v2")
        stored_zeros = zeros.T.contiguous() - (2 - self.version)
        return {
            f"{name}.qweight": packing.pack(weight.codes, bits).T.contiguous(),
            f"{name}.qzeros": packing.pack(stored_zeros, bits),
            f"{name}.scales": scales_as(dtype, name, weight.scales[0]).T.contiguous(),
            f"{name}.g_idx": torch.arange(inputs, dtype=torch.int32) // weight.group_size,
        }

    def weight(self, name: str, tensors: Mapping[str, torch.Tensor], spec: QuantizationSpec) -> QuantizedTensor:
        grid = spec.of(name)
        packed, scales = take(name, tensors, "qweight", torch.int32), take(name, tensors, "scales")
        words = take(name, tensors, "qzeros", torch.int32)
        if packed.ndim != 2 or scales.ndim != 2:
            raise FormatError(f"{name}: qweight and scales are not matrices")
        bits, outputs, groups = grid.bits, packed.shape[1], scales.shape[0]
        inputs = packed.shape[0] * 32 // bits
        expect(name, "scales", scales, groups, outputs)
        expect(name, "qzeros", words, groups, packing.words_for(outputs, bits))
        zeros = self._zeros(words, bits, outputs).T.contiguous()
        plain = grid.symmetric and not bool(torch.any(zeros != 1 << (bits - 1)))
        codes, scales = packing.unpack(packed.T.contiguous(), bits, inputs), scales.T.contiguous()
        size = group_size_of(name, inputs, groups, grid.group_size)
        weight = QuantizedTensor(codes, scales[None], None if plain else zeros, bits, size)
        return of_columns(name, "g_idx", tensors, weight)

    def _zeros(self, words: torch.Tensor, bits: int, outputs: int) -> torch.Tensor:
        """Unpack zero points, uint8 [G, O]. Borrows of version 1 go through whole words if no field straddles two."""
        if self.version == 2:
            return packing.unpack(words, bits, outputs)
        if 32 % bits:
            return packing.unpack(words, bits, outputs) + 1 & (1 << bits) - 1
        return packing.unpack(words + _ones(bits, outputs), bits, outputs)

    def config(self, spec: QuantizationSpec) -> dict[str, Any]:
        self.check(spec)
        return {
            "quant_method": "gptq",
            "checkpoint_format": self.name,
            "bits": spec.bits,
            "group_size": spec.group_size,
            "sym": spec.symmetric,
            "desc_act": False,
            "lm_head": _HEAD not in spec.ignored,
            "pack_dtype": "int32",
            "dynamic": _rules(spec),
            "meta": {"quantizer": [f"squeeze:{__version__}"], "method": spec.method},
        }

    def spec(self, config: Mapping[str, Any]) -> QuantizationSpec:
        with understood("the quantization_config of gptq"):
            common = Grid(int(config["bits"]), int(config.get("group_size", 128)), bool(config.get("sym", True)))
            ignored, modules, patterns = _exceptions(dict(config.get("dynamic") or {}), common)
        if config.get("pack_dtype", "int32") != "int32":
            raise FormatError(f"gptq: expected a pack_dtype of int32, got {printable(config['pack_dtype'])}")
        meta = config.get("meta")
        method = meta.get("method") if isinstance(meta, Mapping) else None
        spec = QuantizationSpec(
            *(common.bits, common.group_size, common.symmetric),
            ignored=ignored if config.get("lm_head") else (*ignored, _HEAD),
            modules=modules,
            patterns=patterns,
            method=method if isinstance(method, str) else None,
        )
        only_bits(self.name, spec, _BITS)
        return spec


def _ones(bits: int, count: int) -> torch.Tensor:
    """Return int32 words with 1 in each of `count` fields."""
    return packing.pack(torch.ones((1, count), dtype=torch.uint8), bits)


def _rules(spec: QuantizationSpec) -> dict[str, dict[str, int | bool]]:
    """Return GPTQModel's `dynamic`: a regular expression for every module with another grid, or that is not
    quantised."""
    ignored = [name for name in spec.ignored if name != _HEAD]
    grids: dict[str, Grid | None] = {**dict.fromkeys(ignored), **spec.modules}
    rules: dict[str, dict[str, int | bool]] = {}
    for name, grid in grids.items():
        names, (parent, _, leaf) = [name], name.rpartition(".")
        for fused, leaves in _FUSED.items():
            if leaf in leaves and all(grids.get(f"{parent}.{other}", spec.common) == grid for other in leaves):
                names.append(f"{parent}.{fused}")
        sign, changed = ("-", {}) if grid is None else ("+", _changed(grid))
        rules |= {f"{sign}:^{re.escape(one)}$": changed for one in names}
    return rules | {f"+:{pattern}": _changed(grid) for pattern, grid in spec.patterns}


def _changed(grid: Grid) -> dict[str, int | bool]:
    return {"bits": grid.bits, "group_size": grid.group_size, "sym": grid.symmetric}


def _exceptions(
    rules: Mapping[str, Any], common: Grid
) -> tuple[tuple[str, ...], dict[str, Grid], tuple[tuple[str, Grid], ...]]:
    """Parse `dynamic` into ignored modules, grids of modules, and grids of patterns.

    Patterns of ignored modules are left out, since the tensors show which modules are quantised.
    """
    ignored: list[str] = []
    modules: dict[str, Grid] = {}
    patterns: list[tuple[str, Grid]] = []
    for rule, changed in rules.items():
        pattern = rule.removeprefix("+:").removeprefix("-:")
        name = re.sub(r"\\(.)", r"\1", pattern[1:-1])
        exact = pattern == f"^{re.escape(name)}$"
        if rule.startswith("-:"):
            ignored += [name] * exact
            continue
        with understood(f"the rule {printable(repr(rule))} of gptq"):
            values = {**_changed(common), **dict(changed)}
            grid = Grid(int(values["bits"]), int(values["group_size"]), bool(values["sym"]))
        if exact:
            modules[name] = grid
        else:
            patterns.append((pattern, grid))
    return tuple(ignored), modules, tuple(patterns)
