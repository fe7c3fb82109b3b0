"""How a checkpoint is quantised: one description, which every format writes into config.json in its own words."""

import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache
from math import comb
from typing import Any

import torch

from squeeze.checkpoint.quantized import QuantizedTensor
from squeeze.errors import FormatError, printable

__all__ = ["BITS", "CODEBOOKS", "Grid", "QuantizationSpec", "fits"]

BITS = (2, 3, 4, 5, 6, 7, 8)  # of integers: our own format holds all
CODEBOOKS = ("nf4", "nf4-nested", "mxfp4", "nvfp4", "fp8", "ternary")


@dataclass(frozen=True)
class Grid:
    """What the weights of one module may be.

    bits: of a code. group_size: inputs that share a scale, -1 for one scale a row. symmetric: integers
    without zero points. codebook: a name in CODEBOOKS where codes are not integers; `symmetric` then
    means nothing. outliers: whether some input columns may be kept as they were. rows: outputs that share a scale, -1
    for all of them. activations: what the module's inputs are rounded to, one of quant.activations.ACTIVATIONS.
    """

    bits: int
    group_size: int = 128
    symmetric: bool = True
    codebook: str | None = None
    outliers: bool = False
    rows: int = field(default=1, kw_only=True)
    activations: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if self.bits not in BITS:
            raise FormatError(f"{printable(self.bits)} bits: choose from {', '.join(map(str, BITS))}")
        if self.group_size != -1 and self.group_size < 1:
            raise FormatError(
                f"groups of {printable(self.group_size)}: name a positive number, or -1 for one scale a row"
            )
        if self.codebook is not None and self.codebook not in CODEBOOKS:
            raise FormatError(
                f"codebook {printable(repr(self.codebook))} is unknown: choose from {', '.join(CODEBOOKS)}"
            )

    def inputs(self, columns: int) -> int:
        """`QuantizedTensor.group_size` for a weight of so many inputs."""
        return columns if self.group_size == -1 else min(self.group_size, columns)

    def check(self, name: str, weight: QuantizedTensor) -> None:
        """Raises FormatError where `weight` does not lie on this grid."""
        faults = {
            f"has {weight.bits} bits, not {self.bits}": weight.bits != self.bits,
            f"has groups of {weight.group_size}": self.inputs(weight.shape[1])
            != min(weight.group_size, weight.shape[1]),
            "has zero points": self.codebook is None and self.symmetric and weight.zeros is not None,
            "has no zero points": self.codebook is None and not self.symmetric and weight.zeros is None,
            "is on a codebook": self.codebook is None and weight.codebook is not None,
            f"is not on the codebook {self.codebook}": self.codebook is not None and weight.codebook is None,
            "keeps outliers": not self.outliers and weight.outliers is not None,
        }
        for fault, present in faults.items():
            if present:
                raise FormatError(f"{name}: the weight {fault}, which is not what the checkpoint's description says")


@dataclass(frozen=True)
class QuantizationSpec(Grid):
    """The grid of most modules, and what is different elsewhere.

    ignored: names of linear modules that are not quantised, the output head's among them. modules: grids of
    modules that have another than most, by name. dtype: of the scales and of all that is not quantised.
    method: by which the weights were chosen, for the record. patterns: grids of modules whose names begin
    with what a regular expression fits, the first one counts; other writers' files have them. ordered: whether columns
    were rounded in the order of their inputs' size, for the record; groups lie as they are stored.
    """

    ignored: tuple[str, ...] = ()
    modules: Mapping[str, Grid] = field(default_factory=dict)
    dtype: torch.dtype = torch.bfloat16
    method: str | None = None
    patterns: tuple[tuple[str, Grid], ...] = ()
    ordered: bool = False

    def of(self, name: str) -> Grid:
        """The grid of the module `name`. Raises FormatError where a pattern is no regular expression, or could take
        long."""
        if name in self.modules:
            return self.modules[name]
        return next((grid for pattern, grid in self.patterns if fits(pattern, name)), self.common)

    @classmethod
    def of_grid(cls, grid: Grid, **others: Any) -> "QuantizationSpec":
        """The description of a checkpoint most of whose modules have this grid. others: all but the fields of it."""
        return cls(**{entry.name: getattr(grid, entry.name) for entry in fields(Grid)}, **others)

    @property
    def common(self) -> Grid:
        """The grid of most modules."""
        return Grid(**{entry.name: getattr(self, entry.name) for entry in fields(Grid)})

    @property
    def grids(self) -> dict[str, Grid]:
        """Every grid in use, with how an error message calls it."""
        exceptions = [*self.modules.items(), *self.patterns]
        return {"": self.common, **{f"{name}: ": grid for name, grid in exceptions}}


_LONGEST = 4096  # characters of an expression
_MOST_WAYS = 10**7  # to fit it to a name: about a second
_LETTER = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)  # an escaped letter, or a class of letters
_MARK = re.compile(r"\(\?(?:[:=!>]|<[=!]|P<\w+>)")  # what a group begins with
_COUNTED = re.compile(r"\{\d*,?\d*\}")
_ONE_WAY = re.compile(r"(?<=[*+?])[?+]")  # lazy, or possessive
_COMMENT = re.compile(r"\(\?(?:#|[a-zA-Z-]*x)")  # in which brackets mean nothing
_REPEATED = re.compile(r"\)[*+]")
_REPEATS = re.compile(r"[*+]")


def fits(pattern: str, name: str) -> bool:
    """Whether a name begins with what a regular expression fits. Raises FormatError where it is none, or one that could
    take long."""
    compiled, repeats, choices = _read(pattern)
    if choices * comb(len(name) + repeats, repeats) > _MOST_WAYS:
        raise _refused(pattern, "could take long: let it repeat and choose less")
    return compiled.match(name) is not None


@lru_cache(maxsize=1024)
def _read(pattern: str) -> tuple[re.Pattern[str], int, int]:
    """An expression, how many letters in it are repeated, and a bound of the ways to choose what it lets choose."""
    if len(pattern) > _LONGEST:
        raise _refused(pattern, f"has {len(pattern)} characters, and at most {_LONGEST} are taken")
    try:
        with warnings.catch_warnings(action="ignore"):  # of what another version of Python may take otherwise
            compiled = re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise _refused(pattern, f"is no regular expression: {printable(error)}") from None
    if _COMMENT.search(pattern):
        raise _refused(pattern, "has comments, which are not taken")
    bare = _ONE_WAY.sub("", _COUNTED.sub("*", _MARK.sub("(", _LETTER.sub("x", pattern))))
    if _REPEATED.search(bare):
        raise _refused(pattern, "could take long: it repeats a group")
    return compiled, len(_REPEATS.findall(bare)), _choices(bare)


def _choices(bare: str) -> int:
    """The product of the branches of all groups, and of 2 for all that may be left out."""
    product, branches = 1 << bare.count("?"), [1]
    for letter in bare:
        if letter == "(":
            branches.append(1)
        elif letter == "|":
            branches[-1] += 1
        elif letter == ")" and len(branches) > 1:
            product *= branches.pop()
    return product * branches[0]


def _refused(pattern: str, fault: str) -> FormatError:
    return FormatError(f"the pattern {printable(repr(pattern))} in the quantization_config {fault}")
