"""The definitions of norms, gates and frequencies in plain torch, after a product with weights.

A product stays integer sums; the operation after it converts them to floats.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from squeeze.numerics import tensors
from squeeze.numerics.tensors import TOP

__all__ = ["Product", "added", "cumulate", "gate", "normalise", "quantise"]


class Product(NamedTuple):
    """A product with weights, R rows of N outputs, as integer sums and scales.

    - sums: int32 [R or more, N or more]; padding is ignored.
    - rows: float32 [R], scales of the inputs.
    - columns: float32 [N], scales of the outputs.
    - bias: float32 [N], or None.
    """

    sums: Tensor
    rows: Tensor
    columns: Tensor
    bias: Tensor | None = None

    def value(self) -> Tensor:
        """Return float32 [R, N] without the bias: the row's scale is multiplied first, then the output's."""
        sums = self.sums[: self.rows.numel(), : self.columns.numel()]
        return sums.to(torch.float32) * self.rows[:, None] * self.columns

    def biased(self) -> Tensor:
        """Return float32 [R, N] with the bias."""
        return self.value() if self.bias is None else self.value() + self.bias


def added(x: Tensor, product: Product | None) -> Tensor:
    """Return x float32 [R, W], plus a product, plus its bias."""
    if product is None:
        return x
    x = x + product.value()
    return x if product.bias is None else x + product.bias


def normalise(x: Tensor, product: Product | None, epsilon: float, out: Tensor) -> tuple[Tensor, Tensor]:
    """Return `added`, and the scales float32 [R] of its norm.

    Args:
        x: float32 [R, W], the residual stream.
        product: to add, or None.
        epsilon: of the norm.
        out: gets the norm as 8-bit integers, [R or more, W or more].
    """
    x = added(x, product)
    integers, scales = tensors.normalise(x, epsilon)
    out[: x.shape[0], : x.shape[1]] = integers
    return x, scales


def quantise(x: Tensor, out: Tensor) -> Tensor:
    """Return the scales float32 [R] of x float32 [R, W], and write its 8-bit integers to `out`."""
    integers, scales = tensors.quantise(x, TOP)
    out[: x.shape[0], : x.shape[1]] = integers
    return scales


def gate(product: Product, block: int, factor: float, out: Tensor) -> Tensor:
    """Return the scales float32 [R] of gate * sigmoid(gate) * up after a Hadamard rotation by blocks.

    Args:
        product: [R, 2 F], the gate and then up, without a bias.
        block: of the rotation, whose sums are those of `rotate_sums`.
        factor: of the scales.
        out: gets 8-bit integers, [R or more, F or more].
    """
    integers, scales = tensors.quantise(tensors.rotate_sums(tensors.gated(*product.value().chunk(2, 1)), block), TOP)
    out[: integers.shape[0], : integers.shape[1]] = integers
    return scales * factor


def cumulate(product: Product) -> Tensor:
    """Return cumulative frequencies of the logits of a product with its bias, int64 [R, leaves]."""
    return tensors.cumulate(product.biased())
