"""`squeeze.quantize`: a checkpoint, a method and a format, put together."""

import shutil
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.engine.inputs import input_squares
from squeeze.engine.network import Network, is_linear
from squeeze.engine.pipeline import Progress, plan
from squeeze.engine.report import Report
from squeeze.errors import SqueezeError
from squeeze.integrations.load_model import load_model
from squeeze.packing.pack import pack
from squeeze.quant.allocation import allocate
from squeeze.quant.gptq import GPTQ
from squeeze.quant.method import GridMethod
from squeeze.quant.rotate import RotatedCheckpoint
from squeeze.quant.rtn import RTN
from squeeze.quant.smooth import SmoothedCheckpoint
from squeeze.recipes.run import Run, Source, takes_models
from squeeze.recipes.writing import DENSE, make_writer

__all__ = ["METHODS", "quantize"]

METHODS: dict[str, type[GridMethod]] = {"rtn": RTN, "gptq": GPTQ}
_FISHER_TOKENS = 4096  # of the calibration that the choice of bits looks at
_SQUARES_TOKENS = 8192  # and smoothing


@takes_models
def quantize(
    source: Source,
    method: GridMethod,
    *,
    out: Path | str,
    calibration: str | Path | torch.Tensor | None = None,
    samples: int = 128,
    sequence_length: int = 512,
    format: str = "compressed-tensors",
    methods: Mapping[str, GridMethod] | None = None,
    target_bits: float | None = None,
    target_bytes: int | None = None,
    rotate: bool = False,
    rotation_block: int | None = None,
    smooth: float = 0.0,
    correction: float = 0.3,
    ignore: Iterable[str] = (),
    seed: int = 0,
    resume: bool = False,
    overwrite: bool = False,
    device: str = "cpu",
    progress: Progress | None = None,
) -> Report:
    """Quantise the matrices in a checkpoint's blocks.

    source: a Hugging Face folder, or a model of transformers, which is saved to one first. out: the folder to write.
    calibration, samples, sequence_length, seed: as calibration.py has them. format: one of quant.formats.FORMATS,
    or "dense", which stores the values that the quantised weights stand for in the original's type and shape. methods:
    others than `method` for the modules named.
    target_bits: choose the bits of each matrix, so that all of them take so many a weight as stored; target_bytes: or
    the whole checkpoint so many bytes (bits.py). rotate, rotation_block: as rotate.py has it; smooth: the strength that
    smooth.py has. correction, ignore, resume: as engine/pipeline.py has them. Raises SqueezeError for all that a user
    can mend.
    """
    run, methods = Run.of(locals()), dict(methods or {})
    checkpoint = run.open()
    writer = make_writer(format, method, methods, checkpoint)
    calibrated = any(one.needs_hessian for one in (method, *methods.values()))
    chooses = target_bits is not None or target_bytes is not None
    tokens = run.tokens() if calibrated or chooses or smooth else None
    settings = _settings(method)
    if rotate and smooth:
        raise SqueezeError("a rotation leaves nothing to smooth: choose one of the two")
    if rotate:
        checkpoint = RotatedCheckpoint.of(checkpoint, seed, rotation_block)
    if smooth and tokens is not None:
        seen = tokens[: max(_SQUARES_TOKENS // tokens.shape[1], 1)]
        checkpoint = SmoothedCheckpoint.of(checkpoint, input_squares(checkpoint, seen, device), smooth)
    if chooses and tokens is not None:
        methods |= _mixed(run, checkpoint, method, format, tokens, target_bits, target_bytes)
        writer = make_writer(format, method, methods, checkpoint)
        settings |= {"target_bits": target_bits, "target_bytes": target_bytes}
    if rotate:
        settings |= {"rotate": rotation_block or True, "seed": seed}
    if smooth:
        settings |= {"smooth": smooth}
    if calibrated or smooth:
        settings |= run.described()
    return run.compress(checkpoint, method, writer, settings, tokens if calibrated else None, methods=methods)


def _mixed(
    run: Run,
    checkpoint: Checkpoint,
    method: GridMethod,
    format: str,
    tokens: torch.Tensor,
    target_bits: float | None,
    target_bytes: int | None,
) -> dict[str, GridMethod]:
    """A method of other bits for each module, by the checkpoint's name. Raises SqueezeError where none fits."""
    if method.grid != "integer":
        raise SqueezeError(f"the bits of the grid {method.grid} cannot be chosen; those of integer can")
    network = Network(checkpoint)
    names = [f"{block}.{leaf}" for block in network.blocks for leaf in plan(network, block, run.ignore)[0]]
    model = load_model(checkpoint.folder, torch.float32, run.device)
    if not set(names) <= {name for name, module in model.named_modules() if is_linear(module)}:
        raise SqueezeError(f"{checkpoint.folder}: the bits of experts cannot be chosen yet; use --bits")
    others = checkpoint.bytes_of(checkpoint.files) - checkpoint.bytes_of(network.sources[f"{n}.weight"] for n in names)

    def rounded(weight: torch.Tensor, bits: int) -> tuple[torch.Tensor, int]:
        one = method.replaced(bits=bits)
        tensor = one.fallback().compress(weight.bfloat16()).tensor
        if format == DENSE:
            return tensor.dequantize(), -(-tensor.stored_bits // 8)
        stored = make_writer(format, one, {}, checkpoint).tensors("x", tensor, False)
        return tensor.dequantize(), sum(value.nbytes for value in stored.values())

    def budget(weights: int) -> float:
        return target_bits * weights / 8 if target_bits is not None else (target_bytes or 0) - others

    chosen, _ = allocate(model, tokens[: max(_FISHER_TOKENS // tokens.shape[1], 1)], names, rounded, budget)
    return {network.stored_name(name): method.replaced(bits=bits) for name, bits in chosen.items()}


def pack_result(report: Report, target: Path, overwrite: bool = False, threads: int = 1) -> None:
    """Pack the folder that a report speaks of as `target`, and delete it; `unpack` restores it."""
    made = Path(report.target)
    report.target = str(target)
    report.write(made)
    totals = pack(made, target, overwrite=overwrite, threads=threads)
    report.packed = totals.raw, totals.coded
    shutil.rmtree(made)


def _settings(method: GridMethod) -> dict[str, Any]:
    return {entry.name: getattr(method, entry.name) for entry in fields(method) if entry.name != "scale_dtype"}
