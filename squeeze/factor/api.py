"""`squeeze.factorize`: a checkpoint, a method or a plan, and a folder of factors."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from squeeze.errors import SqueezeError
from squeeze.factor import METHOD, VERSION
from squeeze.factor.form import Form
from squeeze.factor.plan import make_plan
from squeeze.model.calibration import calibration_name, calibration_tokens
from squeeze.model.checkpoint import Checkpoint, saved
from squeeze.model.heal import heal as healed
from squeeze.model.method import Method
from squeeze.model.pipeline import Progress, Writer, compress
from squeeze.model.report import Report
from squeeze.packing import folder
from squeeze.prune.block_lowrank import BLAST, Monarch
from squeeze.prune.lowrank import ASVD, SVD, Keep, Truncation, WhitenedSVD
from squeeze.prune.modular import EditedCheckpoint
from squeeze.prune.outliers import Quantised, WithOutliers
from squeeze.prune.tensor_network import Network, TensorRing, TensorTrain, Tucker
from squeeze.quant.gptq import GPTQ

__all__ = ["METHODS", "PLAN", "factorize", "make_method", "writer"]

PLAN = "plan"
METHODS: dict[str, Callable[..., Method]] = {
    "svd": SVD,
    "asvd": ASVD,
    "whitened": WhitenedSVD,
    "tt": TensorTrain,
    "tucker": Tucker,
    "ring": TensorRing,
    "monarch": Monarch,
    "blast": BLAST,
}
_CURVATURE_TOKENS = 8192  # of the calibration that a plan looks at


def writer(settings: Mapping[str, Any], dtype: torch.dtype) -> Writer:
    """How forms are stored: their tensors below the module's name, and a `quantization_config`."""

    def tensors(module: str, form: Form, transposed: bool) -> dict[str, torch.Tensor]:
        found = form.tensors()
        if "weight" in found and transposed:
            found["weight"] = found["weight"].T.contiguous()
        return {f"{module}.{leaf}": tensor for leaf, tensor in found.items()}

    def config(left: list[str]) -> dict[str, Any]:
        name = str(dtype).removeprefix("torch.")
        plan = {"quant_method": METHOD, "version": VERSION, "dtype": name, "ignored": left, **settings}
        return {"quantization_config": plan}

    return Writer("factorised", tensors, config)


def factorize(
    source: Path | str | nn.Module,
    method: str | Method = PLAN,
    *,
    out: Path | str,
    keep: float = 0.9,
    target_bytes: int | None = None,
    families: Iterable[str] = (),
    pairs: bool = True,
    outliers: int = 0,
    bits: int | None = None,
    group_size: int = 64,
    calibration: str | Path | torch.Tensor | None = None,
    samples: int = 128,
    sequence_length: int = 512,
    correction: float = 0.5,
    heal: float = 0.0,
    ignore: Iterable[str] = (),
    seed: int = 0,
    resume: bool = False,
    overwrite: bool = False,
    device: str = "cpu",
    progress: Progress | None = None,
) -> Report:
    """Write a checkpoint whose blocks' matrices are factorised.

    source: a Hugging Face folder, or a model of transformers, which is saved to one first. out: the folder to write.
    method: "plan" chooses family and rank by matrix (factor/plan.py), within `keep` of the matrices' stored values or
    `target_bytes` for the whole checkpoint; a name in METHODS, or a method, is for all of them alike. families: others
    of METHODS that the plan may use. pairs: whether the plan may also leave channels out between matrices. outliers:
    entries of each matrix kept exactly. bits, group_size: quantise the factors, too. calibration, samples,
    sequence_length, seed: as model/calibration.py has them; only where needed. correction, ignore, resume: as
    model/pipeline.py has them. heal: minutes of fine-tuning afterwards (model/heal.py).
    Raises SqueezeError for all that a user can mend; then nothing is written.
    """
    if isinstance(source, nn.Module):
        given = {name: value for name, value in locals().items() if name not in ("source", "method")}
        with saved(source, Path(out)) as made:
            return factorize(made, method, **given)
    source, out, families = Path(source), Path(out), tuple(families)
    checkpoint = Checkpoint.open(source)
    folder.check_target(source, out, overwrite)
    described: dict[str, Any] = {"method": method if isinstance(method, str) else method.name}
    methods: dict[str, Method] = {}
    tokens = None
    planned = method == PLAN
    one: Method = Keep() if planned else make_method(method, keep)
    if target_bytes is not None and not planned:
        raise SqueezeError("a size to reach needs the method plan")
    for name in families:
        make_method(name, keep)
    if planned or one.needs_hessian or bits or heal:
        tokens = calibration_tokens(source, calibration, samples, sequence_length, seed, device)
        described |= {"samples": samples, "sequence_length": sequence_length, "seed": seed, "correction": correction}
        described["calibration"] = calibration_name(calibration)
    described |= {"target_bytes": target_bytes} if target_bytes is not None else {"keep": keep}
    if planned and tokens is not None:
        few = tokens[: max(1, min(_CURVATURE_TOKENS // tokens.shape[1], len(tokens)))]
        plan = make_plan(
            *(checkpoint, few),
            keep=keep if target_bytes is None else None,
            target_bytes=target_bytes,
            pairs=pairs,
            families={name: partial(make_method, name) for name in families},
            dtype=checkpoint.float_type(),
            ignore=ignore,
            seed=seed,
            device=device,
            progress=progress,
        )
        methods, described["plan"] = plan.methods, plan.as_json()
        checkpoint = EditedCheckpoint(checkpoint.folder, checkpoint.files, plan.replaced)
    if outliers:
        one, methods = _exact(one, outliers), {name: _exact(other, outliers) for name, other in methods.items()}
        described["outliers"] = outliers
    if bits:
        grid = GPTQ(bits=bits, group_size=group_size)
        one = cast(Method, Quantised(one, grid))
        methods = {name: cast(Method, Quantised(other, grid)) for name, other in methods.items()}
        described |= {"bits": bits, "group_size": group_size}
    report = compress(
        source,
        out,
        one,
        writer(described, checkpoint.float_type()),
        tokens=tokens,
        methods=methods,
        correction=correction if tokens is not None else 0.0,
        ignore=ignore,
        settings={name: value for name, value in described.items() if name != "plan"},
        resume=resume,
        overwrite=overwrite,
        device=device,
        checkpoint=checkpoint,
        progress=progress,
    )
    if heal and tokens is not None:
        healed(source, out, tokens, minutes=heal, device=device)
    return report


def make_method(name: str | Method, keep: float) -> Method:
    """A method of METHODS for a share of stored values. Raises SqueezeError where there is none such."""
    if not isinstance(name, str):
        return name
    if name not in METHODS:
        raise SqueezeError(f"method {name!r} is unknown: choose from {', '.join((PLAN, *METHODS))}")
    return METHODS[name](keep=keep)


def _exact(method: Method, count: int) -> Method:
    """Whole and sliced matrices have no entries to keep."""
    return cast(Method, WithOutliers(method, count)) if isinstance(method, (Truncation, Network)) else method
