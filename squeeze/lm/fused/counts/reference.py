"""The definition: logits to cumulative frequencies, in plain torch."""

from torch import Tensor

from squeeze.lm.fused.product import Product
from squeeze.numerics import tensors

__all__ = ["cumulate"]


def cumulate(product: Product) -> Tensor:
    """int64 [R, leaves]: cumulative frequencies of logits, a product with its bias."""
    return tensors.cumulate(product.biased())
