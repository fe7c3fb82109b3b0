"""What weights can become, as the loops of columns.py read it: arrays in place of a grid and its parameters."""

from typing import NamedTuple, Self

import numpy as np
import torch

__all__ = ["Levels"]


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
        inverse: torch.Tensor,
        origin: torch.Tensor | float,
        offset: torch.Tensor | None = None,
    ) -> Self:
        """So many successive integers; the code 0 stands for -origin."""
        whole = torch.arange(count, device=scale.device)
        return cls._of(scale, inverse, offset, origin, whole, whole, torch.empty(0))

    @classmethod
    def table(
        cls,
        levels: torch.Tensor,
        codes: torch.Tensor,
        borders: torch.Tensor,
        scale: torch.Tensor,
        inverse: torch.Tensor,
        offset: torch.Tensor | None = None,
    ) -> Self:
        return cls._of(scale, inverse, offset, 0, levels, codes, borders)

    @classmethod
    def _of(
        cls,
        scale: torch.Tensor,
        inverse: torch.Tensor,
        offset: torch.Tensor | None,
        origin: torch.Tensor | float,
        levels: torch.Tensor,
        codes: torch.Tensor,
        borders: torch.Tensor,
    ) -> Self:
        def each(value: torch.Tensor | float) -> np.ndarray:
            return torch.as_tensor(value, dtype=torch.float32).expand_as(scale).contiguous().numpy()

        table = levels.float().numpy(), codes.to(torch.uint8).numpy(), borders.numpy()
        return cls(each(scale), each(inverse), each(0 if offset is None else offset), each(origin), *table)
