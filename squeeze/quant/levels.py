"""What weights can become, as the loops of columns.py read it: arrays in place of a grid and its parameters."""

from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np
import torch

__all__ = ["Levels"]

_TINY = 2.0**-126


class Levels(NamedTuple):
    """With t = (w - offset) * inverse a weight w becomes the level nearest to t, times the scale, plus the offset.
    Levels that are successive integers have no borders: round(t) + origin is the code, code - origin the level."""

    scale: np.ndarray  # float32 [..., O, G], as all that is a group's
    inverse: np.ndarray
    offset: np.ndarray
    origin: np.ndarray
    levels: np.ndarray  # float32 [n], rising
    codes: np.ndarray  # uint8 [n]: those of the levels
    borders: np.ndarray  # float32 [n - 1]: midway between two levels; [0] where levels are successive integers

    @classmethod
    def integers(
        cls,
        count: int,
        scale: torch.Tensor,
        origin: torch.Tensor | float,
        offset: torch.Tensor | None = None,
        inverse: torch.Tensor | None = None,
    ) -> Self:
        """So many successive integers; the code 0 stands for -origin."""
        whole = torch.arange(count)
        return cls._of((whole, whole, torch.empty(0)), scale, origin, offset, inverse)

    @classmethod
    def table(
        cls,
        table: Sequence[torch.Tensor],
        scale: torch.Tensor,
        offset: torch.Tensor | None = None,
        inverse: torch.Tensor | None = None,
    ) -> Self:
        """table: levels, their codes, and borders."""
        return cls._of(table, scale, 0, offset, inverse)

    @classmethod
    def _of(
        cls,
        table: Sequence[torch.Tensor],
        scale: torch.Tensor,
        origin: torch.Tensor | float,
        offset: torch.Tensor | None,
        inverse: torch.Tensor | None,
    ) -> Self:
        def each(value: torch.Tensor | float) -> np.ndarray:
            return torch.as_tensor(value, dtype=torch.float32).expand_as(scale).detach().contiguous().numpy()

        inverse = 1 / scale.clamp(min=_TINY) if inverse is None else inverse
        levels, codes, borders = table
        arrays = levels.float().numpy(), codes.to(torch.uint8).numpy(), borders.numpy()
        return cls(each(scale), each(inverse), each(0 if offset is None else offset), each(origin), *arrays)
