"""A product with weights that is not made floats yet: what follows it in the network does that on its way."""

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Product"]


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
