"""The methods that factorise a matrix, by name."""

from squeeze.options import Reference

__all__ = ["METHODS"]

METHODS: dict[str, Reference] = {
    "svd": "squeeze.factor.lowrank:SVD",
    "whitened": "squeeze.factor.lowrank:WhitenedSVD",
    "shared": "squeeze.factor.shared:SharedSVD",
    "tt": "squeeze.factor.tensor_network:TensorTrain",
    "tucker": "squeeze.factor.tensor_network:Tucker",
    "ring": "squeeze.factor.tensor_network:TensorRing",
    "monarch": "squeeze.factor.block_lowrank:Monarch",
    "blast": "squeeze.factor.block_lowrank:BLAST",
}
