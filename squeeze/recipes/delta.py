"""`squeeze.delta`: a fine-tune stored as its lossy difference from a base.

Matrices of the blocks are stored as differences that are quantised, pruned, or both (prune/delta). All other tensors
are coded as `pack --base` does: embeddings and heads after rounding their differences, the rest exactly. With the
format peft the result is a LoRA adapter (lora.py).
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.checkpoint.pattern import Pattern
from squeeze.engine.method import Method
from squeeze.engine.network import Network
from squeeze.engine.pipeline import Progress
from squeeze.engine.report import Report
from squeeze.engine.selection import check_ignored, plan
from squeeze.errors import SqueezeError
from squeeze.factor.lora import LoraMethod
from squeeze.factor.lowrank import WhitenedSVD
from squeeze.packing import folder
from squeeze.packing.chain import packed_files
from squeeze.prune.delta.base import BaseWeights
from squeeze.prune.delta.method import DeltaMethod
from squeeze.prune.delta.rounded import RoundedCheckpoint
from squeeze.prune.delta.stored import DeltaForm, make_writer
from squeeze.prune.sparsegpt import SparseGPT
from squeeze.quant.gptq import GPTQ
from squeeze.recipes import lora
from squeeze.recipes.lora_ranks import ranked
from squeeze.recipes.measure.evaluate import measure
from squeeze.recipes.options import DELTA, PEFT, Differing
from squeeze.recipes.quantize import pack_result
from squeeze.recipes.run import Run
from squeeze.system.limits import Limits
from squeeze.system.storage import local_path

__all__ = ["delta"]

_RANK = 32  # of an adapter without the option
_EXPERTS = ".experts."  # in the names of their modules


def delta(  # noqa: PLR0913
    base: Path | str,
    tuned: Path | str,
    *,
    out: Path | str,
    text: Path | str | None = None,
    windows: int | None = None,
    resume: bool = False,
    overwrite: bool = False,
    device: str = "cpu",
    threads: int = 1,
    progress: Progress | None = None,
    **options: Any,
) -> Report:
    """Write a fine-tune as its difference from a base, which is needed again to load it.

    Args:
        base: Folder of the base, packed or not.
        tuned: Hugging Face folder with the same tensors.
        out: Folder to write.
        text: Text to measure perplexity and the distance from the fine-tune on.
        windows: Windows of 1,024 tokens of the text; None reads all of it.
        resume: Whether to continue a stopped run.
        overwrite: Whether to replace an existing folder.
        device: Torch device.
        threads: Threads of packing.
        progress: Called with what is done and what is left.
        options: Fields of options.Differing and options.Common.

    Raises:
        SqueezeError: If an input or an option is invalid.
    """
    settings = DELTA.read(options).settings
    _method(settings)  # raises before anything is opened
    base, tuned, out = map(local_path, (base, tuned, out))
    checkpoint = Checkpoint.open(tuned)
    for source in (base, tuned):
        folder.check_target(source, out, overwrite)
    weights = BaseWeights.open(base)
    weights.check_alike(checkpoint)
    unpacked = out.with_name(f".{out.name[:60]}.unpacked")
    shared: dict[str, Any] = {"resume": resume or not overwrite, "overwrite": True, "device": device}
    run = Run(source=tuned, out=unpacked, common=settings, correction=settings.correction, progress=progress, **shared)
    if settings.format == PEFT:
        if text is not None:
            raise SqueezeError("an adapter is not measured here: load it with peft, and leave out `text`")
        return _adapter(run, settings, checkpoint, out, weights, overwrite)
    report = _compressed(run, settings, checkpoint, base, weights)
    _name_exact(report, unpacked)
    if text is not None:
        measure(report, text, windows, device, base=base)
    pack_result(report, out, overwrite, threads, base=base)
    report.stored_bytes = sum(packed.file.size for packed in packed_files(out, Limits()))
    return report


def _compressed(run: Run, settings: Differing, checkpoint: Checkpoint, base: Path, weights: BaseWeights) -> Report:
    """Write the folder of differences that is packed later, or take that of a stopped run, and return its report."""
    bits = settings.bits if settings.embedding_bits is None else settings.embedding_bits
    described: dict[str, Any] = {"base": str(base), "sha256": list(weights.base.weights), "bits": settings.bits}
    described |= {"pattern": settings.pattern, "group_size": settings.group_size, "embedding_bits": bits}
    described |= run.described()
    report = run.waiting(DeltaMethod.name, described)
    if report is not None:
        return report
    network = Network(checkpoint)
    check_ignored(network, settings.ignore)
    inner = _method(settings)
    assert inner is not None
    methods, transposed = _methods(network, weights, inner, settings.ignore)
    if bits:
        checkpoint = RoundedCheckpoint.of(checkpoint, weights, bits, _outside(network, settings.ignore))
    writer = make_writer(weights, transposed, checkpoint.float_type())
    report = run.compress(checkpoint, next(iter(methods.values())), writer, described, run.tokens(), methods=methods)
    if isinstance(checkpoint, RoundedCheckpoint):
        report.left |= {name: str(rounding) for name, rounding in checkpoint.roundings.items()}
        report.write(run.out)
    return report


def _adapter(
    run: Run, settings: Differing, checkpoint: Checkpoint, out: Path, weights: BaseWeights, overwrite: bool
) -> Report:
    """Write a LoRA adapter, and return its report. Experts are no modules of their own for peft, and are left out."""
    network = Network(checkpoint)
    check_ignored(network, settings.ignore)
    settings = replace(settings, ignore=(*settings.ignore, _EXPERTS))
    run = replace(run, common=settings)
    rank = None if settings.target_bytes else settings.rank or _RANK
    described = {"base": str(weights.path), "format": PEFT, "rank": rank, "bits": settings.bits}
    described |= {"target_bytes": settings.target_bytes, **run.described()}
    found, transposed = _methods(network, weights, WhitenedSVD(rank=rank or _RANK, pivoted=False), settings.ignore)
    report = run.waiting(LoraMethod.name, described)
    if report is None:
        bases = {name: partial(_matrix, weights, name, name in transposed) for name in found}
        tokens = run.tokens()
        methods = _adapting(network, bases, settings, run, tokens)
        writer = lora.make_writer(checkpoint.float_type(), settings.bits)
        first = next(iter(methods.values()))
        report = run.compress(checkpoint, first, writer, described, tokens, methods=methods)
    lora.write_adapter(report, run.out, out, weights, network, transposed, overwrite)
    return report


def _adapting(
    network: Network, bases: Mapping[str, Callable[[], torch.Tensor]], settings: Differing, run: Run, tokens: Any
) -> dict[str, Method]:
    """Return the method of each matrix, whose base `bases` loads: of one rank, or by `tokens` of ranks for a size."""
    if settings.target_bytes is None:
        rank = settings.rank or _RANK
        return {name: LoraMethod.of_rank(rank, load, settings.bits) for name, load in bases.items()}
    if not isinstance(tokens, torch.Tensor):
        raise SqueezeError("ranks for a size need a calibration text: give a `rank` in place of `target_bytes`")
    chosen = ranked(
        network, bases, tokens, settings.target_bytes, settings.bits, seed=settings.seed, progress=run.progress
    )
    weighted = settings.bits is None  # steps of a grid are coarser for B if its outputs are weighted
    return {
        name: LoraMethod.of_rank(one.rank, bases[name], settings.bits, one.outputs if weighted else None)
        for name, one in chosen.items()
    }


def _matrix(weights: BaseWeights, name: str, transposed: bool) -> torch.Tensor:
    weight = weights.load(f"{name}.weight")
    return weight.T if transposed else weight


def _method(settings: Differing) -> Method | None:
    """Return the method that compresses a difference, None for an adapter.

    Raises SqueezeError if options exclude each other, or none asks for a method.
    """
    if settings.format == PEFT:
        if settings.pattern is not None or settings.embedding_bits is not None:
            raise SqueezeError("an adapter has a `rank`: leave out `pattern` and `embedding_bits`")
        if settings.group_size != Differing.group_size:
            raise SqueezeError("an adapter has groups of its own: leave out `group_size`")
        if settings.rank is not None and settings.target_bytes is not None:
            raise SqueezeError("`target_bytes` chooses ranks: leave out `rank`")
        return None
    for name in ("rank", "target_bytes"):
        if getattr(settings, name) is not None:
            raise SqueezeError(f"`{name}` needs the format {PEFT}")
    if settings.bits is None and settings.pattern is None:
        raise SqueezeError("a difference needs `bits`, a `pattern`, or both")
    grid = None
    if settings.bits is not None:
        grid = GPTQ(bits=settings.bits, group_size=settings.group_size, refine=3 if settings.bits == 2 else 1)
    if settings.pattern is not None:
        return SparseGPT(pattern=Pattern.parse(settings.pattern), quantizer=grid)
    return cast(Method, grid)


def _outside(network: Network, ignore: tuple[str, ...]) -> list[str]:
    """Return the tensors outside the blocks, except those to leave alone."""
    inside = {source for block in network.blocks for source in network.tensors_of(block).values()}
    names = [name for name in dict.fromkeys(network.sources.values()) if name not in inside]
    return [name for name in names if not any(part in name for part in ignore)]


def _methods(
    network: Network, base: BaseWeights, inner: Method, ignore: tuple[str, ...]
) -> tuple[dict[str, DeltaMethod], list[str]]:
    """Return a method for each matrix, by the checkpoint's module name, and the modules that are stored transposed.

    Raises SqueezeError if there is no matrix.
    """
    methods, transposed = {}, list[str]()
    for block in network.blocks:
        for leaf in plan(network, block, ignore)[0]:
            module, name = network.module(f"{block}.{leaf}"), network.stored_name(f"{block}.{leaf}")
            is_transposed = not isinstance(module, nn.Linear)
            transposed += [name] if is_transposed else []
            methods[name] = DeltaMethod(inner=inner, name_in_base=f"{name}.weight", transposed=is_transposed, base=base)
    if not methods:
        raise SqueezeError(f"{network.checkpoint.folder}: no matrix is left to store as a difference")
    return methods, transposed


def _name_exact(report: Report, written: Path) -> None:
    """Add every tensor that is kept exactly to the report."""
    for name in Checkpoint.open(written).files:
        module, _, leaf = name.rpartition(".")
        if leaf not in DeltaForm.leaves and module not in report.left:
            report.left.setdefault(name, "kept exactly")
