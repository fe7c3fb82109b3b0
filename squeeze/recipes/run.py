"""A run that compresses a checkpoint: source and target, calibration set, and resuming after a stop."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial, wraps
from pathlib import Path
from typing import Any, TypeVar, cast

from torch import nn

from squeeze.checkpoint.checkpoint import Checkpoint, saved
from squeeze.engine.inputs import Inputs, Samples
from squeeze.engine.method import Method
from squeeze.engine.network import Network
from squeeze.engine.pipeline import WORK, Compression, Progress
from squeeze.engine.report import NAME as REPORT, Report
from squeeze.engine.selection import check_ignored
from squeeze.engine.sharding import LocalWorkers, Workers
from squeeze.engine.writing import Writer
from squeeze.errors import SqueezeError
from squeeze.integrations.opening import check_opens
from squeeze.operations import Operation, Request
from squeeze.options import options_of, read_options
from squeeze.packing import folder
from squeeze.quant.sources import floats
from squeeze.recipes.options import GGUF, PEFT, Common
from squeeze.recipes.samples import given
from squeeze.recipes.tokens import calibration_inputs, calibration_name
from squeeze.recipes.train.distil import is_trained
from squeeze.system.work import forget, other_settings

__all__ = ["Run", "Source", "read", "takes_models", "tokens_of"]

Source = Path | str | nn.Module
_OF_SETS = ("chat", "samples", "sequence_length")
_F = TypeVar("_F", bound=Callable[..., Report])
_S = TypeVar("_S")


def takes_models(function: _F) -> _F:
    """Make a function of a folder and `out` also take a transformers model, which is saved to a folder next to
    `out`."""

    @wraps(function)
    def taking(source: Source, *args: Any, **options: Any) -> Report:
        if not isinstance(source, nn.Module):
            return function(source, *args, **options)
        with saved(source, Path(options["out"])) as saved_folder:
            return function(saved_folder, *args, **options)

    return cast(_F, taking)


def read(operation: Operation[_S], method: Any, options: Mapping[str, Any]) -> tuple[Request[_S], Common]:
    """Return what keyword arguments request; raises OptionError for unknown, mistyped and out-of-bounds options."""
    shared = {one.name for one in options_of(Common)}
    named = {key: value for key, value in options.items() if key in shared}
    if "calibration" in named:
        named["calibration"] = given(named["calibration"], named.get("samples", Common.samples))
    common = read_options(Common, named)
    return operation.read({key: value for key, value in options.items() if key not in shared}, method), common


def tokens_of(source: Path, common: Common, device: str) -> Any:
    """Return the calibration set by a folder's tokenizer or processor: int64 [samples, sequence_length], or Samples."""
    size = common.samples, common.sequence_length, common.seed
    return calibration_inputs(source, common.calibration, *size, device, common.chat)


@dataclass(frozen=True, kw_only=True)
class Run:
    """The settings of a run.

    `source` is a Hugging Face folder and `out` the folder to write. `common` has the calibration and what is left
    alone. `correction`, `progress` and `workers` are those of engine/pipeline.py. `resume` continues a stopped run, and
    `overwrite` replaces an existing folder.
    """

    source: Path
    out: Path
    common: Common
    correction: float
    resume: bool = False
    overwrite: bool = False
    device: str = "cpu"
    progress: Progress | None = None
    workers: Workers = field(default_factory=LocalWorkers)

    def open(self, waits: Report | None = None) -> Checkpoint:
        """Open the checkpoint in floats, and check `out` unless `waits`, a report of `waiting`, is given.

        Raises SqueezeError if the source is not a checkpoint, `out` may not be written, or a name to leave alone does
        not exist.
        """
        checkpoint = floats(Checkpoint.open(self.source))
        if waits is None:
            folder.check_target(self.source, self.out, self.overwrite)
            if self.common.ignore:
                check_ignored(Network(checkpoint), self.common.ignore)
        return checkpoint

    def tokens(self) -> Any:
        """Return the calibration set: int64 [samples, sequence_length], or Samples."""
        return tokens_of(self.source, self.common, self.device)

    def described(self) -> dict[str, Any]:
        """Return the settings of the calibration for the report."""
        numbers = {name: getattr(self.common, name) for name in ("samples", "sequence_length", "seed", "bound", "chat")}
        return {
            **numbers,
            "correction": self.correction,
            "calibration": calibration_name(self.common.calibration, self.source),
        }

    def unused(self, method: str) -> tuple[str, ...]:
        """Return a note on options of a calibration set that were given, for a method that needs none."""
        plain, given = Common(), ["calibration"] if self.common.calibration is not None else []
        given += [name for name in _OF_SETS if getattr(self.common, name) != getattr(plain, name)]
        return (f"not used, since {method} is not calibrated: {', '.join(given)}",) if given else ()

    def compress(  # noqa: PLR0913
        self,
        checkpoint: Checkpoint,
        method: Method,
        writer: Writer,
        settings: Mapping[str, Any],
        tokens: Inputs | None,
        *,
        methods: Mapping[str, Method] | None = None,
        outer: Mapping[str, Method] | None = None,
        remarks: Mapping[str, str] | None = None,
        corrects: bool = True,
        notes: tuple[str, ...] = (),
    ) -> Report:
        """Run pipeline.Compression with these fields.

        Args:
            checkpoint: The prepared checkpoint.
            method: The common method.
            writer: Writer of the format.
            settings: Settings for the report, with those of `described` if a calibration set is used.
            tokens: The calibration set, int64 [N, L] or samples, or None.
            methods: Methods of single modules, by the checkpoint's name.
            outer: Methods of the embedding and the head, by the network's name.
            remarks: Remarks for the report, by the checkpoint's name.
            corrects: Whether errors are propagated, if there are tokens.
            notes: More remarks.
        """
        return Compression(
            source=self.source,
            target=self.out,
            method=method,
            writer=writer,
            tokens=tokens,
            methods=methods or {},
            outer=outer or {},
            correction=self.correction if tokens is not None and corrects else 0.0,
            ignore=self.common.all_ignored,
            remarks=remarks or {},
            bound=self.common.bound,
            settings=settings,
            notes=(*notes, *(_notes_of(tokens) if "calibration" in settings else self.unused(method.name))),
            resume=self.resume,
            overwrite=self.overwrite,
            device=self.device,
            checkpoint=checkpoint,
            progress=self.progress,
            workers=self.workers,
            check=None if writer.name in (GGUF, PEFT) else partial(check_opens, source=checkpoint, target=self.out),
        ).run()

    def waiting(self, method: str, settings: Mapping[str, Any]) -> Report | None:
        """Return the report of a written `out` that a stopped run still had to train, pack or measure, else None.

        Raises SqueezeError if its settings differ, or if they are the same and neither `resume` nor `overwrite` is set.
        """
        if (self.overwrite and not self.resume) or not (self.out / REPORT).is_file() or is_trained(self.out):
            return None
        report = Report.read(self.out)
        same = report.method == method and report.settings == _as_json(settings)
        same = same and Path(report.source).resolve() == self.source.resolve()
        if not self.resume:
            if same:
                raise SqueezeError(
                    f"{self.out} is written already: go on with `resume=True`, or start over with `overwrite=True`"
                )
            return None  # what is in the way is said by `open`
        if not same:
            raise SqueezeError(other_settings(self.out))
        forget(self.out, WORK)
        report.target = str(self.out)
        return report


def _as_json(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values as they are read back from a JSON file."""
    document: dict[str, Any] = json.loads(json.dumps(dict(values), default=str))
    return document


def _notes_of(inputs: Inputs | None) -> tuple[str, ...]:
    return inputs.notes if isinstance(inputs, Samples) else ()
