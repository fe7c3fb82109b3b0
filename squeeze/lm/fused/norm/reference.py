"""The definition: a residual sum, its norm, and 8-bit integers, in plain torch."""

from torch import Tensor

from squeeze.lm.fused.product import Product
from squeeze.numerics import tensors
from squeeze.numerics.int8_tensors import TOP

__all__ = ["added", "normalise", "quantise"]


def added(x: Tensor, product: Product | None) -> Tensor:
    """float32 [R, W]: x, plus a product, plus its bias."""
    if product is None:
        return x
    x = x + product.value()
    return x if product.bias is None else x + product.bias


def normalise(x: Tensor, product: Product | None, epsilon: float, out: Tensor) -> tuple[Tensor, Tensor]:
    """`added`, and the scales float32 [R] of its norm, whose 8-bit integers go to `out` [R or more, W or more]."""
    x = added(x, product)
    integers, scales = tensors.normalise(x, epsilon)
    out[: x.shape[0], : x.shape[1]] = integers
    return x, scales


def quantise(x: Tensor, out: Tensor) -> Tensor:
    """The scales float32 [R] of x float32 [R, W], whose 8-bit integers go to `out`."""
    integers, scales = tensors.quantise(x, TOP)
    out[: x.shape[0], : x.shape[1]] = integers
    return scales
