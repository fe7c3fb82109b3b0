"""The definition: gates, rotated and rounded to 8-bit integers, in plain torch."""

from torch import Tensor

from squeeze.lm.fused.product import Product
from squeeze.numerics.int8_tensors import TOP
from squeeze.numerics.tensors import gated, quantise, rotate_sums

__all__ = ["gate"]


def gate(product: Product, block: int, factor: float, out: Tensor) -> Tensor:
    """The scales float32 [R] of gate * sigmoid(gate) * up, rotated by blocks: sums of `rotate_sums`, whose 8-bit
    integers go to `out` [R or more, F or more], times `factor`.

    product: [R, 2 F], the gate and then up, without a bias.
    """
    integers, scales = quantise(rotate_sums(gated(*product.value().chunk(2, 1)), block), TOP)
    out[: integers.shape[0], : integers.shape[1]] = integers
    return scales * factor
