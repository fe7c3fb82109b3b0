"""The steps of a recipe: one dataclass for each, whose fields are the keys that a recipe may give it."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from shutil import copytree, rmtree
from typing import TYPE_CHECKING, Any, ClassVar

from squeeze.engine.pipeline import Progress
from squeeze.engine.report import Report
from squeeze.errors import SqueezeError
from squeeze.packing.container import LEVELS
from squeeze.packing.pack import Totals, pack

if TYPE_CHECKING:
    from squeeze.prune.method import PruningMethod
    from squeeze.quant.method import GridMethod

__all__ = ["STEPS", "Common", "Pack", "Pass", "Prune", "Quantize", "Step"]


@dataclass(frozen=True, kw_only=True)
class Common:
    """What all steps share, as squeeze.prune and the others take it."""

    calibration: str | None = None
    samples: int = 128
    sequence_length: int = 512
    seed: int = 0
    ignore: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Pass:
    """One run of a step. original: the model that the recipe began with; then: the step that reads what is written."""

    common: Common
    original: Path
    then: "Step | None" = None
    resume: bool = False
    device: str = "cpu"
    progress: Progress | None = None

    def options(self) -> dict[str, Any]:
        """What every function that compresses a checkpoint takes."""
        own = {"resume": self.resume, "device": self.device, "progress": self.progress, "overwrite": True}
        return {entry.name: getattr(self.common, entry.name) for entry in fields(Common)} | own


@dataclass(frozen=True, kw_only=True)
class Step(ABC):
    """One entry of a recipe."""

    name: ClassVar[str]
    follows: ClassVar[tuple[str, ...] | None] = None  # the steps that it may come after; None for any

    def check_after(self, before: "Step | None") -> None:
        """Raises SqueezeError where this step has no place after that one, or as the first."""
        if isinstance(before, Pack):
            raise SqueezeError(f"{self.name} after pack: pack comes last")
        if before is not None and self.follows is not None and before.name not in self.follows:
            raise SqueezeError(f"{self.name} cannot follow {before.name}, whose work it would undo or could not read")

    def joined(self, other: "Step") -> "Step | None":
        """One step that does this one's work and the next one's in one pass, where there is such a step."""
        return None

    @abstractmethod
    def run(self, source: Path, out: Path, at: Pass) -> Report | Totals:
        """Write the folder `out`, which is overwritten."""

    def given(self) -> dict[str, Any]:
        """The fields that are not as they are by default."""
        return {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}


@dataclass(frozen=True, kw_only=True)
class Prune(Step):
    """The options of `squeeze prune`."""

    name: ClassVar[str] = "prune"
    follows: ClassVar[tuple[str, ...] | None] = ("factorize",)

    pattern: str | int = "2:4"
    method: str = "sparsegpt"
    damping: float = 0.01
    refine: int = 4
    reconstruct: int = 8
    permute: bool = False
    bits: int | None = None
    group_size: int = 128
    slim: bool = False
    rank: float = 0.1
    keep_zeros: bool = False
    correction: float = 0.3
    dense: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.pattern, int):  # YAML 1.1 reads 2:4 as minutes and seconds
            object.__setattr__(self, "pattern", "{}:{}".format(*divmod(self.pattern, 60)))
        self.made()

    def made(self) -> "PruningMethod":
        from squeeze.recipes.prune import make_method

        options = {f.name: getattr(self, f.name) for f in fields(self)}
        return make_method(options.pop("method"), **options)

    def joined(self, other: Step) -> Step | None:
        return replace(self, **_grid_of(other, self)) if isinstance(other, Quantize) else None

    def run(self, source: Path, out: Path, at: Pass) -> Report:
        from squeeze.recipes.prune import prune

        dense = self.dense or isinstance(at.then, Factorize)
        own: dict[str, Any] = {"permute": self.permute, "correction": self.correction, "dense": dense}
        return prune(source, self.made(), out=out, **own, **at.options())


@dataclass(frozen=True, kw_only=True)
class Quantize(Step):
    """The options of `squeeze quantize`."""

    name: ClassVar[str] = "quantize"
    follows: ClassVar[tuple[str, ...] | None] = ("prune", "factorize", "recover")

    method: str = "gptq"
    bits: int = 4
    group_size: int = 64
    symmetric: bool = True
    grid: str = "integer"
    clip: bool = True
    act_order: bool = True
    refine: int = 1
    rotate: bool = False
    smooth: float = 0.0
    target_bits: float | None = None
    correction: float = 0.3
    format: str = "compressed-tensors"

    def __post_init__(self) -> None:
        self.made()

    def made(self) -> "GridMethod":
        from squeeze.recipes.quantize import METHODS

        if self.method not in METHODS:
            raise SqueezeError(f"method {self.method!r} is unknown: choose from {', '.join(METHODS)}")
        known = {entry.name for entry in fields(METHODS[self.method])}
        return METHODS[self.method](**{f.name: getattr(self, f.name) for f in fields(self) if f.name in known})

    def within(self, pruned: "Prune") -> "Prune":
        """The step that does this one's work among the weights that another one has kept."""
        return Prune(pattern=pruned.pattern, keep_zeros=True, **_grid_of(self, pruned))

    def run(self, source: Path, out: Path, at: Pass) -> Report:
        from squeeze.recipes.quantize import quantize

        own = {name: getattr(self, name) for name in ("rotate", "smooth", "target_bits", "correction", "format")}
        return quantize(source, self.made(), out=out, **own, **at.options())


@dataclass(frozen=True, kw_only=True)
class Factorize(Step):
    """The options of `squeeze factorize`."""

    name: ClassVar[str] = "factorize"
    follows: ClassVar[tuple[str, ...] | None] = ("prune",)

    method: str = "plan"
    keep: float = 0.9
    target_bytes: int | None = None
    families: tuple[str, ...] = ()
    pairs: bool = True
    outliers: int = 0
    bits: int | None = None
    group_size: int = 64
    correction: float = 0.5
    heal: float = 0.0

    def __post_init__(self) -> None:
        from squeeze.recipes.factorize import Asked

        own = {f.name: getattr(self, f.name) for f in fields(Asked) if f.name != "ignore"}
        Asked(**own, ignore=()).check(self.heal)

    @property
    def dense(self) -> bool:
        """Whether what it writes is read by every later step as it is."""
        return self.method == "slicegpt"

    def joined(self, other: Step) -> Step | None:
        return replace(self, **_grid_of(other, self)) if isinstance(other, Quantize) and not self.dense else None

    def run(self, source: Path, out: Path, at: Pass) -> Report:
        from squeeze.recipes.factorize import factorize

        own = {f.name: getattr(self, f.name) for f in fields(self)}
        with _readable(out, None if self.dense else at.then, "factors") as made:
            return factorize(source, out=made, **own, **at.options())


@dataclass(frozen=True, kw_only=True)
class Recover(Step):
    """Training of what is left after pruning (recipes/train/retrain.py)."""

    name: ClassVar[str] = "recover"
    follows: ClassVar[tuple[str, ...] | None] = ("prune",)

    minutes: float = 20.0
    steps: int | None = None
    rank: int | None = None
    rate: float | None = None
    batch: int = 1

    def check_after(self, before: Step | None) -> None:
        super().check_after(before)
        if before is None:
            raise SqueezeError("recover comes after prune, in the same recipe")
        if isinstance(before, Prune) and (before.bits is not None or before.dense):
            raise SqueezeError("recover takes neither quantised weights nor a dense folder")

    def run(self, source: Path, out: Path, at: Pass) -> Report:
        from squeeze.recipes.prune import recovered

        own = {f.name: getattr(self, f.name) for f in fields(self)}
        shared = {f.name: getattr(at.common, f.name) for f in fields(Common) if f.name != "ignore"}
        with _readable(out, at.then, "sparse") as made:
            if not made.exists():
                unfinished = out.with_name(f"{out.name}.unfinished")
                rmtree(unfinished, ignore_errors=True)
                copytree(source, unfinished)
                unfinished.rename(made)
            return recovered(at.original, made, **own, **shared, device=at.device, progress=at.progress)


@dataclass(frozen=True, kw_only=True)
class Pack(Step):
    """The options of `squeeze pack`."""

    name: ClassVar[str] = "pack"

    level: str = "runtime"

    def __post_init__(self) -> None:
        if self.level not in LEVELS:
            raise SqueezeError(f"level {self.level!r} is unknown: choose from {', '.join(LEVELS)}")

    def run(self, source: Path, out: Path, at: Pass) -> Totals:
        return pack(source, out, level=self.level, overwrite=True)


STEPS: dict[str, type[Step]] = {step.name: step for step in (Prune, Quantize, Factorize, Recover, Pack)}


@contextmanager
def _readable(out: Path, then: Step | None, form: str) -> Iterator[Path]:
    """Where a step writes: `out`, or beside it what is then expanded to `out`, for a next step that reads dense weights
    only."""
    from squeeze.recipes.densify import densify

    made = out.with_name(f"{out.name}.{form}") if isinstance(then, Prune) else out
    yield made
    if made != out:
        densify(made, out, overwrite=True)
        rmtree(made)


def _grid_of(step: Quantize, before: Prune | Factorize) -> dict[str, Any]:
    """What of a quantisation can be done in the pass of another step: its bits and group size."""
    grid = {"bits": step.bits, "group_size": step.group_size}
    if before.bits is not None:
        raise SqueezeError(f"{before.name} quantises already")
    if others := set(step.given()) - set(grid):
        raise SqueezeError(f"quantize after {before.name} is one pass with it, and takes no {min(others)!r}")
    return grid
