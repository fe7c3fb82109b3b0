"""SLiM: a sparse (and quantised) matrix plus a low-rank addition that compensates for the loss.

Mozaffari et al. 2024 (arXiv 2410.09615) weight the loss by the magnitude of each input. Here the whole Hessian H = C
C^T replaces its diagonal. The singular value decomposition of (W - Q) C then gives the addition of rank R with the
least squared error of outputs, in closed form. Its two factors are quantised as well.
"""

from dataclasses import dataclass, field
from typing import ClassVar

import torch

from squeeze.checkpoint.sparse import Adapters, SparseTensor
from squeeze.engine.method import Method, Result
from squeeze.errors import SqueezeError
from squeeze.prune.method import PruningMethod, checked_hessian
from squeeze.prune.methods import SLiMOptions
from squeeze.prune.sparsegpt import SparseGPT
from squeeze.quant.gptq import inverse_factor
from squeeze.quant.rtn import RTN

__all__ = ["SLiM", "low_rank"]


@dataclass(frozen=True, kw_only=True)
class SLiM(SLiMOptions, PruningMethod):
    """Prune a matrix and add a low-rank correction: less error at a sparsity, for a few per cent more bytes.

    compress takes W (out, in) and H (in, in). Mozaffari et al. 2024, arXiv 2410.09615.

    Attributes:
        base: the method that makes the sparse matrix, with this pattern.
        rank: rank of the addition, as a share of the smaller side.
        adapter: the grid of its factors; None to keep them in the weight's dtype.
        rounds: alternations between sparse matrix and addition.
    """

    name: ClassVar[str] = "slim"
    needs_hessian: ClassVar[bool] = True

    base: SparseGPT = field(default_factory=SparseGPT)
    adapter: RTN | None = field(default_factory=lambda: RTN(bits=4, group_size=128))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.base.pattern != self.pattern:
            object.__setattr__(self, "base", self.base.replaced(pattern=self.pattern))
        if not 0 < self.rank <= 1 or self.rounds < 1:
            raise SqueezeError(f"expected a rank above 0 and at most 1 of the smaller side, got {self.rank:g}")

    @property
    def quantises(self) -> bool:
        return self.base.quantises

    @property
    def corrects(self) -> bool:
        return self.base.corrects

    def fallback(self) -> Method:
        return self.base.fallback()

    def compress(self, weight: torch.Tensor, hessian: torch.Tensor | None = None) -> Result[SparseTensor]:
        hessian = checked_hessian(weight, hessian)
        rank = max(round(self.rank * min(weight.shape)), 1)
        addition = torch.zeros_like(weight, dtype=torch.float32)
        for _ in range(self.rounds):
            result = self.base.compress((weight.float() - addition).to(weight.dtype), hessian)
            left, right = low_rank(weight.float() - result.tensor.sparse(), hessian, rank, self.base.damping)
            adapters = self._stored(left, right, weight.dtype)
            addition = adapters.dense()
        base = result.tensor
        return Result(SparseTensor(base.values, base.mask, base.pattern, adapters), result.notes)

    def _stored(self, left: torch.Tensor, right: torch.Tensor, dtype: torch.dtype) -> Adapters:
        if self.adapter is None:
            return Adapters(left.to(dtype), right.to(dtype))
        return Adapters(self.adapter.apply(left.to(dtype)), self.adapter.apply(right.to(dtype)))


def low_rank(
    difference: torch.Tensor, hessian: torch.Tensor, rank: int, damping: float = 0.01
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return factors [R, O] and [R, I] whose product left^T right is nearest to a difference under a Hessian.

    Args:
        difference: [O, I].
        hessian: H [I, I].
        rank: R.
        damping: share of the mean diagonal of H that is added to it.
    """
    upper, _ = inverse_factor(hessian.float(), damping)  # U^T U = H^-1, so that H = U^-1 U^-T
    inverse = torch.linalg.solve_triangular(upper, torch.eye(len(upper), device=upper.device), upper=True)
    u, s, v = torch.linalg.svd(difference.float() @ inverse, full_matrices=False)
    root = s[:rank].sqrt()
    return (u[:, :rank] * root).T.contiguous(), (root[:, None] * v[:rank]) @ upper
