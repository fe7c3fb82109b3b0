"""The description of a quantised checkpoint, which every format writes into config.json in its own terms.

A description may have regular expressions for module names. Python's `re` backtracks, so an expression could take very
long. The number of ways to match is bounded from the expression itself; one above a limit is refused, whatever it
means.
"""

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

__all__ = ["BITS", "CODEBOOKS", "Grid", "QuantizationSpec", "matches"]

BITS = (2, 3, 4, 5, 6, 7, 8)  # of integers: the format squeeze stores all
CODEBOOKS = ("nf4", "nf4-nested", "nf4-fp8", "mxfp4", "nvfp4", "fp6-e3m2", "fp6-e2m3", "fp8", "ternary")


@dataclass(frozen=True)
class Grid:
    """The grid of a module's weights.

    Attributes:
        bits: of a code.
        group_size: inputs that share a scale, -1 for one scale a row.
        symmetric: integers without zero points.
        codebook: a name in CODEBOOKS if codes are not integers; then `symmetric` is ignored.
        outliers: whether some input columns may be kept as they were.
        rows: outputs that share a scale, -1 for all.
        activations: the rounding of the module's inputs, a name in quant.activations.ACTIVATIONS.
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
        """Return `QuantizedTensor.group_size` for a weight with `columns` inputs."""
        return columns if self.group_size == -1 else min(self.group_size, columns)

    def check(self, name: str, weight: QuantizedTensor) -> None:
        """Raise FormatError if a weight is not on this grid."""
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
    """The grid of most modules, and exceptions.

    Attributes:
        ignored: linear modules that are not quantised, including the output head.
        modules: grids of modules with another grid than most, by name.
        dtype: of scales and of everything that is not quantised.
        method: the quantisation method, for the record.
        patterns: regular expressions with grids, for modules whose names they match from the start; the first match
            counts. Files of other writers have them.
        ordered: whether columns were rounded in the order of their inputs' size, for the record; groups are contiguous.
    """

    ignored: tuple[str, ...] = ()
    modules: Mapping[str, Grid] = field(default_factory=dict)
    dtype: torch.dtype = torch.bfloat16
    method: str | None = None
    patterns: tuple[tuple[str, Grid], ...] = ()
    ordered: bool = False

    def of(self, name: str) -> Grid:
        """Return the grid of a module. Raises FormatError if a pattern is invalid or could take long."""
        if name in self.modules:
            return self.modules[name]
        return next((grid for pattern, grid in self.patterns if matches(pattern, name)), self.common)

    @classmethod
    def of_grid(cls, grid: Grid, **options: Any) -> "QuantizationSpec":
        """Return the description of a checkpoint most of whose modules have this grid; `options` are the remaining
        fields."""
        return cls(**{entry.name: getattr(grid, entry.name) for entry in fields(Grid)}, **options)

    @property
    def common(self) -> Grid:
        """The grid of most modules."""
        return Grid(**{entry.name: getattr(self, entry.name) for entry in fields(Grid)})

    @property
    def grids(self) -> dict[str, Grid]:
        """Every grid in use, by the prefix that names it in an error message."""
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


def matches(pattern: str, name: str) -> bool:
    """Return whether a regular expression matches the start of a name. Raises FormatError if it is invalid or could
    take long."""
    compiled, repeats, choices = _read(pattern)
    if choices * comb(len(name) + repeats, repeats) > _MOST_WAYS:
        raise _refused(pattern, "could take long: let it repeat and choose less")
    return compiled.match(name) is not None


@lru_cache(maxsize=1024)
def _read(pattern: str) -> tuple[re.Pattern[str], int, int]:
    """Compile an expression, and count its repeated letters and the ways to choose among its alternatives (an upper
    bound)."""
    if len(pattern) > _LONGEST:
        raise _refused(pattern, f"has {len(pattern)} characters: use at most {_LONGEST}")
    try:
        with warnings.catch_warnings(action="ignore"):  # of what another version of Python may take otherwise
            compiled = re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise _refused(pattern, f"is not a regular expression: {printable(error)}") from None
    if _COMMENT.search(pattern):
        raise _refused(pattern, "has comments: leave them out")
    bare = _ONE_WAY.sub("", _COUNTED.sub("*", _MARK.sub("(", _LETTER.sub("x", pattern))))
    if _REPEATED.search(bare):
        raise _refused(pattern, "could take long: it repeats a group")
    return compiled, len(_REPEATS.findall(bare)), _choices(bare)


def _choices(bare: str) -> int:
    """Return the product of the branches of all groups, and of 2 for every optional part."""
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
