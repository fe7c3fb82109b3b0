"""How much a factorisation keeps: what all methods of factorising share."""

from dataclasses import dataclass

from squeeze.options import Checked, option

__all__ = ["Share"]


@dataclass(frozen=True, kw_only=True)
class Share(Checked):
    """keep: stored values as a share of the matrix's."""

    keep: float = option(0.9, "Share of the stored weights.", above=0, most=1, says="a share of {} to keep")
