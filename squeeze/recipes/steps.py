"""The steps of a recipe: which may follow each other, and how each runs. The keys of a step are options of its
operation.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from shutil import copytree, rmtree
from typing import Any, ClassVar

from squeeze.engine.pipeline import Progress
from squeeze.engine.report import Report
from squeeze.errors import SqueezeError
from squeeze.operations import Operation, Request
from squeeze.options import values_of
from squeeze.packing.pack import Totals, pack
from squeeze.quant.bits import Bits
from squeeze.recipes.densify import densify
from squeeze.recipes.experts import experts
from squeeze.recipes.factorize import Task, factorize
from squeeze.recipes.options import (
    EXPERTS,
    FACTORIZE,
    FIXED,
    GGUF,
    PACK,
    PRUNE,
    QUANTIZE,
    RECOVER,
    RECOVER_FOLDER,
    Common,
)
from squeeze.recipes.prune import prune, recovered, requested_method
from squeeze.recipes.quantize import quantize
from squeeze.recipes.recover import has_codes, recover

__all__ = ["STEPS", "Common", "Pack", "Pass", "Prune", "Quantize", "Step"]


@dataclass(frozen=True, kw_only=True)
class Pass:
    """One run of a step; `original` is the model that the recipe began with, and `next_step` the step that reads the
    result."""

    common: Common
    original: Path
    next_step: "Step | None" = None
    resume: bool = False
    device: str = "cpu"
    progress: Progress | None = None

    def options(self) -> dict[str, Any]:
        """Arguments of every function that compresses a checkpoint."""
        own = {"resume": self.resume, "device": self.device, "progress": self.progress, "overwrite": True}
        return values_of(self.common) | own


@dataclass(frozen=True)
class Step(ABC):
    """An entry of a recipe, with the options that it sets."""

    operation: ClassVar[Operation[Any]]
    name: ClassVar[str]
    follows: ClassVar[tuple[str, ...] | None] = None  # the steps that it may come after; None for any

    values: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """Raise SqueezeError for options that are unknown, mistyped, out of bounds, or exclude each other."""
        self.request()

    def request(self) -> Request[Any]:
        return self.operation.read(self.values)

    def value(self, key: str) -> Any:
        """Return the value of an option, or the method's default."""
        asked = self.request()
        if key == "method":
            return asked.method
        settings = values_of(asked.settings)
        return settings[key] if key in settings else asked.method_options.get(key, self._default(key))

    def check_after(self, previous: "Step | None") -> None:
        """Raise SqueezeError if this step cannot follow `previous`, or cannot be the first."""
        if isinstance(previous, Pack):
            raise SqueezeError(f"{self.name} after pack: pack comes last")
        if previous is not None and self.follows is not None and previous.name not in self.follows:
            raise SqueezeError(f"{self.name} cannot follow {previous.name}, whose work it would undo or could not read")

    def joined(self, other: "Step") -> "Step | None":
        """Return one step that does this one's work and the next one's in one pass, or None."""
        return None

    @abstractmethod
    def run(self, source: Path, out: Path, this_pass: Pass) -> Report | Totals:
        """Write the folder `out`, replacing what is there."""

    def non_defaults(self) -> dict[str, Any]:
        """Return the options that are not defaults."""
        return {key: value for key, value in self.values.items() if self.value(key) != self._default(key)}

    def _default(self, key: str) -> Any:
        return self.operation.default_of(key, self.values.get("method"))


@dataclass(frozen=True)
class Prune(Step):
    """A step with the options of `squeeze prune`."""

    operation = PRUNE
    name: ClassVar[str] = "prune"
    follows: ClassVar[tuple[str, ...] | None] = ("factorize", "experts")

    def __post_init__(self) -> None:
        if type(pattern := self.values.get("pattern")) is int:  # YAML 1.1 reads 2:4 as minutes and seconds
            object.__setattr__(self, "values", {**self.values, "pattern": "{}:{}".format(*divmod(pattern, 60))})
        self.check()

    def check(self) -> None:
        requested_method(self.request())

    def joined(self, other: Step) -> Step | None:
        return Prune({**self.values, **_grid_of(other, self)}) if isinstance(other, Quantize) else None

    def run(self, source: Path, out: Path, this_pass: Pass) -> Report:
        values = {**self.values, "dense": True} if isinstance(this_pass.next_step, Factorize) else self.values
        return prune(source, out=out, **{**values, **this_pass.options()})


@dataclass(frozen=True)
class Quantize(Step):
    """A step with the options of `squeeze quantize`."""

    operation = QUANTIZE
    name: ClassVar[str] = "quantize"
    follows: ClassVar[tuple[str, ...] | None] = ("prune", "factorize", "recover", "experts")

    def check(self) -> None:
        self.request().create_method()
        if self.value("format") == GGUF:
            raise SqueezeError("the steps of a recipe write folders: quantize its result to the format gguf afterwards")

    def within(self, pruned: "Prune") -> "Prune":
        """Return the step that quantises the kept weights within another step's pass."""
        return Prune({"pattern": pruned.value("pattern"), "keep_zeros": True, **_grid_of(self, pruned)})

    def run(self, source: Path, out: Path, this_pass: Pass) -> Report:
        return quantize(source, out=out, **{**self.values, **this_pass.options()})


@dataclass(frozen=True)
class Factorize(Step):
    """A step with the options of `squeeze factorize`."""

    operation = FACTORIZE
    name: ClassVar[str] = "factorize"
    follows: ClassVar[tuple[str, ...] | None] = ("prune", "experts")

    def check(self) -> None:
        Task(self.request()).check()

    def joined(self, other: Step) -> Step | None:
        return Factorize({**self.values, **_grid_of(other, self)}) if isinstance(other, Quantize) else None

    def run(self, source: Path, out: Path, this_pass: Pass) -> Report:
        with _readable(out, this_pass.next_step, "factors") as written:
            return factorize(source, out=written, **{**self.values, **this_pass.options()})


@dataclass(frozen=True)
class Experts(Step):
    """A step with the options of `squeeze experts`, which writes a plain checkpoint."""

    operation = EXPERTS
    name: ClassVar[str] = "experts"
    follows: ClassVar[tuple[str, ...] | None] = ()

    def check(self) -> None:
        self.request().create_method()
        if self.value("keep") is None and self.value("active") is None:
            raise SqueezeError("experts needs keep, a share of the experts, or active, the experts that a token uses")

    def run(self, source: Path, out: Path, this_pass: Pass) -> Report:
        options = this_pass.options()
        del options["resume"]  # a stopped step starts again
        return experts(source, out=out, **{**self.values, **options})


@dataclass(frozen=True)
class Recover(Step):
    """A step that retrains what pruning kept (recipes/train/retrain.py), or weights on grids (recipes/recover.py)."""

    operation = RECOVER
    name: ClassVar[str] = "recover"
    follows: ClassVar[tuple[str, ...] | None] = ("prune", "quantize")

    def check_after(self, before: Step | None) -> None:
        super().check_after(before)
        if before is None:
            raise SqueezeError("recover comes after prune or quantize, in the same recipe")
        if isinstance(before, Prune) and before.value("dense"):
            raise SqueezeError("recover takes no dense folder")
        codes = isinstance(before, Quantize) or (isinstance(before, Prune) and before.value("bits") is not None)
        if not codes and (self.value("codes") != FIXED or self.value("blocks") is not None):
            raise SqueezeError("`codes` and `blocks` are for quantised weights")

    def run(self, source: Path, out: Path, this_pass: Pass) -> Report:
        options = {**self.values, **values_of(this_pass.common)}
        shared: dict[str, Any] = {"device": this_pass.device, "progress": this_pass.progress}
        with _readable(out, this_pass.next_step, "sparse") as written:
            if has_codes(source):
                own = {key: options[key] for key in RECOVER_FOLDER.options() if key in options}
                return recover(source, base=this_pass.original, out=written, overwrite=True, **own, **shared)
            if not written.exists():
                unfinished = out.with_name(f"{out.name}.unfinished")
                rmtree(unfinished, ignore_errors=True)
                copytree(source, unfinished)
                unfinished.rename(written)
            return recovered(this_pass.original, written, **options, **shared)


@dataclass(frozen=True)
class Pack(Step):
    """A step with the options of `squeeze pack`."""

    operation = PACK
    name: ClassVar[str] = "pack"

    def run(self, source: Path, out: Path, this_pass: Pass) -> Totals:
        return pack(source, out, overwrite=True, **values_of(self.request().settings))


STEPS: dict[str, type[Step]] = {step.name: step for step in (Prune, Quantize, Factorize, Experts, Recover, Pack)}


@contextmanager
def _readable(out: Path, following: Step | None, form: str) -> Iterator[Path]:
    """Yield the folder that a step writes: `out`, or a temporary one that is then expanded to dense weights in
    `out`."""
    written = out.with_name(f"{out.name}.{form}") if isinstance(following, Prune) else out
    yield written
    if written != out:
        densify(written, out, overwrite=True)
        rmtree(written)


def _grid_of(step: Quantize, before: Prune | Factorize) -> dict[str, Any]:
    """Return the bits and group size of a quantisation that runs within another step's pass."""
    grid = {key: step.value(key) for key in ("bits", "group_size")}
    if isinstance(grid["bits"], Bits):
        raise SqueezeError(f"quantize after {before.name} is one pass with it, and takes no bits by name")
    if before.value("bits") is not None:
        raise SqueezeError(f"{before.name} quantises already")
    if others := set(step.non_defaults()) - set(grid):
        raise SqueezeError(f"quantize after {before.name} is one pass with it, and takes no {min(others)!r}")
    return grid
