"""The methods that factorise a matrix, by name, and the options of each.

The methods themselves import torch, which `--help` does not wait for: each inherits its options from here.
"""

from dataclasses import dataclass

from squeeze.options import Checked, Lazy, Reference, option

__all__ = [
    "METHODS",
    "BLASTOptions",
    "BlockOptions",
    "NetworkOptions",
    "RankOptions",
    "RingOptions",
    "Share",
    "TrainOptions",
    "TruncationOptions",
]


@dataclass(frozen=True, kw_only=True)
class Share(Checked):
    """keep: stored values as a share of the matrix's."""

    keep: float = option(0.9, "Share of the stored weights to keep", above=0, most=1)


@dataclass(frozen=True, kw_only=True)
class RankOptions(Share):
    """Options of matrices on one basis (shared.py)."""

    rank: int | None = option(None, "Rank of each matrix, instead of a share to keep", least=1)


@dataclass(frozen=True, kw_only=True)
class TruncationOptions(RankOptions):
    """Options of truncated singular value decompositions (lowrank.py)."""

    pivoted: bool = option(True, "Pivoted storage of the factors, which is smaller (PIFA)")
    damping: float = option(1e-4, "Damping of the input moments, as a share of their mean diagonal", least=0)
    output_damping: float = option(0.1, "Damping of the output moments, as a share of their mean diagonal", least=0)


@dataclass(frozen=True, kw_only=True)
class NetworkOptions(Share):
    """Options of tensor networks (tensor_network.py)."""

    whiten: bool = option(True, "Weigh errors by the input statistics")


@dataclass(frozen=True, kw_only=True)
class TrainOptions(NetworkOptions):
    """Options of tensor trains."""

    modes: int = option(2, "Number of cores, one for each pair of modes", least=2)


@dataclass(frozen=True, kw_only=True)
class RingOptions(NetworkOptions):
    """Options of tensor rings."""

    modes: int = option(3, "Number of cores, one for each pair of modes", least=2)
    ring: int = option(2, "Rank of the bond that closes the ring", least=1)


@dataclass(frozen=True, kw_only=True)
class BlockOptions(Share):
    """Options of block low-rank matrices (block_lowrank.py)."""

    blocks: int = option(4, "Blocks along each dimension", least=1)


@dataclass(frozen=True, kw_only=True)
class BLASTOptions(BlockOptions):
    """Options of BLAST."""

    blocks: int = option(2, "Blocks along each dimension", least=1)
    rounds: int = option(3, "Rounds of alternating least squares", least=0)


METHODS: dict[str, Reference] = {
    "svd": Lazy(TruncationOptions, "squeeze.factor.lowrank:SVD"),
    "whitened": Lazy(TruncationOptions, "squeeze.factor.lowrank:WhitenedSVD"),
    "shared": Lazy(RankOptions, "squeeze.factor.shared:SharedSVD"),
    "tt": Lazy(TrainOptions, "squeeze.factor.tensor_network:TensorTrain"),
    "tucker": Lazy(NetworkOptions, "squeeze.factor.tensor_network:Tucker"),
    "ring": Lazy(RingOptions, "squeeze.factor.tensor_network:TensorRing"),
    "monarch": Lazy(BlockOptions, "squeeze.factor.block_lowrank:Monarch"),
    "blast": Lazy(BLASTOptions, "squeeze.factor.block_lowrank:BLAST"),
}
