"""`squeeze.factorize`: a checkpoint, a method or a plan, and a folder of factors."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch

from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.engine.method import Method
from squeeze.engine.pipeline import Progress, Writer
from squeeze.engine.report import Report
from squeeze.errors import SqueezeError
from squeeze.factor import METHOD, VERSION
from squeeze.factor.block_lowrank import BLAST, Monarch
from squeeze.factor.form import Form
from squeeze.factor.lowrank import ASVD, SVD, Keep, WhitenedSVD
from squeeze.factor.modular import Slice
from squeeze.factor.outliers import Quantised, WithOutliers
from squeeze.factor.shared import SharedSVD
from squeeze.factor.tensor_network import TensorRing, TensorTrain, Tucker
from squeeze.quant.gptq import GPTQ
from squeeze.recipes.plan.edits import Edits, Noted
from squeeze.recipes.plan.modegpt import modegpt
from squeeze.recipes.plan.plan import Plan, make_plan
from squeeze.recipes.plan.slicegpt import slicegpt
from squeeze.recipes.run import Run, Source, takes_models
from squeeze.recipes.train.heal import heal as healed

__all__ = ["METHODS", "MODELS", "PLAN", "factorize", "make_method", "writer"]

PLAN, PAIRED, SLICED = "plan", "modegpt", "slicegpt"
MODELS = (PLAN, PAIRED, SLICED)  # look at the model as a whole
METHODS: dict[str, Callable[..., Method]] = {
    "svd": SVD,
    "asvd": ASVD,
    "whitened": WhitenedSVD,
    "shared": SharedSVD,
    "tt": TensorTrain,
    "tucker": Tucker,
    "ring": TensorRing,
    "monarch": Monarch,
    "blast": BLAST,
}
_SCALES = 19  # bits for a group of a quantised matrix: its scale, and what groups that are not full cost
_WIDTH = 512  # of a model that does not say
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


@takes_models
def factorize(
    source: Source,
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
    method: "plan" chooses family and rank by matrix (plan/plan.py), within `keep` of the matrices' stored values or
    `target_bytes` for the whole checkpoint; "modegpt" and "slicegpt" make every block, or the whole model, smaller at
    one ratio (plan/modegpt.py, slicegpt.py); a name in METHODS, or a method, is for all matrices alike. families:
    others of METHODS that the plan may use. pairs: whether the plan may also leave channels out between matrices.
    outliers: entries of each matrix in another form that are kept as they are. bits, group_size: quantise the
    factors, too. calibration, samples, sequence_length, seed: as engine/calibration.py has them; only where needed.
    correction, ignore: as engine/pipeline.py has them. heal: minutes of fine-tuning afterwards (recipes/train/heal.py).
    resume: go on with a run of the same settings that was stopped, also while it healed.
    Raises SqueezeError for all that a user can mend; then nothing is written.
    """
    run = Run.of(locals())
    asked = Asked(method, keep, target_bytes, tuple(families), pairs, outliers, bits, group_size, run.ignore)
    asked.check(heal)
    calibrated = asked.needs_tokens or heal > 0
    settings = asked.settings() | (run.described() if calibrated else {})
    report = run.waiting(asked.wrapped(asked.one()).name, settings) if heal else None
    checkpoint = run.open(report)
    tokens = run.tokens() if calibrated else None
    if report is None and method == SLICED:
        assert tokens is not None
        shared: dict[str, Any] = {"resume": resume, "overwrite": overwrite, "device": device, "progress": progress}
        report = slicegpt(run.source, run.out, tokens, keep, settings=settings, **shared)
    elif report is None:
        report = _factorised(run, asked, checkpoint, tokens, settings)
    if not heal or tokens is None:
        return report
    done = healed(run.source, run.out, tokens, minutes=heal, resume=resume, device=device, progress=progress)
    report.settings = {**report.settings, "healing": f"{done.steps} steps"}
    report.seconds = round(report.seconds + done.seconds, 3)
    report.write(run.out)
    return report


@dataclass(frozen=True)
class Asked:
    """What is to become of the matrices: the options of `factorize` of these names."""

    method: str | Method
    keep: float
    target_bytes: int | None
    families: tuple[str, ...]
    pairs: bool
    outliers: int
    bits: int | None
    group_size: int
    ignore: tuple[str, ...]

    def check(self, heal: float) -> None:
        """Raises SqueezeError for what is unknown, or does not go together."""
        self.one()
        for name in self.families:
            make_method(name, self.keep, METHODS)
        if self.target_bytes is not None and self.method != PLAN:
            raise SqueezeError("a size to reach needs the method plan")
        if self.method == SLICED and (self.outliers or self.bits or self.ignore or heal):
            raise SqueezeError(
                "slicegpt writes a smaller dense model, in which every matrix takes part: quantise that folder by "
                "itself; it has no outliers, nothing to ignore and no factors to heal"
            )
        if self.bits:
            GPTQ(bits=self.bits, group_size=self.group_size)
        if self.bits and heal:
            raise SqueezeError("factors that are quantised cannot be healed: leave out --bits or --heal")
        if self.method == SharedSVD.name and (self.bits or self.outliers):
            raise SqueezeError("matrices on one basis have neither --bits nor --outliers: use --method whitened")
        if self.method == PAIRED and self.outliers and not self.bits:
            raise SqueezeError(
                "modegpt leaves out channels, and keeps what is left exactly: there are no outliers to keep"
            )

    def one(self) -> Method:
        """What is done where nothing else is planned."""
        return Keep() if self.method in MODELS else make_method(self.method, self.keep)

    @property
    def needs_tokens(self) -> bool:
        return self.method in MODELS or self.one().needs_hessian or bool(self.bits)

    def value_bits(self, width: int) -> float | None:
        """What a value takes, scales included, where factors are quantised and there is a size to reach; None where a
        share of the values is, whatever they take. width: of the model."""
        if not self.bits or self.target_bytes is None:
            return None
        return self.bits + _SCALES / (self.group_size if self.group_size > 0 else width / 2)  # a rank

    def settings(self) -> dict[str, Any]:
        """As a report has them."""
        found: dict[str, Any] = {"method": self.method if isinstance(self.method, str) else self.method.name}
        found |= {"target_bytes": self.target_bytes} if self.target_bytes is not None else {"keep": self.keep}
        if self.method == PLAN:
            found |= {"families": list(self.families), "pairs": self.pairs}
        if self.outliers:
            found["outliers"] = self.outliers
        if self.bits:
            found |= {"bits": self.bits, "group_size": self.group_size}
        return found | ({"ignore": list(self.ignore)} if self.ignore else {})

    def wrapped(self, method: Method) -> Method:
        """With entries kept exactly, where they would not be without, and quantised factors."""
        inner = method.method if isinstance(method, Noted) else method
        whole = isinstance(inner, (Keep, Slice)) and not (inner.pivoted if isinstance(inner, Keep) else inner.always)
        if self.outliers and not isinstance(inner, SharedSVD) and (self.bits or not whole):
            method = cast(Method, WithOutliers(method, self.outliers))
        if not self.bits:
            return method
        return cast(Method, Quantised(method, GPTQ(bits=self.bits, group_size=self.group_size)))


def _factorised(
    run: Run, asked: Asked, checkpoint: Checkpoint, tokens: torch.Tensor | None, settings: dict[str, Any]
) -> Report:
    """Block by block, after what is decided on for the model as a whole."""
    described, methods, predicted = dict(settings), {}, {}
    if asked.method in MODELS and tokens is not None:
        edits = _edits(run, asked, checkpoint, tokens)
        methods, checkpoint = edits.methods, edits.applied(checkpoint)
        if isinstance(edits, Plan):
            described["plan"], predicted = edits.as_json(), edits.predicted
    paired = asked.method == PAIRED  # whose pairs stay as they were made
    report = run.compress(
        checkpoint,
        asked.wrapped(asked.one()),
        writer(described, checkpoint.float_type()),
        settings,
        None if paired and not asked.bits else tokens,
        methods={name: asked.wrapped(method) for name, method in methods.items()},
        corrects=not paired,
    )
    if predicted:
        report.predicted = predicted
        report.write(run.out)
    return report


def _edits(run: Run, asked: Asked, checkpoint: Checkpoint, tokens: torch.Tensor) -> Edits:
    if asked.method == PAIRED:
        return modegpt(checkpoint, tokens, asked.keep, ignore=asked.ignore, device=run.device)
    return make_plan(
        *(checkpoint, tokens[: max(1, _CURVATURE_TOKENS // tokens.shape[1])]),
        keep=asked.keep if asked.target_bytes is None else None,
        target_bytes=asked.target_bytes,
        pairs=asked.pairs,
        shared=not (asked.bits or asked.outliers),
        families={name: partial(make_method, name) for name in asked.families},
        dtype=checkpoint.float_type(),
        value_bits=asked.value_bits(checkpoint.config.get("hidden_size", _WIDTH)),
        entries=asked.outliers,
        ignore=asked.ignore,
        seed=run.seed,
        device=run.device,
        progress=run.progress,
    )


def make_method(name: str | Method, keep: float, known: Iterable[str] = (*MODELS, *METHODS)) -> Method:
    """A method of METHODS for a share of stored values. Raises SqueezeError where there is none such; known: what there
    is to choose from."""
    if not isinstance(name, str):
        return name
    if name not in METHODS:
        raise SqueezeError(f"method {name!r} is unknown: choose from {', '.join(known)}")
    return METHODS[name](keep=keep)
