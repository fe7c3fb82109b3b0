"""The methods that prune a matrix, by name, and the options of each.

The methods themselves import torch, which `--help` does not wait for: each inherits its options from here.
"""

from dataclasses import dataclass

from squeeze.checkpoint.pattern import Pattern
from squeeze.options import Lazy, Reference, option

__all__ = ["METHODS", "PatternOptions", "SLiMOptions", "SparseGPTOptions"]


@dataclass(frozen=True, kw_only=True)
class PatternOptions:
    """Options of every method (method.py)."""

    pattern: Pattern = option(
        Pattern(), "N:M such as 2:4, a share such as 50%, or units as 16x50%.", parse=Pattern.parse
    )


@dataclass(frozen=True, kw_only=True)
class SparseGPTOptions(PatternOptions):
    """Options of SparseGPT (sparsegpt.py)."""

    damping: float = option(0.01, "Share of the Hessian's mean diagonal added to it.", least=0)
    block_size: int = option(128, "Columns whose errors are spread to those behind at once.", least=1)
    refine: int = option(4, "Rounds over groups of N:M that give each its best mask.", least=0)
    reconstruct: int = option(8, "Steps of reconstruction after that.", least=0)
    keep_zeros: bool = option(False, "The weights are pruned already, and dense; quantise what is left of them.")
    exact: bool = option(False, "Compute in float64.")


@dataclass(frozen=True, kw_only=True)
class SLiMOptions(PatternOptions):
    """Options of SLiM (slim.py)."""

    rank: float = option(0.1, "Rank of the adapters as a share of the smaller side, above 0 and at most 1.")
    rounds: int = option(2, "Rounds between the sparse matrix and its adapters.")


METHODS: dict[str, Reference] = {
    "sparsegpt": Lazy(SparseGPTOptions, "squeeze.prune.sparsegpt:SparseGPT"),
    "wanda": Lazy(PatternOptions, "squeeze.prune.wanda:Wanda"),
    "magnitude": Lazy(PatternOptions, "squeeze.prune.magnitude:Magnitude"),
    "slim": Lazy(SLiMOptions, "squeeze.prune.slim:SLiM"),
}
