"""`squeeze.quantize`: a checkpoint, a method and a format, put together."""

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from squeeze.errors import FormatError, SqueezeError
from squeeze.model.calibration import calibration_name, calibration_tokens
from squeeze.model.checkpoint import Checkpoint, saved
from squeeze.model.evaluate import load_model
from squeeze.model.network import Network, is_linear
from squeeze.model.pipeline import Progress, Writer, compress, plan
from squeeze.model.report import Report
from squeeze.packing.pack import pack
from squeeze.quant.bits import allocate
from squeeze.quant.gptq import GPTQ
from squeeze.quant.method import GridMethod
from squeeze.quant.rotate import RotatedCheckpoint
from squeeze.quant.rtn import RTN
from squeeze.quant.tensor import QuantizedTensor

__all__ = ["METHODS", "quantize"]

METHODS: dict[str, type[GridMethod]] = {"rtn": RTN, "gptq": GPTQ}
DENSE = "dense"
_TRANSPOSED = (DENSE, "squeeze")  # formats that hold GPT-2's matrices
_FISHER_TOKENS = 4096  # of the calibration that the choice of bits looks at


def quantize(
    source: Path | str | nn.Module,
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
    correction: float = 0.5,
    ignore: Iterable[str] = (),
    seed: int = 0,
    resume: bool = False,
    overwrite: bool = False,
    device: str = "cpu",
    progress: Progress | None = None,
) -> Report:
    """Quantise the matrices in a checkpoint's blocks.

    source: a Hugging Face folder, or a model of transformers, which is saved to one first. out: the folder to write.
    calibration, samples, sequence_length, seed: as model/calibration.py has them. format: one of quant.formats.FORMATS,
    or "dense", which stores the values that the quantised weights stand for in the original's type and shape. methods:
    others than `method` for the modules named.
    target_bits: choose the bits of each matrix, so that all of them take so many a weight as stored; target_bytes: or
    the whole checkpoint so many bytes (bits.py). rotate, rotation_block: as rotate.py has it. correction, ignore,
    resume: as model/pipeline.py has them. Raises SqueezeError for all that a user can mend.
    """
    if isinstance(source, nn.Module):
        given = {name: value for name, value in locals().items() if name not in ("source", "method")}
        with saved(source, Path(out)) as folder:
            return quantize(folder, method, **given)
    source = Path(source)
    checkpoint = Checkpoint.open(source)
    methods = dict(methods or {})
    chooses = target_bits is not None or target_bytes is not None
    writer = make_writer(format, method, methods, checkpoint)
    needed = any(m.needs_hessian for m in (method, *methods.values()))
    tokens = None
    if needed or chooses:
        tokens = calibration_tokens(source, calibration, samples, sequence_length, seed, device)
    if rotate:
        checkpoint = RotatedCheckpoint.of(checkpoint, seed, rotation_block)
    settings = _settings(method)
    if chooses and tokens is not None:
        methods |= _mixed(checkpoint, method, format, tokens, target_bits, target_bytes, tuple(ignore), device)
        writer = make_writer(format, method, methods, checkpoint)
        settings |= {"target_bits": target_bits, "target_bytes": target_bytes}
    if rotate:
        settings |= {"rotate": rotation_block or True, "seed": seed}
    if needed:
        settings |= {"samples": samples, "sequence_length": sequence_length, "seed": seed, "correction": correction}
        settings |= {"calibration": calibration_name(calibration)}
    return compress(
        source,
        out,
        method,
        writer,
        tokens=tokens if needed else None,
        methods=methods,
        correction=correction if needed else 0.0,
        ignore=ignore,
        settings=settings,
        resume=resume,
        overwrite=overwrite,
        device=device,
        checkpoint=checkpoint,
        progress=progress,
    )


def _mixed(
    checkpoint: Checkpoint,
    method: GridMethod,
    format: str,
    tokens: torch.Tensor,
    target_bits: float | None,
    target_bytes: int | None,
    ignore: tuple[str, ...],
    device: str,
) -> dict[str, GridMethod]:
    """A method of other bits for each module, by the checkpoint's name. Raises SqueezeError where none fits."""
    if method.grid != "integer":
        raise SqueezeError(f"the bits of the grid {method.grid} cannot be chosen; those of integer can")
    network = Network(checkpoint)
    names = [f"{block}.{leaf}" for block in network.blocks for leaf in plan(network, block, ignore)[0]]
    model = load_model(checkpoint.folder, torch.float32, device)
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
    from dataclasses import fields

    return {entry.name: getattr(method, entry.name) for entry in fields(method) if entry.name != "scale_dtype"}


def make_writer(name: str, method: GridMethod, methods: Mapping[str, GridMethod], checkpoint: Checkpoint) -> Writer:
    """A writer of one of the formats. Raises FormatError where it is unknown or cannot hold what the methods make."""
    from squeeze.quant.formats import FORMATS

    dtype = checkpoint.float_type()
    if name == DENSE:
        return Writer(
            DENSE, lambda module, tensor, transposed: _dense(module, tensor, transposed, dtype), lambda left: {}
        )
    if name not in FORMATS:
        raise FormatError(f"format {name!r} is unknown: choose from {', '.join([DENSE, *FORMATS])}")
    chosen = FORMATS[name]
    chosen.check(_spec(method, methods, (), dtype))

    def tensors(module: str, tensor: QuantizedTensor, transposed: bool) -> dict[str, torch.Tensor]:
        if transposed and name not in _TRANSPOSED:
            raise FormatError(
                f"{module}: is stored transposed, which only the formats {' and '.join(_TRANSPOSED)} hold"
            )
        return chosen.tensors(module, tensor, dtype)

    def config(left: list[str]) -> dict[str, Any]:
        return {"quantization_config": chosen.config(_spec(method, methods, tuple(left), dtype))}

    return Writer(name, tensors, config)


def _dense(module: str, tensor: QuantizedTensor, transposed: bool, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    values = tensor.dequantize(dtype)
    return {f"{module}.weight": values.T.contiguous() if transposed else values}


def _spec(method: GridMethod, methods: Mapping[str, GridMethod], left: tuple[str, ...], dtype: torch.dtype) -> Any:
    from squeeze.quant.formats import Grid, QuantizationSpec

    def grid(one: GridMethod) -> Grid:
        levels = one.levels()
        size = levels.group_size or one.group_size
        codebook = None if levels.codebook is None else one.grid.removesuffix("-planes")
        return Grid(levels.bits, size, one.symmetric, codebook, bool(getattr(one, "outliers", 0)))

    common = grid(method)
    other = {name: grid(one) for name, one in methods.items() if grid(one) != common}
    values = (common.bits, common.group_size, common.symmetric, common.codebook, common.outliers)
    return QuantizationSpec(*values, ignored=left, modules=other, dtype=dtype, method=method.name)
