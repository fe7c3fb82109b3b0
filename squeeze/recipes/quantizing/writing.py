"""Writers of quantised matrices: a format of quant/formats/, or dense dequantised values."""

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.checkpoint.config_json import CONFIG, read_config
from squeeze.checkpoint.diffusion import is_diffusion
from squeeze.checkpoint.quantized import QuantizedTensor
from squeeze.engine.expert_names import is_expert, is_merged
from squeeze.engine.writing import Writer
from squeeze.errors import FormatError, OptionError
from squeeze.quant.blocks import GRIDS
from squeeze.quant.codebooks import Float8
from squeeze.quant.formats import FORMATS, Grid, QuantizationSpec
from squeeze.quant.method import GridMethod
from squeeze.quant.trellis import stored as trellis
from squeeze.quant.trellis.method import Trellis
from squeeze.recipes.options import FULL, GGUF, Quantizing

__all__ = ["DENSE", "SERVED", "check_format", "describing", "grid_of", "loadable", "make_writer", "unloaded"]

Patterns = tuple[tuple[str, GridMethod], ...]
DENSE = "dense"
OWN = "squeeze"  # our format
SERVED = "compressed-tensors"  # the format that rounds activations, too
# transformers takes the first group whose pattern names experts for all of them, or else the first group that names
# modules one by one, although it is for others.
EXPERTS = r".*\.experts\."


def make_writer(
    name: str,
    method: GridMethod,
    methods: Mapping[str, GridMethod],
    checkpoint: Checkpoint,
    patterns: Patterns = (),
    names: Mapping[str, str] | None = None,
) -> Writer:
    """Return a writer of a format.

    Args:
        name: Name of the format.
        method: The common method.
        methods: Methods of single modules, by the checkpoint's name.
        checkpoint: The checkpoint.
        patterns: Methods by regular expression.
        names: Names that transformers gives to renamed modules.

    Raises:
        FormatError: If the format is unknown, or cannot hold what the methods make.
    """
    dtype, rounds = checkpoint.float_type(), any(one.activations for one in (method, *methods.values()))
    if rounds and name != SERVED:
        raise FormatError(f"the format {name} cannot describe quantised activations: use {SERVED}")
    if name == DENSE:
        return _dense(dtype)
    if any(isinstance(one, Trellis) for one in (method, *methods.values())):
        if not all(isinstance(one, Trellis) for one in (method, *methods.values())):
            raise FormatError("expected one kind of codes in a folder, got trellis and grids: use the format dense")
        if name != OWN:
            raise FormatError(f"the format {name} does not hold trellis codes: use {OWN}, or {DENSE}")
        return trellis.make_writer(dtype)
    if block := next((one.grid for one in (method, *methods.values()) if one.grid in GRIDS), None):
        raise FormatError(f"the grid {block} is one of GGUF's: use the format {GGUF}, or {DENSE}")
    if name not in FORMATS:
        raise FormatError(f"format {name!r} is unknown: choose from {', '.join([DENSE, GGUF, *FORMATS])}")
    stored_format = FORMATS[name]
    spec = _spec(method, methods, patterns, dtype)
    if name == SERVED and spec.modules and any(map(is_expert, checkpoint.files)):
        spec = replace(spec, patterns=(*spec.patterns, (EXPERTS, spec.common)))
    stored_format.check(spec)

    def tensors(module: str, tensor: QuantizedTensor, transposed: bool) -> dict[str, torch.Tensor]:
        assert stored_format.transposed or not transposed, module
        return stored_format.tensors(module, tensor, dtype, spec.of(module))

    def config(ignored: list[str]) -> dict[str, Any]:
        return {
            "quantization_config": stored_format.config(
                _by_both_names(replace(spec, ignored=tuple(ignored)), names or {})
            )
        }

    return Writer(name, tensors, config, measured=rounds or spec.codebook == "fp8", biases=True)


def _by_both_names(spec: QuantizationSpec, names: Mapping[str, str]) -> QuantizationSpec:
    """Return the description with a pattern for each renamed module that matches both of its names.

    Readers of the checkpoint look for one name, and loaders of a model for the other.
    """
    modules = {name: grid for name, grid in spec.modules.items() if name not in names}
    both = tuple(
        (f"(?:{re.escape(name)}|{re.escape(names[name])})$", grid)
        for name, grid in spec.modules.items()
        if name in names
    )
    return replace(spec, modules=modules, patterns=(*both, *spec.patterns))


def check_format(settings: Quantizing) -> None:
    """Raise OptionError for options of another format, and FormatError if the format has no rotations or KV scales."""
    if settings.type is not None and settings.format != GGUF:
        raise OptionError(f"`type` needs the format {GGUF}, got {settings.format}")
    if settings.format == SERVED:
        return
    if settings.rotate == FULL:
        raise FormatError(f"the format {settings.format} has no rotations at run time: rotate full needs {SERVED}")
    if settings.kv_scheme:
        raise FormatError(f"the format {settings.format} has no scales of a KV cache: kv_scheme needs {SERVED}")


def loadable(folder: Path, settings: Quantizing, given: Collection[str]) -> Quantizing:
    """Return the settings in a format that the model's library loads: that of a model of diffusers is our own.

    Args:
        folder: Folder of the model.
        settings: Options of quantisation.
        given: Names of the options that the caller set.

    Raises:
        FormatError: If another format or a scheme is given.
    """
    if not (folder / CONFIG).is_file() or not is_diffusion(read_config(folder)):
        return settings
    if settings.format == SERVED and "format" not in given and settings.scheme is None:
        return replace(settings, format=OWN)
    if settings.format not in (OWN, DENSE):
        what = f"the scheme {settings.scheme}" if settings.scheme else f"the format {settings.format}"
        raise FormatError(f"{folder}: diffusers loads no models in {what}: use the format {OWN} or {DENSE}")
    return settings


def unloaded(
    format: str, checkpoint: Checkpoint, methods: Mapping[str, GridMethod], common: GridMethod, patterns: Patterns = ()
) -> tuple[str, ...]:
    """Return a remark for the report if transformers alone cannot load the experts.

    transformers merges experts that it knows, on the grid of the first pattern that mentions experts, or else on the
    common one.

    Args:
        format: Name of the format.
        checkpoint: The checkpoint.
        methods: Methods of all matrices, by the checkpoint's name.
        common: The common method.
        patterns: Methods by regular expression.
    """
    experts = [name for name in methods if is_expert(name)]
    if format != SERVED or not experts:
        return ()
    grid = grid_of(next((one for pattern, one in patterns if "experts" in pattern), common))
    integers = grid.codebook is None and grid.symmetric and grid.activations is None
    taken = integers or grid.codebook == "mxfp4" or (grid.codebook == "fp8" and grid.group_size == -1)
    alike = {grid_of(methods[name]) for name in experts} == {grid}
    if taken and alike and is_merged(checkpoint.config.get("model_type"), experts[0]):
        return ()
    loads = "`import squeeze.integrations.transformers` first, or `squeeze densify` them"
    return (f"experts: transformers alone loads them wrongly or not at all in this form: {loads}",)


def describing(writer: Writer, entries: Mapping[str, Any]) -> Writer:
    """Return a writer that adds keys to the `quantization_config`."""

    def config(left: list[str]) -> dict[str, Any]:
        described = writer.config(left)
        return {"quantization_config": {**described["quantization_config"], **entries}}

    return replace(writer, config=config) if entries else writer


def _dense(dtype: torch.dtype) -> Writer:
    def tensors(module: str, tensor: QuantizedTensor, transposed: bool) -> dict[str, torch.Tensor]:
        values = tensor.dequantize(dtype)
        return {f"{module}.weight": values.T.contiguous() if transposed else values}

    return Writer(DENSE, tensors, lambda left: {}, biases=True)


def grid_of(method: GridMethod) -> Grid:
    """Return the grid of a method's weights."""
    quantizer = method.as_quantizer()
    codebook = None if quantizer.codebook is None else method.grid.removesuffix("-planes")
    rows = 1
    if isinstance(quantizer, Float8):
        codebook, rows = "fp8", quantizer.rows
    return Grid(
        *(quantizer.bits, quantizer.group_size or method.group_size, method.symmetric, codebook),
        outliers=bool(getattr(method, "outliers", 0)),
        rows=rows,
        activations=method.activations,
    )


def _spec(
    method: GridMethod, methods: Mapping[str, GridMethod], patterns: Patterns, dtype: torch.dtype
) -> QuantizationSpec:
    common = grid_of(method)
    fits = [re.compile(pattern).match for pattern, _ in patterns]
    grids = {name: grid_of(one) for name, one in methods.items()}
    other = {name: grid for name, grid in grids.items() if grid != common or any(fit(name) for fit in fits)}
    by_pattern = tuple((pattern, grid_of(grid_method)) for pattern, grid_method in patterns)
    told: dict[str, Any] = {"dtype": dtype, "method": method.name}
    told["ordered"] = all(getattr(one, "act_order", False) for one in (method, *methods.values()))
    return QuantizationSpec.of_grid(common, modules=other, patterns=by_pattern, **told)
