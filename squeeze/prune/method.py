"""The base of methods that prune a matrix: the pattern, and the check of a Hessian."""

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
    """A method that prunes a matrix W (out, in); `pattern` says which weights may stay."""

    name: ClassVar[str]
    needs_hessian: ClassVar[bool]

    def __post_init__(self) -> None:
        check(self)

    @abstractmethod
    def compress(self, weight: torch.Tensor, hessian: torch.Tensor | None = None) -> Result[SparseTensor]:
        """Prune a weight; see Method.compress."""

    @property
    def quantises(self) -> bool:
        """True if kept weights are quantised."""
        return False

    @property
    def corrects(self) -> bool:
        """True if error propagation may change a weight before it is pruned."""
        return True

    @abstractmethod
    def fallback(self) -> Method:
        """Return the method to use without statistics; see Method.fallback."""

    def apply(self, weight: torch.Tensor, hessian: torch.Tensor | None = None) -> SparseTensor:
        """Prune W [O, I] of floats with H [I, I], the mean or sum of x x^T over inputs x, if the method needs it.

        Raises HessianError if the Hessian cannot be used.
        """
        return self.compress(weight, hessian).tensor

    def replaced(self, **changes: object) -> Self:
        """Return the method with other parameters."""
        return replace(self, **changes)  # type: ignore[arg-type]

    def sparse(self, weight: torch.Tensor, mask: torch.Tensor, dtype: torch.dtype) -> SparseTensor:
        """Return the sparse tensor of values [O, I] and a mask."""
        return SparseTensor(weight.masked_fill(~mask, 0).to(dtype), mask, self.pattern)


def checked_hessian(weight: torch.Tensor, hessian: torch.Tensor | None) -> torch.Tensor:
    """Return the Hessian of a weight [O, I]. Raises HessianError if it is missing, has another size, or is not
    finite."""
    inputs = weight.shape[1]
    if hessian is None or hessian.shape != (inputs, inputs):
        raise HessianError(f"expected a Hessian of {inputs} x {inputs}, the inputs of the matrix")
    if not torch.isfinite(hessian.diagonal()).all():
        raise HessianError("the Hessian is not finite")
    return hessian
