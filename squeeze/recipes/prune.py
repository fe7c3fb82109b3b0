"""`squeeze.prune`: a checkpoint is pruned by a method, then quantised, recovered and stored as the options say."""

from dataclasses import fields
from pathlib import Path
from typing import Any, cast

import torch

from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.checkpoint.sparse import SparseTensor
from squeeze.engine.forward import input_squares
from squeeze.engine.pipeline import Progress
from squeeze.engine.report import NAME as REPORT, Report
from squeeze.engine.sharding import LocalWorkers, Workers
from squeeze.engine.writing import Writer
from squeeze.errors import SqueezeError
from squeeze.operations import Request
from squeeze.options import values_of
from squeeze.prune.method import PruningMethod
from squeeze.prune.permute import PermutedCheckpoint
from squeeze.prune.slim import SLiM
from squeeze.prune.sparse24 import SparseFormat
from squeeze.prune.sparsegpt import SparseGPT
from squeeze.quant.gptq import GPTQ
from squeeze.recipes.options import PRUNE, RECOVER, Pruning, Recovering
from squeeze.recipes.run import Run, Source, read, takes_models
from squeeze.recipes.train.distil import Training
from squeeze.recipes.train.retrain import recover
from squeeze.system.storage import local_path

__all__ = ["prune", "recovered", "requested_method"]


@takes_models
def prune(
    source: Source,
    method: PruningMethod | str = PRUNE.default,
    *,
    out: Path | str,
    resume: bool = False,
    overwrite: bool = False,
    device: str = "cpu",
    progress: Progress | None = None,
    workers: Workers | None = None,
    **options: Any,
) -> Report:
    """Prune the matrices in a checkpoint's blocks.

    Args:
        source: Hugging Face folder, or a transformers model, which is saved first.
        method: A method, or the name of one, whose options are then keyword arguments: `prune("m", "wanda",
            pattern="2:4", out="m24")`.
        out: Folder to write.
        resume: Whether to continue a stopped run, also during recovery.
        overwrite: Whether to replace an existing folder.
        device: Torch device.
        progress: Called with what is done and what is left.
        workers: Workers that calibrate and prune, such as those of a cluster.
        options: Fields of options.Pruning and options.Common.

    Raises:
        SqueezeError: If an input or an option is invalid.
    """
    request, common = read(PRUNE, method, options)
    settings, requested = request.settings, requested_method(request)
    if settings.recover and (settings.dense or requested.quantises):
        raise SqueezeError(
            "recovery takes neither quantised weights nor a dense folder: let a recipe prune, recover and then quantize"
        )
    shared: dict[str, Any] = {"resume": resume, "overwrite": overwrite, "device": device, "progress": progress}
    shared |= {"correction": settings.correction, "workers": workers or LocalWorkers()}
    run = Run(source=local_path(str(source)), out=local_path(out), common=common, **shared)
    calibrated = requested.needs_hessian or settings.permute or settings.recover > 0
    described = _settings(requested)
    if calibrated:
        described |= ({"permute": True} if settings.permute else {}) | run.described()
    report = run.waiting(requested.name, described) if settings.recover else None
    checkpoint = run.open(report)
    tokens = run.tokens() if calibrated else None
    if report is None:
        if settings.permute and tokens is not None:
            checkpoint = PermutedCheckpoint.of(checkpoint, input_squares(checkpoint, tokens, device), requested.pattern)
        writer, sequences = (
            _writer(settings.dense, requested, checkpoint),
            tokens if requested.needs_hessian else None,
        )
        report = run.compress(checkpoint, requested, writer, described, sequences, corrects=requested.corrects)
    if not settings.recover or tokens is None:
        return report
    return _trained(run, Recovering(minutes=settings.recover), tokens)


def recovered(
    original: Path,
    target: Path,
    *,
    resume: bool = False,
    device: str = "cpu",
    progress: Progress | None = None,
    **options: Any,
) -> Report:
    """Retrain a pruned folder in place, and return its report.

    Args:
        original: Folder of the original model.
        target: The pruned folder.
        resume: Whether to continue a stopped run.
        device: Torch device.
        progress: Called with what is done and what is left.
        options: Fields of options.Recovering, and those of options.Common that describe the calibration.
    """
    if not (target / REPORT).is_file():
        raise SqueezeError(f"{target}: has no {REPORT}; `squeeze prune` writes such folders")
    request, common = read(RECOVER, None, options)
    shared: dict[str, Any] = {"resume": resume, "device": device, "progress": progress}
    run = Run(source=original, out=target, common=common, correction=0.0, **shared)
    return _trained(run, request.settings, run.tokens())


def _trained(run: Run, settings: Recovering, tokens: torch.Tensor) -> Report:
    """Retrain a pruned folder and return its report."""
    report = Report.read(run.out)
    values = values_of(settings)
    rank, _, _ = (values.pop(name) for name in ("rank", "codes", "blocks"))  # the last two are for codes
    shared: dict[str, Any] = {"resume": run.resume, "device": run.device, "progress": run.progress}
    done = recover(run.source, run.out, tokens, Training(seed=run.common.seed, **values, **shared), rank)
    report.settings |= {"recovery": f"{done.steps} steps"}
    checkpoint = Checkpoint.open(run.out)
    report.stored_bytes = checkpoint.bytes_of(checkpoint.files)
    report.seconds = round(report.seconds + done.seconds, 3)
    report.write(run.out)
    return report


def requested_method(request: Request[Pruning]) -> PruningMethod:
    """Return the requested method, with quantised weights or adapters if the settings say so.

    Raises SqueezeError for options that exclude each other.
    """
    settings, options = request.settings, request.method_options
    if not isinstance(request.method, str):
        if settings.bits is not None or settings.slim:
            raise SqueezeError("bits and slim belong to a method that is named: give the method made a quantizer")
        return cast(PruningMethod, request.method)
    if request.method not in (SparseGPT.name, SLiM.name):
        if settings.bits is not None or settings.slim or options.get("keep_zeros"):
            raise SqueezeError(f"{request.method} neither quantises nor has adapters: use the method sparsegpt")
        return cast(PruningMethod, request.create_method())
    grid = None if settings.bits is None else GPTQ(bits=settings.bits, group_size=settings.group_size)
    base = SparseGPT(**request.options_of_method(SparseGPT.name), quantizer=grid)
    if request.method == SparseGPT.name and not settings.slim:
        return base
    rounds = {"rounds": 1} if base.keep_zeros else {}
    return SLiM(**{**rounds, **request.options_of_method(SLiM.name), "pattern": base.pattern, "base": base})


def _settings(method: PruningMethod) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for entry in fields(method):
        value = getattr(method, entry.name)
        settings[entry.name] = value if isinstance(value, (bool, int, float, type(None))) else str(value)
    return settings


def _writer(dense: bool, method: PruningMethod, checkpoint: Checkpoint) -> Writer:
    dtype = checkpoint.float_type()
    if dense:

        def expanded(module: str, tensor: SparseTensor, transposed: bool) -> dict[str, torch.Tensor]:
            values = tensor.dequantize(dtype)
            return {f"{module}.weight": values.T.contiguous() if transposed else values}

        return Writer("dense", expanded, lambda left: {}, biases=True)
    form = SparseFormat()

    def tensors(module: str, tensor: SparseTensor, transposed: bool) -> dict[str, torch.Tensor]:
        return form.tensors(module, tensor)

    return Writer(form.name, tensors, lambda left: form.config(left, dtype, method.name), measured=True, biases=True)
