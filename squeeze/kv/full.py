"""No coding at all: the reference that everything else is compared with, equal to transformers' DynamicCache."""

from dataclasses import dataclass

from squeeze.kv.base import HeadGroup, Policy

__all__ = ["FullPrecision"]


@dataclass(frozen=True)
class FullPrecision(Policy):
    """Every token stays in the model's dtype."""

    sinks: int = 0
    window: int = 0
    block: int = 0

    def head_groups(self, layer: int, heads: int) -> list[HeadGroup]:
        return []
