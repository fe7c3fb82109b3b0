"""`squeeze.factorize`: a checkpoint is written with its matrices as factors, by one method or by a plan."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, cast

import torch

from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.engine.inputs import only_tokens
from squeeze.engine.method import Method
from squeeze.engine.pipeline import Progress
from squeeze.engine.report import Report
from squeeze.engine.writing import Writer
from squeeze.errors import SqueezeError
from squeeze.factor import METHOD, VERSION
from squeeze.factor.form import Form
from squeeze.factor.lowrank import Identity
from squeeze.factor.methods import METHODS, Share
from squeeze.factor.modegpt import RowColumnPruning
from squeeze.factor.outliers import Quantised, WithOutliers
from squeeze.factor.shared import SharedSVD
from squeeze.operations import Request
from squeeze.options import load, options_of, values_of
from squeeze.quant.gptq import GPTQ
from squeeze.recipes.options import FACTORIZE, WHOLE, Factorizing, Plan
from squeeze.recipes.plan.edits import Edits, WithNote
from squeeze.recipes.plan.modegpt import modegpt
from squeeze.recipes.plan.plan import Plan as ChosenPlan, PlanConfig, make_plan
from squeeze.recipes.run import Run, Source, read, takes_models
from squeeze.recipes.train.distil import Training
from squeeze.recipes.train.retrain import heal as healed
from squeeze.system.storage import local_path

__all__ = ["factorize", "writer"]

PLAN, PAIRED = "plan", "modegpt"
_SCALES = 19  # bits for a group of a quantised matrix: its scale, and what groups that are not full cost
_WIDTH = 512  # of a model that does not say
_CURVATURE_TOKENS = 8192  # of the calibration that a plan looks at


def writer(settings: Mapping[str, Any], dtype: torch.dtype) -> Writer:
    """Return a writer of factorised forms, which adds `settings` to the `quantization_config`."""

    def tensors(module: str, form: Form, transposed: bool) -> dict[str, torch.Tensor]:
        stored = form.tensors()
        if "weight" in stored and transposed:
            stored["weight"] = stored["weight"].T.contiguous()
        return {f"{module}.{leaf}": tensor for leaf, tensor in stored.items()}

    def config(ignored: list[str]) -> dict[str, Any]:
        name = str(dtype).removeprefix("torch.")
        plan = {"quant_method": METHOD, "version": VERSION, "dtype": name, "ignored": ignored, **settings}
        return {"quantization_config": plan}

    return Writer("factorised", tensors, config, biases=True)


@takes_models
def factorize(
    source: Source,
    method: str | Method = FACTORIZE.default,
    *,
    out: Path | str,
    resume: bool = False,
    overwrite: bool = False,
    device: str = "cpu",
    progress: Progress | None = None,
    **options: Any,
) -> Report:
    """Write a checkpoint whose blocks' matrices are factorised.

    Args:
        source: Hugging Face folder, or a transformers model, which is saved first.
        method: "plan" chooses family and rank by matrix (plan/plan.py), within `keep` of the stored values or
            `target_bytes` for the whole checkpoint. "modegpt" shrinks every block by one ratio (plan/modegpt.py). A
            name in factor.methods.METHODS, or a method, applies to all matrices.
        out: Folder to write.
        resume: Whether to continue a stopped run, also while it was healing.
        overwrite: Whether to replace an existing folder.
        device: Torch device.
        progress: Called with what is done and what is left.
        options: Options of a named method, and fields of options.Factorizing and options.Common.

    Raises:
        SqueezeError: If an input or an option is invalid; nothing is written then.
    """
    request, common = read(FACTORIZE, method, options)
    task, settings = Task(request, common.ignore), request.settings
    task.check()
    shared: dict[str, Any] = {"resume": resume, "overwrite": overwrite, "device": device, "progress": progress}
    run = Run(
        source=local_path(str(source)), out=local_path(out), common=common, correction=settings.correction, **shared
    )
    calibrated = task.needs_tokens or settings.heal > 0
    described = task.described() | (run.described() if calibrated else {})
    report = run.waiting(task.wrapped(task.default_method).name, described) if settings.heal else None
    checkpoint = run.open(report)
    tokens = run.tokens() if calibrated else None
    if report is None:
        report = _factorised(run, task, checkpoint, tokens, described)
    if not settings.heal or tokens is None:
        return report
    shared = {"resume": resume, "device": device, "progress": progress}
    healing = healed(run.source, run.out, tokens, Training(minutes=settings.heal, **shared))
    report.settings = {**report.settings, "healing": f"{healing.steps} steps"}
    report.seconds = round(report.seconds + healing.seconds, 3)
    report.write(run.out)
    return report


@dataclass(frozen=True)
class Task:
    """A factorisation as it is requested, with the parts of names that are left alone."""

    request: Request[Factorizing]
    ignore: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Name of the method."""
        return self.request.method if isinstance(self.request.method, str) else str(self.request.method.name)

    @property
    def is_whole(self) -> bool:
        """True if the method decides for the model as a whole."""
        return isinstance(self.request.method, str) and self.request.method in WHOLE

    @cached_property
    def whole(self) -> Plan:
        """Options of a method that decides for the model as a whole, as a Plan."""
        method: Share = self.request.create_method()
        return method if isinstance(method, Plan) else Plan(keep=method.keep)

    @cached_property
    def default_method(self) -> Method:
        """The method of matrices for which nothing else is planned."""
        return Identity() if self.is_whole else cast(Method, self.request.create_method())

    def check(self) -> None:
        """Raise SqueezeError for unknown options and those that exclude each other."""
        settings, outliers, bits = self.request.settings, self.request.settings.outliers, self.request.settings.bits
        if self.request.method_options.get("target_bytes") is not None and self.name != PLAN:
            raise SqueezeError("`target_bytes` needs the method plan")
        for name in self.request.method_options.get("families", ()):
            family(name, self.request.method_options.get("keep", 1.0))
        self.request.create_method()
        if bits:
            self.grid()
        if bits and settings.heal:
            raise SqueezeError("quantised factors cannot be healed: leave out `bits` or `heal`")
        if self.name == SharedSVD.name and (bits or outliers):
            raise SqueezeError("matrices on one basis have neither `bits` nor `outliers`: use the method whitened")
        if self.name == PAIRED and outliers and not bits:
            raise SqueezeError("modegpt removes channels and keeps the others exactly: leave out `outliers`")

    def grid(self) -> GPTQ:
        """Return the quantisation of the factors."""
        assert self.request.settings.bits is not None
        return GPTQ(bits=self.request.settings.bits, group_size=self.request.settings.group_size)

    @property
    def needs_tokens(self) -> bool:
        return self.is_whole or self.default_method.needs_hessian or bool(self.request.settings.bits)

    def value_bits(self, width: int) -> float | None:
        """Return the bits of a stored value, scales included, if factors are quantised to reach a size; else None.

        `width` is the model's hidden size.
        """
        settings = self.request.settings
        if not settings.bits or self.whole.target_bytes is None:
            return None
        return settings.bits + _SCALES / (settings.group_size if settings.group_size > 0 else width / 2)  # a rank

    def described(self) -> dict[str, Any]:
        """Return the settings for the report."""
        settings, description = self.request.settings, {"method": self.name} | self._described_method()
        if settings.outliers:
            description["outliers"] = settings.outliers
        if settings.bits:
            description |= {"bits": settings.bits, "group_size": settings.group_size}
        return description | ({"ignore": list(self.ignore)} if self.ignore else {})

    def _described_method(self) -> dict[str, Any]:
        """Return how much the method keeps, and its other options that are not defaults."""
        method = self.request.create_method()
        values = values_of(method)
        if self.name == PLAN and self.is_whole:
            size = {"target_bytes": method.target_bytes} if method.target_bytes is not None else {"keep": method.keep}
            return size | {"families": list(method.families), "pairs": method.pairs}
        changed = {one.name: values[one.name] for one in options_of(type(method)) if values[one.name] != one.default}
        return {"keep": method.keep} | changed if "keep" in values else changed

    def wrapped(self, method: Method) -> Method:
        """Add outliers that are kept exactly, and quantisation of factors, to a method."""
        settings = self.request.settings
        inner = method.method if isinstance(method, WithNote) else method
        whole = isinstance(inner, (Identity, RowColumnPruning)) and not (
            inner.pivoted if isinstance(inner, Identity) else inner.always
        )
        if settings.outliers and not isinstance(inner, SharedSVD) and (settings.bits or not whole):
            method = cast(Method, WithOutliers(method, settings.outliers))
        return cast(Method, Quantised(method, self.grid())) if settings.bits else method


def _factorised(
    run: Run, task: Task, checkpoint: Checkpoint, tokens: torch.Tensor | None, settings: dict[str, Any]
) -> Report:
    """Decide for the model as a whole, then factorise block by block, and return the report."""
    described, methods, predicted = dict(settings), {}, {}
    if task.is_whole and tokens is not None:
        edits = _edits(run, task, checkpoint, tokens)
        methods, checkpoint = edits.methods, edits.applied(checkpoint)
        if isinstance(edits, ChosenPlan):
            described["plan"], predicted = edits.as_json(), edits.predicted
    paired = task.name == PAIRED  # whose pairs stay as they were made
    report = run.compress(
        checkpoint,
        task.wrapped(task.default_method),
        writer(described, checkpoint.float_type()),
        settings,
        None if paired and not task.request.settings.bits else tokens,
        methods={name: task.wrapped(method) for name, method in methods.items()},
        corrects=not paired,
    )
    if predicted:
        report.predicted = predicted
        report.write(run.out)
    return report


def _edits(run: Run, task: Task, checkpoint: Checkpoint, tokens: torch.Tensor) -> Edits:
    whole, settings = task.whole, task.request.settings
    if task.name == PAIRED:
        return modegpt(checkpoint, tokens, whole.keep, ignore=run.common.all_ignored, device=run.device)
    plan_config = PlanConfig(
        keep=whole.keep if whole.target_bytes is None else None,
        target_bytes=whole.target_bytes,
        pairs=whole.pairs,
        shared=not (settings.bits or settings.outliers),
        families={name: partial(family, name) for name in whole.families},
        dtype=checkpoint.float_type(),
        value_bits=task.value_bits(checkpoint.config.get("hidden_size", _WIDTH)),
        entries=settings.outliers,
        ignore=run.common.all_ignored,
    )
    tokens = only_tokens(tokens, "a plan", "use one `method` for all matrices, such as whitened")
    sequences = tokens[: max(1, _CURVATURE_TOKENS // tokens.shape[1])]
    return make_plan(checkpoint, sequences, plan_config, seed=run.common.seed, device=run.device, progress=run.progress)


def family(name: str, keep: float) -> Method:
    """Return the method of a name for a share of stored values; raises SqueezeError if the name is unknown."""
    if name not in METHODS:
        raise SqueezeError(f"method {name!r} is unknown: choose from {', '.join(METHODS)}")
    return cast(Method, load(METHODS[name])(keep=keep))
