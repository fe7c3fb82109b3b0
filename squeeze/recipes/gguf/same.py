"""A GGUF file with the codes of a quantised folder, such as a recovered one: nothing is calibrated or rounded again.

A weight on a grid of integers is a whole number times a scale. Blocks of q4_0, q5_0 and q8_0 hold such numbers, from -8
to 7, from -16 to 15 and from -128 to 127, each 32 with a scale in half precision. Codes of 2 and 3 bits fit into q4_0,
whatever their zero points are. Symmetric codes of 4 bits fit as well, dense or 2:4; those with zero points need q5_0.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from squeeze.checkpoint.checkpoint import Checkpoint, View
from squeeze.checkpoint.quantized import QuantizedTensor
from squeeze.checkpoint.sparse import SparseTensor
from squeeze.checkpoint.stored import Stored
from squeeze.engine.report import Layer, Report
from squeeze.errors import FormatError, OptionError
from squeeze.integrations.forms import open_stored
from squeeze.integrations.gguf.export import Export
from squeeze.quant.activations import are_rounded
from squeeze.quant.block_grid import BlockGrid
from squeeze.quant.blocks import GRIDS, BlockTensor
from squeeze.quant.sources import READERS, floats
from squeeze.recipes.gguf.quantize import check_file
from squeeze.recipes.options import GGUF, QUANTIZE, SAME
from squeeze.recipes.train.student import expanding

__all__ = ["check_same", "in_blocks", "write_same"]

_TYPES: dict[str, BlockGrid] = {  # of whole numbers, smallest first; rounding to q8_0 does without -128
    **{name: GRIDS[name] for name in ("q4_0", "q5_0")},
    "q8_0": replace(GRIDS["q8_0"], levels=tuple(map(float, range(-128, 128)))),
}
_ORDER = tuple(_TYPES)
_BLOCK = 32
_OTHERWISE = "choose a `type` to round it to, such as q4_k"


def check_same(method: object, methods: object, options: Mapping[str, Any]) -> None:
    """Raise OptionError for arguments of `squeeze.quantize` that quantise, which the type `same` does not."""
    unused = ["method"] if method != QUANTIZE.default else ["methods"] if methods else []
    if unused := [*unused, *(name for name in options if name not in ("format", "type"))]:
        raise OptionError(f"the type {SAME} keeps the codes of the source: leave out `{unused[0]}`, or choose a type")


def write_same(source: Path, out: Path, overwrite: bool) -> Report:
    """Write a quantised folder as a GGUF file that computes the same numbers.

    Args:
        source: The folder.
        out: The GGUF file.
        overwrite: Whether to replace an existing file.

    Raises:
        FormatError: If a matrix is on a grid that no type of whole numbers holds, or nothing is on a grid.
        ModelError: If llama.cpp cannot run the model.
    """
    started = time.perf_counter()
    check_file(out, overwrite)
    codes = _Codes.of(source)
    kinds = codes.kinds()
    views = {f"{module}.weight": codes.view(module, kind) for module, kind in kinds.items()}
    export = replace(codes.export, checkpoint=codes.export.checkpoint.showing(views), types=kinds)
    common = max(_TYPES, key=list(kinds.values()).count)
    report = Report(str(source), str(out), SAME, GGUF, {"type": SAME}, codes.rows(kinds))
    described = codes.export.checkpoint
    report.parameters = sum(torch.Size(described.info(name).shape).numel() for name in described.files)
    report.raw_bytes = codes.checkpoint.bytes_of(codes.checkpoint.files)
    report.stored_bytes = export.write(out, overwrite=overwrite, mixture=common.upper())
    report.notes.extend(export.notes)
    if are_rounded(codes.checkpoint.config.get("quantization_config")):
        report.notes.append("the folder rounds activations, which GGUF cannot say: llama.cpp rounds them its own way")
    report.seconds = round(time.perf_counter() - started, 3)
    return report


@dataclass(frozen=True)
class _Codes:
    """The weights of a folder that are on grids, and the Export of the folder in floats."""

    checkpoint: Checkpoint
    stored: Stored
    export: Export

    @classmethod
    def of(cls, source: Path) -> "_Codes":
        checkpoint = Checkpoint.open(source)
        stored = open_stored(checkpoint)
        method = str((checkpoint.config.get("quantization_config") or {}).get("quant_method"))
        dense = floats(checkpoint) if method in READERS else expanding(checkpoint, stored.modules, stored.weight)
        return cls(checkpoint, stored, Export.of(dense))

    def blocks(self, module: str, kind: str | None = None) -> BlockTensor:
        """Return a weight in blocks of a type, by default of the smallest that holds it.

        Raises FormatError, which names the module, if no type holds it.
        """
        names = [f"{module}.{leaf}" for leaf in self.stored.modules[module]]
        weight = self.stored.weight(module, self.checkpoint.load(names, strict=False))
        found = in_blocks(weight, kind)
        if isinstance(found, str):
            raise FormatError(f"{self.checkpoint.folder}: {module} is not kept exactly in GGUF: {found}: {_OTHERWISE}")
        shape = self.export.checkpoint.info(f"{module}.weight").shape
        if found.shape != shape:
            raise FormatError(f"{self.checkpoint.folder}: {module} is stored transposed: {_OTHERWISE}")
        return found

    def kinds(self) -> dict[str, str]:
        """Return the type of each module: the smallest that holds all modules of the same tensor of the file."""
        kinds: dict[str, str] = {}
        for sources in self.export.named.values():
            modules = [source.removesuffix(".weight") for source in sources]
            if not any(module in self.stored.modules for module in modules):
                continue
            if other := [module for module in modules if module not in self.stored.modules]:
                raise FormatError(f"{self.checkpoint.folder}: {other[0]} is dense, and others of its tensor are not")
            widest = max((self.blocks(module).grid.name for module in modules), key=_ORDER.index)
            kinds |= dict.fromkeys(modules, widest)
        return kinds

    def view(self, module: str, kind: str) -> View:
        """Return the blocks of a module as a tensor, uint8 [O, bytes of a row]."""
        rows, inputs = self.export.checkpoint.info(f"{module}.weight").shape
        name, grid = f"{module}.weight", _TYPES[kind]

        def read(index: int | None = None) -> torch.Tensor:
            blocks = self.blocks(module, kind).blocks()
            return blocks if index is None else blocks[index]

        return View(name, "U8", (rows, inputs // grid.width * grid.block_bytes), read)

    def rows(self, kinds: Mapping[str, str]) -> list[Layer]:
        """Return the rows of the report."""
        rows = []
        for module, kind in kinds.items():
            outputs, inputs = self.export.checkpoint.info(f"{module}.weight").shape
            bits = 8 * _TYPES[kind].block_bytes / _TYPES[kind].width
            rows.append(Layer(module, (outputs, inputs), SAME, bits, 0.0, 0))
        return rows


def in_blocks(weight: object, kind: str | None = None) -> BlockTensor | str:
    """Return a weight in blocks of a type, or why they would not have its values.

    Args:
        weight: The stored weight [O, I].
        kind: The type; None for the smallest that holds it.
    """
    grid = weight.values if isinstance(weight, SparseTensor) else weight
    if not isinstance(grid, QuantizedTensor) or grid.codebook is not None:
        return "its weights are not whole numbers times a scale"
    if isinstance(weight, SparseTensor) and weight.adapters is not None:
        return "it has a low-rank addition"
    if grid.outliers is not None:
        return "some of its columns are floats"
    inputs = grid.shape[1]
    if inputs % _BLOCK or (grid.group_size % _BLOCK and grid.group_size < inputs):
        return f"blocks of {_BLOCK} inputs do not fit into its rows and groups of {grid.group_size}"
    scales = grid.scales[0].float() * (1.0 if grid.global_scale is None else float(grid.global_scale))
    if not torch.equal(scales.half().float(), scales):
        return "its scales are finer than half precision"
    numbers = _numbers(grid)
    if isinstance(weight, SparseTensor):
        numbers = numbers.masked_fill(~weight.mask, 0)
    for name in (kind,) if kind else _TYPES:
        blocks = _TYPES[name]
        low, high = int(blocks.levels[0]), int(blocks.levels[-1])
        if low <= int(numbers.min()) and int(numbers.max()) <= high:
            group = torch.arange(0, inputs, _BLOCK) // grid.group_size
            params = blocks.params(scales[:, group][None], None)
            return BlockTensor.of(blocks, (numbers - low).to(torch.uint8), params)
    return f"its numbers are from {int(numbers.min())} to {int(numbers.max())}"


def _numbers(grid: QuantizedTensor) -> torch.Tensor:
    """Return codes without their zero points, int16 [O, I]."""
    if grid.zeros is None:
        return grid.codes.to(torch.int16) - (1 << (grid.bits - 1))
    group = torch.arange(grid.shape[1]) // grid.group_size
    return grid.codes.to(torch.int16) - grid.zeros.to(torch.int16)[:, group]
