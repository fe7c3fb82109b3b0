"""The methods that prune a matrix, by name."""

from squeeze.options import Reference

__all__ = ["METHODS"]

METHODS: dict[str, Reference] = {
    "sparsegpt": "squeeze.prune.sparsegpt:SparseGPT",
    "wanda": "squeeze.prune.wanda:Wanda",
    "magnitude": "squeeze.prune.magnitude:Magnitude",
    "slim": "squeeze.prune.slim:SLiM",
}
