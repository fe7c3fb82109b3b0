"""The protocol of methods that compress matrices, and of their results; quant, prune and factor have the methods."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Protocol, TypeVar, runtime_checkable

import torch

from squeeze.errors import SqueezeError

__all__ = ["LARGE", "Compressed", "HessianError", "JointMethod", "Method", "Result", "layer_error"]

LARGE = 4096  # inputs above which a Hessian is factorised in float32 first


class HessianError(SqueezeError):
    """A Hessian that cannot be factorised, with any damping."""


class Compressed(Protocol):
    """A matrix in another form."""

    def dequantize(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Return the values [O, I]."""
        ...

    @property
    def stored_bits(self) -> int:
        """The bits of all that is stored."""
        ...


T_co = TypeVar("T_co", bound=Compressed, covariant=True)


@dataclass(frozen=True)
class Result(Generic[T_co]):
    """A compressed matrix, and notes for the report.

    `comparable`: whether it can be compared with the original matrix; not if that was changed together with others
    before.
    """

    tensor: T_co
    notes: tuple[str, ...] = ()
    comparable: bool = True


class Method(Protocol):
    """A method that compresses one matrix."""

    name: ClassVar[str]
    needs_hessian: ClassVar[bool]

    def compress(self, weight: torch.Tensor, hessian: torch.Tensor | None = None) -> Result[Any]:
        """Compress a matrix.

        Args:
            weight: W [O, I] (out, in) of floats; not changed.
            hessian: H [I, I] (in, in), float32, the mean of x x^T over inputs x; or None.

        Raises:
            HessianError: the Hessian cannot be used.
        """
        ...

    def fallback(self) -> "Method":
        """Return the method to use if there are no statistics, or unusable ones."""
        ...


@runtime_checkable
class JointMethod(Method, Protocol):
    """A method that compresses matrices with the same inputs together."""

    def compress_together(self, weights: Mapping[str, torch.Tensor], hessian: torch.Tensor) -> dict[str, Result[Any]]:
        """Compress matrices [O, I] by module name in the block. Raises HessianError as `compress` does."""
        ...


def layer_error(weight: torch.Tensor, changed: torch.Tensor, hessian: torch.Tensor | None) -> float:
    """Return tr((W - Q) H (W - Q)^T) / tr(W H W^T): the share of a layer's mean squared output that is lost.

    If H is that of inputs without their mean, it is the share of the output's variance.

    Without H it is the share of the weights' own squares.
    """

    def energy(values: torch.Tensor) -> torch.Tensor:
        return ((values if hessian is None else values @ hessian) * values).sum()

    return float(energy(weight.float() - changed.float()) / energy(weight.float()).clamp(min=1e-30))
