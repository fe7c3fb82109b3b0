"""Numbers of eight bits and less, as other tools store them, and what they stand for."""

import torch

from squeeze.errors import FormatError, printable

__all__ = ["FP4", "fp4", "powers", "scaled"]

FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # e2m1 without its sign; OCP microscaling formats, 2023


def fp4(packed: torch.Tensor) -> torch.Tensor:
    """uint8 [..., N], the first of two numbers in the low bits -> float32 [..., 2 N]."""
    values = torch.tensor([*FP4, *(-value for value in FP4)], device=packed.device)
    codes = torch.stack([packed & 15, packed >> 4], -1).flatten(-2)
    return values[codes.int()]


def powers(scales: torch.Tensor) -> torch.Tensor:
    """float32 of scales of any type: bytes are exponents of 2, less 127 (E8M0)."""
    return torch.exp2(scales.float() - 127) if scales.dtype == torch.uint8 else scales.float()


def scaled(name: str, values: torch.Tensor, scales: torch.Tensor, block: tuple[int, int] | None = None) -> torch.Tensor:
    """values float32 [..., O, I], each times its scale; in place. scales: one; with `block`, a grid [..., A, B] of
    blocks of so many rows and columns, of which the last may be shorter; else [..., O] or [..., O, G], one for each
    row, or for each of G groups of equal size in it. Raises FormatError where they do not fit."""
    if scales.numel() == 1:
        return values.mul_(scales.float().reshape(()))
    grid = scales if scales.ndim == values.ndim else scales[..., None]
    rows, columns = values.shape[-2:]
    high, wide = block or (1, _size(columns, grid.shape[-1]))
    if not high or not wide or grid.shape != (*values.shape[:-2], -(-rows // high), -(-columns // wide)):
        said = f"blocks of {high} x {wide}" if block else "rows or groups of equal size"
        raise FormatError(
            f"tensor '{printable(name)}': a grid of {list(scales.shape)} scales does not make {said} of "
            f"{list(values.shape)} weights"
        )
    expanded = grid.float().repeat_interleave(wide, -1)[..., :columns]
    if high == 1:
        return values.mul_(expanded)
    for place in range(grid.shape[-2]):
        values[..., place * high : (place + 1) * high, :].mul_(expanded[..., place : place + 1, :])
    return values


def _size(length: int, groups: int) -> int:
    """Of groups that divide a length; 0 where they do not."""
    return length // groups if groups and length % groups == 0 else 0
