"""What the pipeline asks of a method that compresses matrices, and of what it makes: quant/ and prune/ have them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Protocol, TypeVar, runtime_checkable

import torch

from squeeze.errors import SqueezeError

__all__ = ["LARGE", "Compressed", "HessianError", "JointMethod", "Method", "Result", "layer_error"]

LARGE = 4096  # inputs above which a Hessian is factorised in float32 first


class HessianError(SqueezeError):
    """A Hessian cannot be factorised, however much it is damped."""


class Compressed(Protocol):
    """A matrix in another form."""

    def dequantize(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """[O, I], the values that it stands for."""
        ...

    @property
    def stored_bits(self) -> int:
        """Bits of all that it takes."""
        ...


T_co = TypeVar("T_co", bound=Compressed, covariant=True)


@dataclass(frozen=True)
class Result(Generic[T_co]):
    """A compressed matrix, and what a report should say of it. comparable: with the matrix that was given, which is the
    original's; not where that one had been changed together with others."""

    tensor: T_co
    notes: tuple[str, ...] = ()
    comparable: bool = True


class Method(Protocol):
    """Something that compresses one matrix."""

    name: ClassVar[str]
    needs_hessian: ClassVar[bool]

    def compress(self, weight: torch.Tensor, hessian: torch.Tensor | None = None) -> Result[Any]:
        """weight [O, I] of floats; hessian: float32 [I, I], the mean of x x^T over inputs x, or None.

        Raises HessianError where the Hessian does not serve.
        """
        ...

    def fallback(self) -> "Method":
        """What to do where there are no statistics, or none that can be used."""
        ...


@runtime_checkable
class JointMethod(Method, Protocol):
    """A method that compresses matrices that share their inputs together, where several have the same method."""

    def compress_together(self, weights: Mapping[str, torch.Tensor], hessian: torch.Tensor) -> dict[str, Result[Any]]:
        """weights: [O, I] each, by their modules' names in the block. Raises HessianError as `compress` does."""
        ...


def layer_error(weight: torch.Tensor, changed: torch.Tensor, hessian: torch.Tensor | None) -> float:
    """tr((W - Q) H (W - Q)^T) / tr(W H W^T): the share of a layer's mean squared output that is lost, or of the
    weights' own squares without H."""

    def energy(values: torch.Tensor) -> torch.Tensor:
        return ((values if hessian is None else values @ hessian) * values).sum()

    return float(energy(weight.float() - changed.float()) / energy(weight.float()).clamp(min=1e-30))
