"""What methods that prune a matrix share: the pattern, and what is left of a weight in the type that stores it."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch

from squeeze.checkpoint.sparse import SparseTensor
from squeeze.engine.method import HessianError, Method, Result
from squeeze.options import check
from squeeze.prune.methods import PatternOptions

__all__ = ["PruningMethod", "checked_hessian"]


@dataclass(frozen=True, kw_only=True)
class PruningMethod(PatternOptions, ABC):
    """pattern: which weights may stay."""

    name: ClassVar[str]
    needs_hessian: ClassVar[bool]

    def __post_init__(self) -> None:
        check(self)

    @abstractmethod
    def compress(self, weight: torch.Tensor, hessian: torch.Tensor | None = None) -> Result[SparseTensor]:
        """As Method.compress."""

    @property
    def quantises(self) -> bool:
        """Whether the weights kept lie on a grid."""
        return False

    @property
    def corrects(self) -> bool:
        """Whether a weight may be moved to make up for earlier errors before it is given."""
        return True

    @abstractmethod
    def fallback(self) -> Method:
        """As Method.fallback."""

    def apply(self, weight: torch.Tensor, hessian: torch.Tensor | None = None) -> SparseTensor:
        """weight [O, I] of floats; hessian: [I, I], the mean (or sum) of x x^T over inputs x, where one is needed.

        Raises HessianError where the Hessian does not serve.
        """
        return self.compress(weight, hessian).tensor

    def replaced(self, **changes: object) -> Self:
        """The same method with other parameters."""
        return replace(self, **changes)  # type: ignore[arg-type]

    def sparse(self, weight: torch.Tensor, mask: torch.Tensor, dtype: torch.dtype) -> SparseTensor:
        """The result from values [O, I] and a mask."""
        return SparseTensor(weight.masked_fill(~mask, 0).to(dtype), mask, self.pattern)


def checked_hessian(weight: torch.Tensor, hessian: torch.Tensor | None) -> torch.Tensor:
    """Raises HessianError where there is none for a weight [O, I], or it is not finite."""
    inputs = weight.shape[1]
    if hessian is None or hessian.shape != (inputs, inputs):
        raise HessianError(f"a matrix of {inputs} inputs needs a Hessian of that size")
    if not torch.isfinite(hessian.diagonal()).all():
        raise HessianError("the Hessian is not finite")
    return hessian
