"""The methods that prune a matrix, by name, with their options.

`--help` reads this module, so it does not import torch. The methods inherit their options from here.
"""

from dataclasses import dataclass

from squeeze.checkpoint.pattern import Pattern
from squeeze.options import Lazy, Reference, option

__all__ = ["METHODS", "PatternOptions", "SLiMOptions", "SparseGPTOptions"]


@dataclass(frozen=True, kw_only=True)
class PatternOptions:
    """Options of every method (method.py)."""

    pattern: Pattern = option(
        Pattern(), "Sparsity pattern: 2:4, a share such as 50%, or units such as 16x50%", parse=Pattern.parse
    )


@dataclass(frozen=True, kw_only=True)
class SparseGPTOptions(PatternOptions):
    """Options of SparseGPT (sparsegpt.py)."""

    damping: float = option(0.01, "Damping, as a share of the Hessian's mean diagonal", least=0)
    block_size: int = option(128, "Columns per block of error updates", least=1)
    refine: int = option(4, "Rounds of the search for the best mask of each N:M group", least=0)
    reconstruct: int = option(8, "Reconstruction steps after the masks are chosen", least=0)
    keep_zeros: bool = option(False, "Keep the zeros of a pruned model, and quantise its other weights")
    exact: bool = option(False, "Compute in float64")


@dataclass(frozen=True, kw_only=True)
class SLiMOptions(PatternOptions):
    """Options of SLiM (slim.py)."""

    rank: float = option(0.1, "Rank of the adapters, as a share of the smaller dimension, at most 1")
    rounds: int = option(2, "Rounds of refitting the sparse matrix and its adapters in turn")


METHODS: dict[str, Reference] = {
    "sparsegpt": Lazy(SparseGPTOptions, "squeeze.prune.sparsegpt:SparseGPT"),
    "wanda": Lazy(PatternOptions, "squeeze.prune.scores:Wanda"),
    "magnitude": Lazy(PatternOptions, "squeeze.prune.scores:Magnitude"),
    "slim": Lazy(SLiMOptions, "squeeze.prune.slim:SLiM"),
}
