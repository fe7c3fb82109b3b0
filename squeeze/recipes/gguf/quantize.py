"""Quantisation to a GGUF file, with one block type for all matrices or a type for each.

`by_size` chooses the types that lose least in a file of a given size. Blocks go to a folder first, so that a stopped
run can continue, and the file is made of it at the end.
"""

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path

import torch

from squeeze.checkpoint.architectures import HEAD
from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.checkpoint.quantized import QuantizedTensor
from squeeze.engine.network import Network, weight_of
from squeeze.engine.report import Report
from squeeze.engine.selection import plan
from squeeze.engine.writing import Writer
from squeeze.errors import DamagedError, FormatError, OptionError, SqueezeError
from squeeze.integrations.gguf.export import Export, padded
from squeeze.operations import Request
from squeeze.packing.folder import sha256_of
from squeeze.quant.allocation import allocate
from squeeze.quant.blocks import GRIDS, BlockTensor, grid_of, type_for, type_of
from squeeze.quant.method import GridMethod
from squeeze.recipes.gguf.mixtures import BASES
from squeeze.recipes.options import AUTO, GGUF, Quantizing
from squeeze.recipes.quantizing.bits import FISHER_TOKENS
from squeeze.recipes.quantizing.outer import Outer
from squeeze.recipes.run import Run
from squeeze.system.documents import read_object
from squeeze.system.moving import in_the_way

__all__ = [
    "BOUNDS",
    "MIDDLE",
    "GgufTarget",
    "blocks_folder",
    "by_size",
    "check_file",
    "check_sealed",
    "method_of",
    "seal",
]

MIDDLE = "q4_k"  # what decides on the types of embedding and head
BOUNDS = {"q3_k": 4.0}  # of a token's weight where none is asked for: `bench gguf` has what it gains
_SUMS = "checksums.json"  # of the files in the folder of blocks
_TYPES = (  # to choose from, smallest first, or what fits in their places
    *("iq2_xxs", "iq2_xs", "q2_k", "iq3_xxs", "q3_k"),
    *("iq4_xs", "q4_k", "q5_k", "q6_k", "q8_0"),
)


def by_size(
    run: Run, checkpoint: Checkpoint, method: GridMethod, size: int, tokens: torch.Tensor, outer: Outer
) -> dict[str, GridMethod]:
    """Choose a method for each matrix, by the checkpoint's name, so that the file has at most `size` bytes.

    All experts of a layer get one type, since a file has them in one tensor. Raises SqueezeError if the smallest types
    are too large.

    Args:
        run: The run.
        checkpoint: The checkpoint.
        method: The method, whose grid is replaced.
        size: Bytes of the file.
        tokens: int64 [N, L], the calibration set.
        outer: Chosen types of the embedding and the head.
    """
    export, network = Export.of(checkpoint), Network(checkpoint, run.device)
    tensor_of = {source: name for name, sources in export.named.items() for source in sources}
    shapes = {
        name: weight_of(network.module(name)).shape
        for block in network.blocks
        for name in (f"{block}.{leaf}" for leaf in plan(network, block, run.common.all_ignored)[0])
    }
    kinds = {name: found for name, shape in shapes.items() if (found := _types(shape[1]))}
    units = {name: tensor_of[f"{network.stored_name(name)}.weight"] for name in kinds}
    budget = size - _others(export, units, outer)
    least = sum(
        shapes[name].numel() // GRIDS[found[0]].width * GRIDS[found[0]].block_bytes for name, found in kinds.items()
    )
    if least > budget:
        raise SqueezeError(f"expected at least {size - budget + least} bytes for the file, got {size}")

    def rounded(weight: torch.Tensor, number: int) -> tuple[torch.Tensor, int]:
        found = _types(weight.shape[1])
        if number >= len(found):
            raise SqueezeError("there are fewer")
        tensor = method.replaced(grid=found[number]).fallback().compress(weight.bfloat16()).tensor
        assert isinstance(tensor, BlockTensor)
        return tensor.dequantize(), tensor.stored_bits // 8

    sample = tokens[: max(FISHER_TOKENS // tokens.shape[1], 1)]
    levels, _ = allocate(network, sample, units, rounded, lambda _: budget, range(len(_TYPES)))
    return {network.stored_name(name): method.replaced(grid=kinds[name][levels[unit]]) for name, unit in units.items()}


def _types(inputs: int) -> list[str]:
    """Return the types whose blocks fit this number of inputs, smallest first."""
    return list(dict.fromkeys(found for name in _TYPES if (found := type_for(name, inputs))))


def _others(export: Export, units: Mapping[str, str], outer: Outer) -> int:
    """Return the bytes of a file without its matrices, with the most padding that those can need."""
    head, sizes = export.size(MIDDLE)
    matrices = set(units.values())
    for name, sources in export.named.items():
        module = sources[0].removesuffix(".weight")
        if (method := outer.stored.get(module)) is not None:
            rows, inputs = export.checkpoint.info(sources[0]).shape
            grid = GRIDS[method.grid]
            sizes[name] = padded(rows * inputs // grid.width * grid.block_bytes)
    return head + sum(size for name, size in sizes.items() if name not in matrices) + len(matrices) * (padded(1) - 1)


_SAID = ("bits", "group_size", "symmetric", "grid", "clip")  # by a type itself


def check_file(target: Path, overwrite: bool) -> None:
    """Raise SqueezeError if the file cannot be written."""
    if not target.parent.is_dir():
        raise SqueezeError(f"the folder {target.parent} does not exist")
    if target.is_dir():
        raise SqueezeError(f"{target} is a folder, and the format gguf is a file: name one, such as {target}.gguf")
    if target.exists() and not overwrite:
        raise in_the_way(target)


def blocks_folder(target: Path) -> Path:
    """Return the folder that holds blocks until the file is written."""
    return target.with_name(f".{target.name[:60]}.blocks")


def seal(folder: Path) -> None:
    """Write the checksums of the files in a folder of blocks."""
    (folder / _SUMS).write_text(json.dumps(_checksums(folder)))


def check_sealed(folder: Path) -> None:
    """Raise DamagedError, and delete the folder of blocks, if its files are not those that were sealed."""
    try:
        is_intact = read_object(folder / _SUMS) == _checksums(folder)
    except (OSError, FormatError):
        is_intact = False
    if not is_intact:
        shutil.rmtree(folder)
        raise DamagedError(f"{folder}: finished work is damaged: repeat the command, which starts anew")


def _checksums(folder: Path) -> dict[str, str]:
    return {path.name: sha256_of(path) for path in folder.iterdir() if path.is_file() and path.name != _SUMS}


def method_of(request: Request[Quantizing]) -> GridMethod:
    """Return the requested method on the grid of the requested type.

    Raises OptionError for options that GGUF does not allow.
    """
    settings = request.settings
    if conflicting := [name for name in _SAID if name in request.method_options]:
        raise OptionError(f"{conflicting[0]} cannot be set for the format gguf, whose `type` decides it")
    if settings.target_bits is not None or (settings.target_bytes is not None and settings.type != AUTO):
        raise OptionError("the format gguf takes a size as `target_bytes` with `type` auto")
    if settings.type == AUTO and settings.target_bytes is None:
        raise OptionError("`type` auto needs `target_bytes`, the size of the file")
    method: GridMethod = request.create_method()
    if not isinstance(method, GridMethod):
        raise OptionError(f"the format gguf needs a method on a grid, got {method.name}")
    if getattr(method, "dynamic", False) or getattr(method, "outliers", 0):
        raise OptionError("the format gguf has neither dynamic scales nor outlier columns")
    if isinstance(request.method, str):
        kind = BASES.get(settings.type or "", settings.type)
        return method.replaced(grid=MIDDLE if settings.type == AUTO else grid_of(kind or MIDDLE))
    if settings.type == AUTO:
        return method.replaced(grid=MIDDLE)
    if method.grid not in GRIDS:
        raise OptionError(f"the grid {method.grid} is not one of GGUF's: choose from {', '.join(GRIDS)}")
    return method


@dataclass(frozen=True)
class GgufTarget:
    """The plan of a GGUF file.

    `common_type` is the type of most matrices, None if each has its own. `types` are by the checkpoint's module name.
    `methods` are those that differ from the common one. `excluded` are modules that no type fits, by the network's
    name. `remarks` are for the report: on modules that are excluded or get another type. `outer` are methods of the
    embedding and the head by the network's name, if their types were chosen; the others are rounded to nearest.
    """

    path: Path
    export: Export
    common_type: str | None
    types: Mapping[str, str]
    methods: Mapping[str, GridMethod]
    excluded: tuple[str, ...]
    remarks: Mapping[str, str]
    outer: Mapping[str, GridMethod] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        checkpoint: Checkpoint,
        path: Path,
        method: GridMethod,
        methods: Mapping[str, GridMethod],
        ignore: tuple[str, ...],
        *,
        same_type: bool = True,
    ) -> "GgufTarget":
        """Plan the type of each matrix.

        Args:
            checkpoint: The checkpoint.
            path: The GGUF file.
            method: The common method.
            methods: Methods of single modules, by the checkpoint's name.
            ignore: Parts of the names of modules to leave alone.
            same_type: Whether the user chose the type of `method`.

        Raises:
            ModelError: If llama.cpp cannot run the model.
            FormatError: If no type fits any matrix.
            OptionError: If the experts of a layer would have different types.
        """
        export, network = Export.of(checkpoint), Network(checkpoint)
        types, exceptions, excluded, remarks = {}, dict(methods), [], {}
        for full in [f"{block}.{leaf}" for block in network.blocks for leaf in plan(network, block, ignore)[0]]:
            name, inputs = network.stored_name(full), weight_of(network.module(full)).shape[1]
            requested = methods.get(name, method)
            kind = type_for(requested.grid, inputs)
            if kind is None:
                excluded.append(full)
                remarks[name] = "its rows are not whole blocks of any type"
                continue
            types[name] = kind
            if kind != requested.grid:
                exceptions[name] = requested.replaced(grid=kind)
                reason = f"whose blocks of {GRIDS[requested.grid].width} do not fill {inputs} inputs"
                remarks[name] = f"{type_of(kind)} in place of {type_of(requested.grid)}, {reason}"
        if excluded and not types:
            raise FormatError(f"{checkpoint.folder}: no matrix can be stored: {next(iter(remarks.values()))}")
        export.check_alike(types)
        return cls(path, export, method.grid if same_type else None, types, exceptions, tuple(excluded), remarks)

    def with_outer(self, outer: Outer) -> "GgufTarget":
        """Return the plan with chosen types of the embedding and the head."""
        types = {**self.types, **{name: method.grid for name, method in outer.stored.items()}}
        return replace(self, types=types, outer=outer.methods)

    @property
    def writer(self) -> Writer:
        return Writer(GGUF, _blocks, lambda left: {})

    def finish(self, report: Report, folder: Path, overwrite: bool, mixture: str | None = None) -> Report:
        """Write the file from the folder of blocks, delete that folder, and return the report.

        `mixture` is the file's type, if the type of most matrices does not say it.
        """
        export, kind = self.export.with_blocks(folder, self.types), self.common_type or MIDDLE
        _, sizes = export.size(kind, mixture)
        report.stored_bytes = export.write(self.path, kind, overwrite=overwrite, mixture=mixture)
        for name in ("token_embd.weight", "output.weight"):
            if name in sizes:
                source = self.export.named[name][0]
                module, values = source.removesuffix(".weight"), prod(self.export.checkpoint.info(source).shape)
                report.parts[module], report.outer[module] = sizes[name], 8 * sizes[name] / values
        report.target = str(self.path)
        report.left.pop(HEAD, None)  # the file has it rounded to nearest
        shutil.rmtree(folder)
        return report


def _blocks(module: str, tensor: QuantizedTensor, transposed: bool) -> dict[str, torch.Tensor]:
    if transposed or not isinstance(tensor, BlockTensor):
        raise FormatError(f"{module}: cannot be stored in the blocks of GGUF")
    return {f"{module}.weight": tensor.blocks()}
