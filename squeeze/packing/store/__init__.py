"""A store of models, which keeps each tensor once, or as the difference from a similar one."""

from squeeze.packing.store.store import Store

__all__ = ["Store"]
