"""`squeeze.factorize` and `densify`: a checkpoint, a method or a plan, and a folder of factors; and back."""

import json
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from squeeze.errors import FormatError, SqueezeError
from squeeze.factor import METHOD, VERSION
from squeeze.factor.form import Form
from squeeze.factor.forms import modules_of, read_form
from squeeze.factor.plan import make_plan
from squeeze.model.calibration import calibration_tokens
from squeeze.model.checkpoint import Checkpoint, Parts, copy_other_files
from squeeze.model.evaluate import quiet
from squeeze.model.heal import heal as healed
from squeeze.model.method import Method
from squeeze.model.pipeline import Progress, Writer, compress
from squeeze.model.report import NAME as REPORT
from squeeze.model.report import Report
from squeeze.model.work import stamps
from squeeze.packing import folder
from squeeze.prune.block_lowrank import BLAST, Monarch
from squeeze.prune.lowrank import ASVD, SVD, Keep, Truncation, WhitenedSVD
from squeeze.prune.modular import EditedCheckpoint
from squeeze.prune.outliers import Quantised, WithOutliers
from squeeze.prune.tensor_network import Network, TensorRing, TensorTrain, Tucker
from squeeze.quant.api import calibration_name, float_type
from squeeze.quant.gptq import GPTQ
from squeeze.work import work_folder

__all__ = ["METHODS", "PLAN", "densify", "factorize", "make_method", "writer"]

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
    source: Path | str,
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

    method: "plan" chooses family and rank by matrix (factor/plan.py), within `keep` of the matrices' stored values or
    `target_bytes` for the whole checkpoint; a name in METHODS, or a method, is for all of them alike. families: others
    of METHODS that the plan may use. pairs: whether the plan may also leave channels out between matrices. outliers:
    entries of each matrix kept exactly. bits, group_size: quantise the factors, too. calibration, samples,
    sequence_length, seed: as model/calibration.py has them; only where needed. correction, ignore, resume: as
    model/pipeline.py has them. heal: minutes of fine-tuning afterwards (model/heal.py).
    Raises SqueezeError for all that a user can mend; then nothing is written.
    """
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
            dtype=float_type(checkpoint),
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
        writer(described, float_type(checkpoint)),
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


def described(checkpoint: Checkpoint) -> dict[str, Any]:
    """The plan in a factorised folder's config. Raises FormatError where it is none."""
    config = checkpoint.config.get("quantization_config")
    if not isinstance(config, dict) or config.get("quant_method") != METHOD:
        raise FormatError(f"{checkpoint.folder}: is not factorised; `squeeze factorize` makes such folders")
    if config.get("version") != VERSION:
        raise FormatError(f"{checkpoint.folder}: version {config.get('version')!r} is unknown: use a newer squeeze")
    return config


def densify(source: Path | str, target: Path | str, overwrite: bool = False) -> int:
    """Write a factorised folder with every matrix multiplied out, which any other tool reads; the bytes of its tensors.

    Raises FormatError where the source is not factorised or damaged; then nothing is written.
    """
    source, target = Path(source), Path(target)
    checkpoint = Checkpoint.open(source)
    config = dict(checkpoint.config)
    dtype = getattr(torch, str(described(checkpoint).get("dtype")), torch.bfloat16)
    config.pop("quantization_config")
    folder.check_target(source, target, overwrite)
    modules = modules_of(checkpoint.files)
    transposed = _transposed(source, config)
    task = {"source": stamps(source), "version": VERSION}
    with work_folder(target, "densifying", task, False) as work:
        parts, made = Parts(work), work / folder.CONTENT
        made.mkdir()
        factors = {f"{module}.{leaf}" for module, leaves in modules.items() for leaf in leaves}
        names = [name for name in checkpoint.files if name not in factors]
        for number, name in enumerate(names):
            parts.put(f"rest.{number}", checkpoint.load([name], strict=False))
        for number, (module, leaves) in enumerate(modules.items()):
            tensors = checkpoint.load((f"{module}.{leaf}" for leaf in leaves), strict=False)
            form = read_form(module, {leaf: tensors[f"{module}.{leaf}"] for leaf in leaves})
            weight = form.dequantize(dtype)
            parts.put(f"dense.{number}", {f"{module}.weight": weight.T if transposed(module) else weight})
        order = [*(f"rest.{i}" for i in range(len(names))), *(f"dense.{i}" for i in range(len(modules)))]
        size = parts.join(order, made)
        copy_other_files(source, made)
        (made / REPORT).unlink(missing_ok=True)
        (made / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        folder.move_into_place(made, target, overwrite)
    return size


def _transposed(source: Path, config: dict[str, Any]) -> Any:
    """Whether a module is one of GPT-2's, which store the transpose."""
    quiet()
    from transformers import AutoConfig, AutoModelForCausalLM

    known = AutoConfig.from_pretrained(source, local_files_only=True)
    if hasattr(known, "quantization_config"):
        del known.quantization_config
    with torch.device("meta"):
        model: nn.Module = AutoModelForCausalLM.from_config(known)  # type: ignore[no-untyped-call]
    names = {name for name, module in model.named_modules() if type(module).__name__ == "Conv1D"}
    prefix = f"{getattr(model, 'base_model_prefix', '')}."
    return lambda module: module in names or prefix + module in names
