"""Exact products of int8 matrices by torch, on any device: what int8.py gives on the processor.

`torch._int_mm` sums in 32-bit integers, but on processors without VNNI it saturates in silence, and not every device
has it. So `products_of` asks a device for products that leave no doubt, and takes float32 where they come out wrong. In
float32, sums of integers below 2^24 are exact in any order, fused or not. They are so, too, where a user has told torch
to round inputs to bfloat16 or TF32: both hold integers to 256.
"""

from abc import ABC, abstractmethod
from functools import cache

import numpy as np
import torch
from torch import Tensor

from squeeze.errors import DeviceError

__all__ = ["Products", "products_of", "split_product"]

TOP = 127  # of activations and weights
_CHUNK = 1024  # inputs of a float32 product: 1024 * 128 * 127 < 2^24
_STEP = 32  # CUDA wants inputs and outputs in eights and more than 16 rows, and is sure of such as these


class Products(ABC):
    """One way to multiply."""

    @abstractmethod
    def prepared(self, matrix: np.ndarray, device: str) -> Tensor:
        """int8 [N, K] as `sums` wants it, on a device."""

    @abstractmethod
    def room(self, rows: int, inputs: int, device: str | torch.device) -> Tensor:
        """[rows or more, inputs or more] for integers within TOP, as `sums` wants them. What lies beyond counts for
        nothing."""

    @abstractmethod
    def sums(self, a: Tensor, weights: Tensor) -> Tensor:
        """int32 [rows or more, N or more]: sums of products below 2^31, of what a `room` was filled with and a prepared
        matrix."""

    def __call__(self, a: Tensor, weights: Tensor, outputs: int) -> Tensor:
        """float32 [R, outputs], each rounded once, of float32 a [R, K], integers within TOP."""
        rows, inputs = a.shape
        room = self.room(rows, inputs, a.device)
        room[:rows, :inputs] = a
        return self.sums(room, weights)[:rows, :outputs].to(torch.float32)


class Int8Products(Products):
    """`torch._int_mm`: int8 to int32. Inputs beyond those of a matrix meet weights of 0."""

    def prepared(self, matrix: np.ndarray, device: str) -> Tensor:
        return torch.tensor(np.pad(matrix, [(0, -size % _STEP) for size in matrix.shape]), device=device)

    def room(self, rows: int, inputs: int, device: str | torch.device) -> Tensor:
        return torch.empty((rows + -rows % _STEP, inputs + -inputs % _STEP), dtype=torch.int8, device=device)

    def sums(self, a: Tensor, weights: Tensor) -> Tensor:
        return torch._int_mm(a, weights.t())


class FloatProducts(Products):
    """float32, cut along the inputs so that sums stay below 2^24; the parts are added as int32."""

    def prepared(self, matrix: np.ndarray, device: str) -> Tensor:
        return torch.tensor(matrix.astype(np.float32), device=device)

    def room(self, rows: int, inputs: int, device: str | torch.device) -> Tensor:
        return torch.empty((rows, inputs), dtype=torch.float32, device=device)

    def sums(self, a: Tensor, weights: Tensor) -> Tensor:
        total = torch.zeros((a.shape[0], weights.shape[0]), dtype=torch.int32, device=a.device)
        for part, columns in zip(a.split(_CHUNK, 1), weights.split(_CHUNK, 1), strict=True):
            total += (part @ columns.t()).to(torch.int32)
        return total


@cache
def products_of(device: str) -> Products:
    """The first way that a device does right. Raises DeviceError where it does none."""
    for way in (Int8Products(), FloatProducts()):
        if _is_exact(way, device):
            return way
    raise DeviceError(f"{device} does not multiply integers exactly: use `device='cpu'`")


def _is_exact(way: Products, device: str) -> bool:
    """By random numbers, and by the largest sums of either sign, where what saturates or rounds does so."""
    random = np.random.default_rng(1)
    for inputs in (64, 4097):
        a, b = (random.integers(-TOP, TOP + 1, (rows, inputs), np.int8) for rows in (40, 24))
        a[:2], b[0], b[1] = TOP, TOP, -TOP
        wanted = (a.astype(np.int64) @ b.astype(np.int64).T).astype(np.float32)
        try:
            found = way(torch.tensor(a.astype(np.float32), device=device), way.prepared(b, device), len(b))
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:  # which this device does not have
            return False
        if not np.array_equal(found.cpu().numpy(), wanted):
            return False
    return True


def split_product(a: Tensor, b: Tensor) -> Tensor:
    """float32 [B, M, N], each a sum of products rounded once: float32 a [B, M, K], integers of 16 bits within
    int8.TOP_16, times float32 b [B, K, N] within TOP.

    a is 256 h + l, both at most 128 in magnitude, so that float32 is exact for _CHUNK inputs, and float64 for the rest.
    """
    high = torch.floor((a + 128.0) * (1.0 / 256.0))  # a power of two: exact
    parts = torch.cat([high, a - 256.0 * high], 1)
    chunks = zip(parts.split(_CHUNK, 2), b.split(_CHUNK, 1), strict=True)
    products = [torch.bmm(*chunk).to(torch.float64) for chunk in chunks]
    first, second = sum(products[1:], products[0]).chunk(2, 1)
    return (first * 256.0 + second).to(torch.float32)
