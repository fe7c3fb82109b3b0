"""A product with weights that is not made floats yet: what follows it in the network does that on its way."""

from typing import NamedTuple

import torch
from torch import Tensor

from squeeze.numerics import tensors
from squeeze.numerics.int8_tensors import TOP

__all__ = ["Product", "added", "cumulate", "gate", "normalise", "quantise"]


class Product(NamedTuple):
    """R rows of N outputs.

    sums: int32 [R or more, N or more]; what lies beyond counts for nothing. rows: float32 [R], scales of what was
    multiplied. columns: float32 [N], scales of outputs. bias: float32 [N], or None.
    """

    sums: Tensor
    rows: Tensor
    columns: Tensor
    bias: Tensor | None = None

    def value(self) -> Tensor:
        """float32 [R, N] without the bias: the row's scale first, then the output's."""
        sums = self.sums[: self.rows.numel(), : self.columns.numel()]
        return sums.to(torch.float32) * self.rows[:, None] * self.columns

    def biased(self) -> Tensor:
        """float32 [R, N] with it."""
        return self.value() if self.bias is None else self.value() + self.bias


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


def gate(product: Product, block: int, factor: float, out: Tensor) -> Tensor:
    """The scales float32 [R] of gate * sigmoid(gate) * up, rotated by blocks: sums of `rotate_sums`, whose 8-bit
    integers go to `out` [R or more, F or more], times `factor`.

    product: [R, 2 F], the gate and then up, without a bias.
    """
    integers, scales = tensors.quantise(tensors.rotate_sums(tensors.gated(*product.value().chunk(2, 1)), block), TOP)
    out[: integers.shape[0], : integers.shape[1]] = integers
    return scales * factor


def cumulate(product: Product) -> Tensor:
    """int64 [R, leaves]: cumulative frequencies of logits, a product with its bias."""
    return tensors.cumulate(product.biased())
