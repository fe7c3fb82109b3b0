"""`squeeze.quantize`: a checkpoint is quantised by a method and stored in a format."""

import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch

from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.engine.expert_names import is_expert
from squeeze.engine.forward import input_squares
from squeeze.engine.inputs import first_of
from squeeze.engine.network import Network
from squeeze.engine.pipeline import Progress
from squeeze.engine.report import Report
from squeeze.engine.selection import ignored
from squeeze.engine.sharding import LocalWorkers, Workers
from squeeze.engine.writing import Writer
from squeeze.errors import OptionError, SqueezeError, printable
from squeeze.integrations.gguf.export import Export
from squeeze.integrations.opening import check_planned
from squeeze.operations import Request
from squeeze.packing.pack import pack
from squeeze.quant.awq import AWQ, scaled
from squeeze.quant.bits import Bits
from squeeze.quant.blocks import type_of
from squeeze.quant.kv_scales import SCHEME, scaled_cache
from squeeze.quant.method import GridMethod
from squeeze.quant.methods import SCHEMES
from squeeze.quant.rotate import RotatedCheckpoint, transform_config
from squeeze.quant.smooth import SmoothedCheckpoint, can_be_smoothed
from squeeze.recipes.gguf.mixtures import methods_of
from squeeze.recipes.gguf.quantize import (
    BOUNDS,
    GgufTarget,
    blocks_folder,
    by_size,
    check_file,
    check_sealed,
    method_of,
    seal,
)
from squeeze.recipes.gguf.same import check_same, write_same
from squeeze.recipes.options import AUTO, FULL, GGUF, MIXTURES, QUANTIZE, SAME, Common, Quantizing
from squeeze.recipes.quantizing.bits import by_budget, by_name
from squeeze.recipes.quantizing.fitting import Fitted, fitted, method_of_scheme, scaled_as, settings_of_scheme
from squeeze.recipes.quantizing.outer import Outer, check_outer, outer_methods
from squeeze.recipes.quantizing.writing import SERVED, check_format, describing, loadable, make_writer, unloaded
from squeeze.recipes.run import Run, Source, read, takes_models
from squeeze.system.storage import local_path
from squeeze.system.work import other_settings

__all__ = ["pack_result", "quantize"]

_SQUARES_TOKENS = 8192  # of the calibration that smoothing and AWQ's search look at


@takes_models
def quantize(  # noqa: PLR0913
    source: Source,
    method: GridMethod | str = QUANTIZE.default,
    *,
    out: Path | str,
    methods: Mapping[str, GridMethod] | None = None,
    resume: bool = False,
    overwrite: bool = False,
    device: str = "cpu",
    progress: Progress | None = None,
    workers: Workers | None = None,
    **options: Any,
) -> Report:
    """Quantise the matrices in a checkpoint's blocks.

    Args:
        source: Hugging Face folder, or a transformers model, which is saved first.
        method: A method, or the name of one, whose options are then keyword arguments: `quantize("m", "gptq", bits=3,
            out="m3")`.
        out: Folder or GGUF file to write.
        methods: Methods of single modules, by name.
        resume: Whether to continue a stopped run; a complete `out` is kept.
        overwrite: Whether to replace what exists.
        device: Torch device.
        progress: Called with what is done and what is left.
        workers: Workers that calibrate and quantise, such as those of a cluster (cluster/calibrating.py).
        options: Fields of options.Quantizing (rotation, smoothing, bits by matrix, format, scheme) and options.Common
            (calibration). The format is one of quant.formats.FORMATS, "gguf", or "dense" for the dequantised values in
            the original dtype.

    Raises:
        SqueezeError: If an input or an option is invalid.
    """
    request, common = read(QUANTIZE, method, options)
    request = replace(request, settings=settings_of_scheme(request.settings, options))
    request = replace(request, settings=loadable(local_path(str(source)), request.settings, options))
    check_format(request.settings)
    check_outer(request.settings)
    if request.settings.type == SAME:
        check_same(method, methods, options)
        return write_same(local_path(str(source)), local_path(out), overwrite)
    shared: dict[str, Any] = {
        "resume": resume,
        "device": device,
        "progress": progress,
        "workers": workers or LocalWorkers(),
    }
    if request.settings.format == GGUF:
        shared["resume"] = resume or not overwrite  # of the folder of blocks, which is always written over
        return _gguf(local_path(str(source)), local_path(out), request, common, dict(methods or {}), overwrite, shared)
    settings = request.settings
    common_method = scaled_as(method_of_scheme(request), settings.format)
    overrides = {name: scaled_as(one, settings.format) for name, one in (methods or {}).items()}
    shared |= {"overwrite": overwrite, "correction": settings.correction}
    run = Run(source=local_path(str(source)), out=local_path(out), common=common, **shared)
    return _folder(run, settings, common_method, overrides, "group_size" in options)


def _folder(
    run: Run, settings: Quantizing, method: GridMethod, methods: Mapping[str, GridMethod], fixed_size: bool
) -> Report:
    """Quantise to a folder.

    Args:
        run: The settings of the run.
        settings: Options of quantisation.
        method: The common method.
        methods: Methods of single modules, by name.
        fixed_size: Whether the group size was asked for, so that no other one replaces it everywhere.
    """
    common = run.common
    strength, notes = _strength(run, settings, [method, *methods.values()])
    settings = replace(settings, smooth=strength)
    calibrated = any(one.needs_hessian for one in (method, *methods.values()))
    ranged = method.rounding is not None and method.rounding.ranged
    described = _described(method, settings, common)
    chooses = settings.target_bits is not None or settings.target_bytes is not None
    needs_tokens = bool(calibrated or ranged or chooses or settings.smooth or settings.kv_scheme)
    if needs_tokens:
        described |= run.described()
    report = run.waiting(method.name, described)
    if report is not None and report.format != settings.format:
        raise SqueezeError(other_settings(run.out))
    if report is not None:
        return report
    checkpoint = run.open()
    mix = by_name(checkpoint, method, common)
    make_writer(settings.format, method, {**mix.single, **methods}, checkpoint, mix.patterns)
    fit = fitted(checkpoint, method, {**mix.methods, **methods}, settings.format, mix.ignore, fixed_size)
    tokens = run.tokens() if needs_tokens else None
    source, checkpoint = checkpoint, _prepared(run, settings, checkpoint, tokens, fit.methods)
    network = fit.network if checkpoint is source else Network(checkpoint)
    outer = outer_methods(network, method, settings)
    run, remarks = mix.applied(run, fit.excluded), dict(fit.remarks)
    if chooses and tokens is not None:
        mix = by_budget(run, checkpoint, method, settings, tokens, outer)
        fit = fitted(checkpoint, method, {**mix.methods, **methods}, settings.format, mix.ignore)
        run, remarks = mix.applied(run, fit.excluded), {**remarks, **fit.remarks}
    own = {**mix.named(fit), **outer.stored}
    writer = make_writer(settings.format, fit.method, own, checkpoint, mix.patterns, fit.names)
    writer = describing(writer, _running(checkpoint, settings))
    if settings.kv_scheme and tokens is not None:
        checkpoint = scaled_cache(checkpoint, tokens, run.device)
    if settings.format == SERVED:
        _check_planned(run, checkpoint, fit, outer, writer)
    calibration = tokens if calibrated or ranged else None
    how = (checkpoint, fit.method, writer, described, calibration)
    notes += unloaded(settings.format, checkpoint, fit.methods, fit.method, mix.patterns)
    shared: dict[str, Any] = {"outer": outer.methods, "corrects": calibrated, "notes": notes}
    return run.compress(*how, methods=fit.exceptions, remarks=remarks, **shared)


def _check_planned(run: Run, checkpoint: Checkpoint, fit: Fitted, outer: Outer, writer: Writer) -> None:
    """Raise ModelError if transformers would not load what is planned. Experts are checked after writing."""
    if any(map(is_expert, fit.methods)):
        return
    network = fit.network if fit.network.checkpoint is checkpoint else Network(checkpoint)
    excluded = ignored(network, run.common.all_ignored, outer.methods)
    check_planned(checkpoint, [*fit.methods, *outer.stored], writer.config(excluded)["quantization_config"], run.out)


def _gguf(
    source: Path,
    out: Path,
    request: Request[Quantizing],
    common: Common,
    methods: dict[str, GridMethod],
    overwrite: bool,
    shared: dict[str, Any],
) -> Report:
    """Quantise to a GGUF file."""
    settings, common_method, folder = request.settings, method_of(request), blocks_folder(out)
    if common.bound is None and common_method.needs_hessian:
        common = replace(common, bound=BOUNDS.get(type_of(common_method.grid)))
    chooses, mixture = settings.type == AUTO, settings.type if settings.type in MIXTURES else None
    check_file(out, overwrite)
    run = Run(source=source, out=folder, common=common, correction=settings.correction, overwrite=True, **shared)
    checkpoint = run.open()
    if mixture:
        named, config = Export.of(checkpoint).named, checkpoint.config
        methods = {**methods_of(mixture, common_method, named, config), **methods}
    target = GgufTarget.of(checkpoint, out, common_method, methods, common.all_ignored, same_type=not chooses)
    described = _described(common_method, settings, common) | {
        "type": AUTO if chooses else mixture or type_of(common_method.grid)
    }
    tokens = run.tokens() if common_method.needs_hessian or settings.smooth or chooses else None
    outer = outer_methods(Network(checkpoint), common_method, settings)
    if settings.target_bytes is not None and tokens is not None:
        if methods:
            raise OptionError("`type` auto chooses the types of all matrices: name no methods of some")
        methods = by_size(run, checkpoint, common_method, settings.target_bytes, tokens, outer)
        described["types"] = dict(Counter(type_of(method.grid) for method in methods.values()).most_common())
        target = GgufTarget.of(checkpoint, out, common_method, methods, common.all_ignored, same_type=False)
    target = target.with_outer(outer)
    run = replace(run, common=replace(common, ignore=(*common.ignore, *target.excluded)))
    if tokens is not None:
        described |= run.described()
    report = run.waiting(common_method.name, described)
    if report is None:
        serving = {name: target.methods.get(name, common_method) for name in target.types}
        checkpoint = _prepared(run, settings, checkpoint, tokens, serving)
        calibration = tokens if common_method.needs_hessian else None
        how = (checkpoint, common_method, target.writer, described, calibration)
        shared = {"outer": target.outer, "remarks": target.remarks, "notes": target.export.notes}
        report = run.compress(*how, methods=target.methods, **shared)
        seal(folder)
    else:
        check_sealed(folder)
    return target.finish(report, folder, overwrite, mixture)


def _strength(run: Run, settings: Quantizing, methods: Sequence[GridMethod]) -> tuple[float, tuple[str, ...]]:
    """Return the strength of smoothing, and remarks for the report.

    Without an option it is the scheme's default, if the method is calibrated and does not scale inputs itself, and if
    the architecture can be smoothed.
    """
    if settings.smooth is not None:
        return settings.smooth, ()
    own = SCHEMES[settings.scheme].smooth if settings.scheme else 0.0
    if not own or settings.rotate or not methods[0].needs_hessian or any(isinstance(one, AWQ) for one in methods):
        return 0.0, ()
    checkpoint = run.open()
    if can_be_smoothed(checkpoint):
        return own, ()
    kind = printable(repr(checkpoint.config.get("model_type")))
    return 0.0, (f"inputs are not smoothed, with which {settings.scheme} begins: architecture {kind} cannot be",)


def _prepared(
    run: Run,
    settings: Quantizing,
    checkpoint: Checkpoint,
    tokens: torch.Tensor | None,
    methods: Mapping[str, GridMethod],
) -> Checkpoint:
    """Return the checkpoint after rotation, smoothing or AWQ's scaling, each of which preserves its function.

    Args:
        run: The run.
        settings: Options of quantisation.
        checkpoint: The checkpoint.
        tokens: int64 [N, L], the calibration set, or None.
        methods: Methods by the checkpoint's module name.

    Raises:
        SqueezeError: If two of the three are requested.
    """
    scales = {name: method for name, method in methods.items() if isinstance(method, AWQ)}
    if settings.rotate and settings.smooth:
        raise SqueezeError("rotation and smoothing exclude each other: choose one")
    if scales and (settings.rotate or settings.smooth):
        raise SqueezeError("awq scales channels itself: leave out rotation and smoothing")
    if settings.rotate:
        return RotatedCheckpoint.of(checkpoint, run.common.seed, settings.rotation_block, settings.rotate == FULL)
    if tokens is None or not (settings.smooth or scales):
        return checkpoint
    sample = first_of(tokens, _SQUARES_TOKENS)
    if scales:
        return scaled(checkpoint, sample, scales.get, run.device, run.common.bound)
    return SmoothedCheckpoint.of(checkpoint, input_squares(checkpoint, sample, run.device), settings.smooth or 0.0)


def _running(checkpoint: Checkpoint, settings: Quantizing) -> dict[str, Any]:
    """Return the keys of `quantization_config` that describe online rotations and the KV cache."""
    entries: dict[str, Any] = {"kv_cache_scheme": SCHEME} if settings.kv_scheme else {}
    if isinstance(checkpoint, RotatedCheckpoint) and checkpoint.online:
        entries |= transform_config(checkpoint.transforms)
    return entries


def _described(method: GridMethod, settings: Quantizing, common: Common) -> dict[str, Any]:
    """Return the settings of the method and of preparation for the report."""
    names = [entry.name for entry in fields(method) if entry.name not in ("scale_dtype", "activations")]
    description = {name: getattr(method, name) for name in names}
    if isinstance(method.bits, Bits):
        description["bits"] = str(method.bits)
    if settings.scheme:
        description |= {"scheme": settings.scheme}
    if settings.target_bits is not None or settings.target_bytes is not None:
        description |= {"target_bits": settings.target_bits, "target_bytes": settings.target_bytes}
    if common.ignore:
        description |= {"ignore": common.ignore}
    if settings.rotate:
        description |= {"rotate": settings.rotation_block or True, "seed": common.seed}
        description |= {"rotates": FULL} if settings.rotate == FULL else {}
    if settings.kv_scheme:
        description |= {"kv_scheme": settings.kv_scheme}
    description |= {key: bits for key in ("embeddings", "head") if (bits := getattr(settings, key)) is not None}
    return description | ({"smooth": settings.smooth} if settings.smooth else {})


def pack_result(
    report: Report,
    target: Path,
    overwrite: bool = False,
    threads: int = 1,
    progress: Callable[[int], None] | None = None,
    base: Path | str | None = None,
) -> None:
    """Pack the folder of a report as `target`, and delete the folder; `unpack` restores it.

    Args:
        report: The report.
        target: Folder to write.
        overwrite: Whether to replace an existing folder.
        threads: Threads of packing.
        progress: Called with the bytes of each tensor.
        base: A checkpoint that shares tensors with the folder.
    """
    unpacked = Path(report.target)
    report.target = str(target)
    report.write(unpacked)
    totals = pack(unpacked, target, overwrite=overwrite, threads=threads, progress=progress, base=base)
    report.packed = totals.raw, totals.coded
    shutil.rmtree(unpacked)
