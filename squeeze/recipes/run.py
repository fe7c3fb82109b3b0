"""What all ways to compress a checkpoint share: where it goes, what it is calibrated on, and going on after a stop."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial, wraps
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch import nn

from squeeze.checkpoint.checkpoint import Checkpoint, saved
from squeeze.engine.method import Method
from squeeze.engine.network import Network
from squeeze.engine.pipeline import WORK, Compression, Progress, Writer, check_ignored
from squeeze.engine.report import NAME as REPORT, Report
from squeeze.engine.sharding import Here, Workers
from squeeze.errors import SqueezeError
from squeeze.options import Operation, Request, options_of, read_options
from squeeze.packing import folder
from squeeze.quant.sources import floats
from squeeze.recipes.options import GGUF, Common
from squeeze.recipes.tokens import calibration_name, calibration_tokens
from squeeze.recipes.train.distil import is_trained
from squeeze.system.work import forget, other_settings

__all__ = ["Run", "Source", "read", "takes_models", "tokens_of"]

Source = Path | str | nn.Module
_F = TypeVar("_F", bound=Callable[..., Report])
_S = TypeVar("_S")


def takes_models(function: _F) -> _F:
    """Lets a function of a folder and `out` take a model of transformers, which is saved to a folder beside `out`."""

    @wraps(function)
    def taking(source: Source, *args: Any, **options: Any) -> Report:
        if not isinstance(source, nn.Module):
            return function(source, *args, **options)
        with saved(source, Path(options["out"])) as saved_folder:
            return function(saved_folder, *args, **options)

    return cast(_F, taking)


def read(operation: Operation[_S], method: Any, options: Mapping[str, Any]) -> tuple[Request[_S], Common]:
    """What the arguments of a function ask for. Raises OptionError for what is unknown, of another type or out of
    bounds."""
    shared = {one.name for one in options_of(Common)}
    common = read_options(Common, {key: value for key, value in options.items() if key in shared})
    return operation.read({key: value for key, value in options.items() if key not in shared}, method), common


def tokens_of(source: Path, common: Common, device: str) -> torch.Tensor:
    """int64 [samples, sequence_length]: the calibration, by the tokenizer of a model's folder."""
    return calibration_tokens(source, common.calibration, common.samples, common.sequence_length, common.seed, device)


@dataclass(frozen=True, kw_only=True)
class Run:
    """source: a Hugging Face folder; out: the folder to write; overwrite: also where there is one. common: what the
    calibration is, and what is left alone. correction, progress, workers: as engine/pipeline.py has them. resume: go on
    with a run that was stopped."""

    source: Path
    out: Path
    common: Common
    correction: float
    resume: bool = False
    overwrite: bool = False
    device: str = "cpu"
    progress: Progress | None = None
    workers: Workers = field(default_factory=Here)

    def open(self, waits: Report | None = None) -> Checkpoint:
        """The checkpoint, in floats. waits: what `waiting` found. Raises SqueezeError where it is none, `out` may not
        be written, or something is to be left that is not there."""
        checkpoint = floats(Checkpoint.open(self.source))
        if waits is None:
            folder.check_target(self.source, self.out, self.overwrite)
            if self.common.ignore:
                check_ignored(Network(checkpoint), self.common.ignore)
        return checkpoint

    def tokens(self) -> torch.Tensor:
        """int64 [samples, sequence_length]: the calibration."""
        return tokens_of(self.source, self.common, self.device)

    def described(self) -> dict[str, Any]:
        """What a report says of the calibration."""
        numbers = {name: getattr(self.common, name) for name in ("samples", "sequence_length", "seed", "bound")}
        return {**numbers, "correction": self.correction, "calibration": calibration_name(self.common.calibration)}

    def compress(  # noqa: PLR0913
        self,
        checkpoint: Checkpoint,
        method: Method,
        writer: Writer,
        settings: Mapping[str, Any],
        tokens: torch.Tensor | None,
        *,
        methods: Mapping[str, Method] | None = None,
        told: Mapping[str, str] | None = None,
        corrects: bool = True,
        notes: tuple[str, ...] = (),
    ) -> Report:
        """Run pipeline.Compression, whose fields these are. corrects: whether errors are propagated, with tokens."""
        return Compression(
            source=self.source,
            target=self.out,
            method=method,
            writer=writer,
            tokens=tokens,
            methods=methods or {},
            correction=self.correction if tokens is not None and corrects else 0.0,
            ignore=self.common.left_alone,
            told=told or {},
            bound=self.common.bound,
            settings=settings,
            notes=notes,
            resume=self.resume,
            overwrite=self.overwrite,
            device=self.device,
            checkpoint=checkpoint,
            progress=self.progress,
            workers=self.workers,
            check=None if writer.name == GGUF else partial(_check_opens, checkpoint, self.out),
        ).run()

    def waiting(self, method: str, settings: Mapping[str, Any]) -> Report | None:
        """With `resume`, the report of an `out` that is written and was to be trained, packed or measured when the run
        was stopped, as these settings have it; None where there is no such folder. Raises SqueezeError where its
        settings are others, and where they are the same but neither `resume` nor `overwrite` says what is to be."""
        if (self.overwrite and not self.resume) or not (self.out / REPORT).is_file() or is_trained(self.out):
            return None
        report = Report.read(self.out)
        same = report.method == method and report.settings == _as_json(settings)
        same = same and Path(report.source).resolve() == self.source.resolve()
        if not self.resume:
            if same:
                raise SqueezeError(
                    f"{self.out} is written already: go on with `resume=True`, or start anew with `overwrite=True`"
                )
            return None  # what is in the way is said by `open`
        if not same:
            raise SqueezeError(other_settings(self.out))
        forget(self.out, WORK)
        report.target = str(self.out)
        return report


def _check_opens(checkpoint: Checkpoint, out: Path, written: Path) -> None:
    from squeeze.integrations.opening import check_opens  # transformers takes seconds to import

    check_opens(written, checkpoint, out)


def _as_json(values: Mapping[str, Any]) -> dict[str, Any]:
    """As a file gives them back."""
    document: dict[str, Any] = json.loads(json.dumps(dict(values), default=str))
    return document
