"""Who does the operations of a network: plain torch, or Triton's kernels. choice.py chooses."""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from squeeze.lm.fused.attention import Kept, Norms, Queries, Shape, Turns, reference as attention
from squeeze.lm.fused.counts import reference as counts
from squeeze.lm.fused.gated import reference as gated
from squeeze.lm.fused.norm import reference as norm
from squeeze.lm.fused.product import Product

__all__ = ["TORCH", "Operations", "fused"]


class Operations(NamedTuple):
    """Functions as the references declare them, and what they are called."""

    name: str
    normalise: Callable[[Tensor, Product | None, float, Tensor], tuple[Tensor, Tensor]]
    quantise: Callable[[Tensor, Tensor], Tensor]
    gate: Callable[[Product, int, float, Tensor], Tensor]
    turns: Callable[[Tensor, float, Tensor, Shape, int], Turns]
    heads: Callable[[Product, Shape, Norms, Turns, Tensor, Kept], Queries]
    attend: Callable[[Queries, Shape, Tensor, Kept], Tensor]
    cumulate: Callable[[Product], Tensor]


TORCH = Operations(
    *("torch", norm.normalise, norm.quantise, gated.gate),
    *(attention.turns, attention.heads, attention.attend, counts.cumulate),
)


def fused() -> Operations:
    """Triton's. Raises ImportError where there is no Triton."""
    from squeeze.lm.fused.attention import kernel as attending
    from squeeze.lm.fused.counts import kernel as counting
    from squeeze.lm.fused.gated import kernel as gating
    from squeeze.lm.fused.norm import kernel as norming

    return Operations(
        *("fused kernels", norming.normalise, norming.quantise, gating.gate),
        *(attending.turns, attending.heads, attending.attend, counting.cumulate),
    )
