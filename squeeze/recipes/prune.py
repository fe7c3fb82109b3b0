"""`squeeze.prune`: a checkpoint, a method and a way to store what is left, put together."""

from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.checkpoint.pattern import Pattern
from squeeze.checkpoint.sparse import SparseTensor
from squeeze.engine.inputs import input_squares
from squeeze.engine.pipeline import Progress, Writer
from squeeze.engine.report import NAME as REPORT
from squeeze.engine.report import Report
from squeeze.errors import SqueezeError
from squeeze.prune.magnitude import Magnitude
from squeeze.prune.method import PruningMethod
from squeeze.prune.permute import PermutedCheckpoint
from squeeze.prune.slim import SLiM
from squeeze.prune.sparse24 import SparseFormat
from squeeze.prune.sparsegpt import SparseGPT
from squeeze.prune.wanda import Wanda
from squeeze.quant.gptq import GPTQ
from squeeze.recipes.run import Run, Source, takes_models
from squeeze.recipes.tokens import calibration_tokens
from squeeze.system.json_object import read_object

__all__ = ["METHODS", "make_method", "prune", "recovered"]

METHODS: dict[str, type[PruningMethod]] = {"magnitude": Magnitude, "wanda": Wanda, "sparsegpt": SparseGPT, "slim": SLiM}


@takes_models
def prune(
    source: Source,
    method: PruningMethod,
    *,
    out: Path | str,
    calibration: str | Path | torch.Tensor | None = None,
    samples: int = 128,
    sequence_length: int = 512,
    dense: bool = False,
    permute: bool = False,
    correction: float = 0.3,
    recover: float = 0.0,
    ignore: Iterable[str] = (),
    seed: int = 0,
    resume: bool = False,
    overwrite: bool = False,
    device: str = "cpu",
    progress: Progress | None = None,
) -> Report:
    """Prune the matrices in a checkpoint's blocks.

    source: a Hugging Face folder, or a model of transformers, which is saved to one first. out: the folder to write.
    calibration, samples, sequence_length, seed: as calibration.py has them. dense: store zeros like all else, for
    any loader. correction, ignore: as pipeline.py has them. recover: minutes of training afterwards (retrain.py).
    resume: go on with a run that was stopped, in its training, too. Raises SqueezeError for all that a user can mend.
    """
    if recover and (dense or method.quantises):
        raise SqueezeError(
            "recovery takes neither quantised weights nor a dense folder: let a recipe prune, recover and then quantize"
        )
    run, calibrated = Run.of(locals()), method.needs_hessian
    settings = _settings(method)
    if calibrated or permute or recover:
        settings |= {"permute": True} if permute else {}
        settings |= run.described()
    report = run.waiting(method.name, settings) if recover else None
    checkpoint = run.open(report)
    tokens = run.tokens() if calibrated or permute or recover else None
    if report is None:
        if permute and tokens is not None:
            checkpoint = PermutedCheckpoint.of(checkpoint, input_squares(checkpoint, tokens, device), method.pattern)
        writer, seen = _writer(dense, method, checkpoint), tokens if calibrated else None
        report = run.compress(checkpoint, method, writer, settings, seen, corrects=method.corrects)
    if not recover:
        return report
    more: dict[str, Any] = {"calibration": tokens, "seed": seed, "device": device, "progress": progress}
    return recovered(run.source, run.out, minutes=recover, resume=resume, **more)


def recovered(
    original: Path,
    target: Path,
    *,
    minutes: float,
    calibration: str | Path | torch.Tensor | None = None,
    samples: int = 128,
    sequence_length: int = 512,
    seed: int = 0,
    device: str = "cpu",
    progress: Progress | None = None,
    **options: Any,
) -> Report:
    """Retrain a pruned folder in place (retrain.py, whose options they are), and report what it has become."""
    from squeeze.recipes.train.retrain import recover

    if not (target / REPORT).is_file():
        raise SqueezeError(f"{target}: has no {REPORT}; `squeeze prune` writes such folders")
    tokens = calibration_tokens(original, calibration, samples, sequence_length, seed, device)
    found = read_object(target / REPORT)
    done = recover(original, target, tokens, minutes=minutes, seed=seed, device=device, progress=progress, **options)
    report = Report.from_json(found)
    report.settings |= {"recovery": f"{done.steps} steps"}
    checkpoint = Checkpoint.open(target)
    report.stored_bytes = checkpoint.bytes_of(checkpoint.files)
    report.seconds = round(report.seconds + done.seconds, 3)
    report.write(target)
    return report


def make_method(
    name: str,
    pattern: str = "2:4",
    bits: int | None = None,
    group_size: int = 128,
    slim: bool = False,
    rank: float = 0.1,
    **options: Any,
) -> PruningMethod:
    """A method by its name in METHODS and what a user says of it; `options` it does not know count for nothing.

    Raises SqueezeError for what does not go together.
    """
    if name not in METHODS:
        raise SqueezeError(f"method {name!r} is unknown: choose from {', '.join(METHODS)}")
    if (bits is not None or slim or options.get("keep_zeros")) and name != "sparsegpt":
        raise SqueezeError(f"{name} neither quantises nor has adapters: use the method sparsegpt")
    options["pattern"] = Pattern.parse(pattern)
    if bits is not None:
        options["quantizer"] = GPTQ(bits=bits, group_size=group_size)
    known = {entry.name for entry in fields(METHODS[name])}
    found = METHODS[name](**{key: value for key, value in options.items() if key in known})
    if not slim or not isinstance(found, SparseGPT):
        return found
    rounds = 1 if found.keep_zeros else SLiM.rounds
    return SLiM(pattern=found.pattern, base=found, rank=rank, rounds=rounds)


def _settings(method: PruningMethod) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for entry in fields(method):
        value = getattr(method, entry.name)
        found[entry.name] = value if isinstance(value, (bool, int, float, type(None))) else str(value)
    return found


def _writer(dense: bool, method: PruningMethod, checkpoint: Checkpoint) -> Writer:
    dtype = checkpoint.float_type()
    if dense:

        def expanded(module: str, tensor: SparseTensor, transposed: bool) -> dict[str, torch.Tensor]:
            values = tensor.dequantize(dtype)
            return {f"{module}.weight": values.T.contiguous() if transposed else values}

        return Writer("dense", expanded, lambda left: {})
    form = SparseFormat()

    def tensors(module: str, tensor: SparseTensor, transposed: bool) -> dict[str, torch.Tensor]:
        return form.tensors(module, tensor)

    return Writer(form.name, tensors, lambda left: form.config(left, dtype, method.name), measured=True)
