"""The exact arithmetic in torch, on any device: the same integers as int8.py and exact.py give.

`torch._int_mm` adds in 32-bit integers, but it silently saturates on processors without VNNI, and not every device has
it. So `products_of` tests a device and falls back to float32 if the results are wrong. In float32, sums of integers
below 2^24 are exact in any order. That holds with fused operations, and if torch may round inputs to bfloat16 or TF32:
both hold integers up to 256.
"""

from abc import ABC, abstractmethod
from functools import cache

import numpy as np
import torch
from torch import Tensor

from squeeze.errors import DeviceError
from squeeze.numerics.trie import FREQUENCY_BITS

__all__ = ["Products", "products_of", "split_product"]

TOP = 127  # the largest magnitude of activations and weights
_CHUNK = 1024  # inputs of a float32 product: 1024 * 128 * 127 < 2^24
_STEP = 32  # CUDA wants inputs and outputs in eights and more than 16 rows, and is sure of such as these


class Products(ABC):
    """A method of multiplying integer matrices exactly."""

    @abstractmethod
    def prepared(self, matrix: np.ndarray, device: str) -> Tensor:
        """Return int8 [N, K] in the form that `sums` takes, on a device."""

    @abstractmethod
    def room(self, rows: int, inputs: int, device: str | torch.device) -> Tensor:
        """Return memory for [rows, inputs] integers within TOP in the form that `sums` takes. It may be larger; padding
        is ignored.
        """

    @abstractmethod
    def sums(self, a: Tensor, weights: Tensor) -> Tensor:
        """Multiply a filled `room` by a prepared matrix.

        Returns:
            int32 [rows or more, N or more], sums of products below 2^31.
        """

    def __call__(self, a: Tensor, weights: Tensor, outputs: int) -> Tensor:
        """Multiply float32 a [R, K] of integers within TOP by prepared weights, and return float32 [R, outputs] rounded
        once.
        """
        rows, inputs = a.shape
        room = self.room(rows, inputs, a.device)
        room[:rows, :inputs] = a
        return self.sums(room, weights)[:rows, :outputs].to(torch.float32)


class Int8Products(Products):
    """Products by `torch._int_mm`, int8 to int32. Padded inputs meet weights of 0."""

    def prepared(self, matrix: np.ndarray, device: str) -> Tensor:
        return torch.tensor(np.pad(matrix, [(0, -size % _STEP) for size in matrix.shape]), device=device)

    def room(self, rows: int, inputs: int, device: str | torch.device) -> Tensor:
        return torch.empty((rows + -rows % _STEP, inputs + -inputs % _STEP), dtype=torch.int8, device=device)

    def sums(self, a: Tensor, weights: Tensor) -> Tensor:
        return torch._int_mm(a, weights.t())


class FloatProducts(Products):
    """Products in float32, split along the inputs so that partial sums stay below 2^24 and are added as int32."""

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
    """Return the first method that is exact on a device. Raise DeviceError if neither is."""
    for way in (Int8Products(), FloatProducts()):
        if _is_exact(way, device):
            return way
    raise DeviceError(f"{device} does not multiply integers exactly: use `device='cpu'`")


def _is_exact(way: Products, device: str) -> bool:
    """Return whether a method is exact for random numbers and for the largest sums of either sign."""
    random = np.random.default_rng(1)
    for inputs in (64, 4097):
        a, b = (random.integers(-TOP, TOP + 1, (rows, inputs), np.int8) for rows in (40, 24))
        a[:2], b[0], b[1] = TOP, TOP, -TOP
        wanted = (a.astype(np.int64) @ b.astype(np.int64).T).astype(np.float32)
        try:
            found = way(torch.tensor(a.astype(np.float32), device=device), way.prepared(b, device), len(b))
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:  # the device lacks the operation
            return False
        if not np.array_equal(found.cpu().numpy(), wanted):
            return False
    return True


def split_product(a: Tensor, b: Tensor) -> Tensor:
    """Multiply 16-bit by 8-bit integers exactly in float32 and float64.

    a is split as 256 h + l, both at most 128 in magnitude. So float32 is exact for 1024 inputs, and float64 for the
    rest.

    Args:
        a: float32 [B, M, K], integers within int8.TOP_16.
        b: float32 [B, K, N], integers within TOP.

    Returns:
        float32 [B, M, N], each sum rounded once.
    """
    high = torch.floor((a + 128.0) * (1.0 / 256.0))  # a power of two: exact
    parts = torch.cat([high, a - 256.0 * high], 1)
    chunks = zip(parts.split(_CHUNK, 2), b.split(_CHUNK, 1), strict=True)
    products = [torch.bmm(*chunk).to(torch.float64) for chunk in chunks]
    first, second = sum(products[1:], products[0]).chunk(2, 1)
    return (first * 256.0 + second).to(torch.float32)


_LEAST = float(np.float32(1e-20))
_LOWEST = -87.0
_LOG2_E = float(np.float32(1.4426950408889634))
_POLYNOMIAL = tuple(
    float(np.float32(c))
    for c in (1.5403530e-4, 1.3333558e-3, 9.6181291e-3, 5.5504109e-2, 2.4022651e-1, 6.9314718e-1, 1.0)
)
_NORM_UNIT = 1 << 21  # bits of the integers whose squares a norm sums


def quotient(a: Tensor | float, b: Tensor | float) -> Tensor:
    """Return a / b elementwise. One of them may be a number that the tensor's dtype holds."""
    if not isinstance(a, Tensor):
        assert isinstance(b, Tensor)
        return _number(a, b.dtype, b.device) / b
    return a / (b if isinstance(b, Tensor) else _number(b, a.dtype, a.device))


@cache
def _number(value: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.tensor(value, dtype=dtype, device=device)


def _largest(x: Tensor) -> Tensor:
    return x.abs().amax(-1, keepdim=True).clamp(min=_LEAST)


def quantise(x: Tensor, top: int | Tensor) -> tuple[Tensor, Tensor]:
    """Quantise rows x [..., n] to integers of magnitude at most `top`, a number or float32 [..., 1].

    Returns:
        The integers as float32 [..., n], and the float32 scales [...].
    """
    largest = _largest(x)
    return torch.round(x * quotient(top, largest)), quotient(largest, top)[..., 0]


def normalise(x: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """Return x / sqrt(mean(x^2) + epsilon) as 8-bit integers and scales, as `quantise` does."""
    integers, scale = quantise(x, 127)
    return integers, scale * rms_inverse(x, epsilon)


def rms_inverse(x: Tensor, epsilon: float) -> Tensor:
    """Return 1 / sqrt(mean(x^2) + epsilon), float32 [...], of rows x [..., n]. The mean is one of squares of 21-bit
    integers.
    """
    largest = _largest(x)
    integers = torch.round(x * quotient(_NORM_UNIT, largest)).to(torch.int64)
    total = (integers * integers).sum(-1).to(torch.float64)  # rounded once, as the compiled engine does
    unit = largest[..., 0].to(torch.float64) * (1.0 / _NORM_UNIT)  # a power of two: exact
    mean = quotient(total * (unit * unit), x.shape[-1])
    return quotient(1.0, square_root(mean + epsilon)).to(torch.float32)


def square_root(x: Tensor) -> Tensor:
    """Return the correctly rounded square root of float64. On CPUs torch's own is now and then off by one ulp."""
    return torch.from_numpy(np.sqrt(x.numpy())) if x.device.type == "cpu" else torch.sqrt(x)


def exp_negative(x: Tensor) -> Tensor:
    """Return e^x of float32 x <= 0: a power of two times a polynomial on [-1/2, 1/2]. Below -87 it is e^-87."""
    t = x.clamp(min=_LOWEST) * _LOG2_E
    k = torch.round(t)
    r = t - k
    p = torch.full_like(r, _POLYNOMIAL[0])
    for coefficient in _POLYNOMIAL[1:]:
        p = p * r + coefficient
    return p * ((k.to(torch.int32) + 127) << 23).view(torch.float32)  # k is at least -126: no subnormal


def gated(gate: Tensor, up: Tensor) -> Tensor:
    """Return gate * sigmoid(gate) * up, float32."""
    e = exp_negative(-gate.abs())
    return gate * quotient(torch.where(gate >= 0, 1.0, e), 1.0 + e) * up


def rotate_sums(x: Tensor, block: int) -> Tensor:
    """Rotate float32 [R, n] by blocks without the factor: sums and differences of pairs, distance 1 first."""
    half, rows = 1, x.shape[0]
    while half < block:
        pairs = x.view(rows, -1, 2, half)
        a, b = pairs[:, :, 0], pairs[:, :, 1]
        x, half = torch.stack([a + b, a - b], 2), 2 * half
    return x.reshape(rows, -1)


def angles(table: Tensor, factor: float, positions: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Return the float32 cosines and sines [..., n] of rotary embeddings.

    Args:
        table: float64 [2, bits, n], cosines and sines of the powers of two in a position, lowest first, per frequency.
        factor: The factor of both.
        positions: int64 [...].
        most: The largest position.
    """
    cosine = torch.full((*positions.shape, table.shape[2]), factor, dtype=torch.float64, device=positions.device)
    sine = torch.zeros_like(cosine)
    for bit in range(most.bit_length()):
        c, s = table[:, bit]
        has = ((positions >> bit) & 1).bool()[..., None]
        cosine, sine = (
            torch.where(has, cosine * c - sine * s, cosine),
            torch.where(has, cosine * s + sine * c, sine),
        )
    return cosine.to(torch.float32), sine.to(torch.float32)


def cumulate(logits: Tensor) -> Tensor:
    """Return the cumulative frequencies int64 [R, leaves] of logits float32 [R, leaves].

    Every frequency is at least 1.
    """
    shares = exp_negative(logits - logits.amax(-1, keepdim=True)) * float(1 << FREQUENCY_BITS)
    return (shares.to(torch.int64) + 1).cumsum(-1)


@cache
def check(device: str) -> None:
    """Raise DeviceError if a device's elementwise operations are not those of IEEE 754."""
    random = np.random.default_rng(1)
    words = random.integers(0, 1 << 32, (3, 1 << 16), np.uint32).view(np.float32)
    a, b, c = np.where(np.isfinite(words), words, np.float32(0.5))
    a[:64], b[:64], c[:64] = 2.0**-140, 0.75, 1.0  # subnormal numbers
    near = random.normal(size=(3, a.size)).astype(np.float32)  # products and sums of like size, where fusing shows
    wide, whole = np.abs(a.astype(np.float64)), random.integers(-(1 << 31), 1 << 31, a.size)
    with np.errstate(all="ignore"):
        wanted = (
            *(a * b, a + b, a - b, a / b, np.sqrt(wide), wide / np.float64(576), near[0] * near[1] + near[2]),
            *(a.astype(np.float64).astype(np.float32), whole.astype(np.int32).astype(np.float32)),
            *((whole << 30).astype(np.float64), np.rint(near[0] * np.float32(3)), np.float32(127) / near[1]),
        )
    try:
        x, y, n0, n1, n2, w, i = (torch.tensor(v, device=device) for v in (a, b, *near, wide, whole))
        found = (
            *(x * y, x + y, x - y, quotient(x, y), square_root(w), quotient(w, 576), n0 * n1 + n2),
            *(x.to(torch.float64).to(torch.float32), i.to(torch.int32).to(torch.float32)),
            *((i << 30).to(torch.float64), torch.round(n0 * 3.0), quotient(127.0, n1)),
        )
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        raise DeviceError(f"{device} cannot run the language model: use `device='cpu'` ({error})") from None
    for expected, computed in zip(wanted, found, strict=True):
        if not np.array_equal(expected, computed.cpu().numpy(), equal_nan=True):
            raise DeviceError(f"{device} does not compute as IEEE 754 says: use `device='cpu'`")
