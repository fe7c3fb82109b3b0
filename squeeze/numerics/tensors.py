"""The arithmetic of exact.py and rotation.py on torch's tensors: the same numbers to the bit, on any device.

Every float of a network that torch runs goes through an operation of this file, or through `+` and `*` in the order
that the compiled kernels have. Why each is exact:

* An operation of torch is a kernel of its own, which rounds each result once, as IEEE 754 says. So nothing is fused, as
  long as nothing compiles several operations to one: no torch.compile, no addcmul, lerp or add with alpha.
* Quotients are of two tensors (`quotient`): by a Python number, GPUs multiply with its reciprocal, which is rounded.
* A product with, or a sum with, a Python number is one of the float32 nearest to it; those here are float32 already.
* abs, amax, comparison, clamp, where, floor, and round, which takes halves to even, have results that need no rounding.
* Sums of more than two terms are of integers: in int64, or in float32 or float64 where no partial sum can leave the
  integers that it holds, 2^24 or 2^53. A GPU may take such a sum in any order.
* The square root is the processor's or the GPU's own instruction (`square_root`).
* An integer that becomes a float32 comes from int32, or from int64 by float64, which holds all that occur.

`check` asks a device for all this before it is trusted.
"""

from functools import cache

import numpy as np
import torch
from torch import Tensor

from squeeze.errors import DeviceError
from squeeze.numerics.trie import FREQUENCY_BITS

_LEAST = float(np.float32(1e-20))
_LOWEST = -87.0
_LOG2_E = float(np.float32(1.4426950408889634))
_POLYNOMIAL = tuple(
    float(np.float32(c))
    for c in (1.5403530e-4, 1.3333558e-3, 9.6181291e-3, 5.5504109e-2, 2.4022651e-1, 6.9314718e-1, 1.0)
)
_NORM_UNIT = 1 << 21  # of the integers whose squares a norm sums


def quotient(a: Tensor | float, b: Tensor | float) -> Tensor:
    """a / b of each element, where at least one is a tensor, and the other may be a number that its type holds."""
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
    """Integers of magnitude at most `top` (a number, or float32 [..., 1]) as float32 [..., n], and the float32 scale
    [...] of each row."""
    largest = _largest(x)
    return torch.round(x * quotient(top, largest)), quotient(largest, top)[..., 0]


def normalise(x: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """8-bit integers of x / sqrt(mean(x^2) + epsilon), as `quantise`."""
    integers, scale = quantise(x, 127)
    return integers, scale * rms_inverse(x, epsilon)


def rms_inverse(x: Tensor, epsilon: float) -> Tensor:
    """float32 [...]: 1 / sqrt(mean(x^2) + epsilon) of rows of x [..., n], the mean over integers of 21 bits."""
    largest = _largest(x)
    integers = torch.round(x * quotient(_NORM_UNIT, largest)).to(torch.int64)
    total = (integers * integers).sum(-1).to(torch.float64)  # rounded once, as the compiled engine does
    unit = largest[..., 0].to(torch.float64) * (1.0 / _NORM_UNIT)  # a power of two: exact
    mean = quotient(total * (unit * unit), x.shape[-1])
    return quotient(1.0, square_root(mean + epsilon)).to(torch.float32)


def square_root(x: Tensor) -> Tensor:
    """Of float64, rounded once. On processors torch takes a library's, which misses the nearest number now and then."""
    return torch.from_numpy(np.sqrt(x.numpy())) if x.device.type == "cpu" else torch.sqrt(x)


def exp_negative(x: Tensor) -> Tensor:
    """e^x of float32 x <= 0: 2^k times a polynomial on [-1/2, 1/2]; below -87 as at -87."""
    t = x.clamp(min=_LOWEST) * _LOG2_E
    k = torch.round(t)
    r = t - k
    p = torch.full_like(r, _POLYNOMIAL[0])
    for coefficient in _POLYNOMIAL[1:]:
        p = p * r + coefficient
    return p * ((k.to(torch.int32) + 127) << 23).view(torch.float32)  # k is at least -126: no subnormal


def gated(gate: Tensor, up: Tensor) -> Tensor:
    """gate * sigmoid(gate) * up, float32."""
    e = exp_negative(-gate.abs())
    return gate * quotient(torch.where(gate >= 0, 1.0, e), 1.0 + e) * up


def rotate_sums(x: Tensor, block: int) -> Tensor:
    """float32 [R, n] rotated by blocks but for the factor: sums and differences of two, distance 1 first."""
    half, rows = 1, x.shape[0]
    while half < block:
        pairs = x.view(rows, -1, 2, half)
        a, b = pairs[:, :, 0], pairs[:, :, 1]
        x, half = torch.stack([a + b, a - b], 2), 2 * half
    return x.reshape(rows, -1)


def angles(table: Tensor, factor: float, positions: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """float32 cosine and sine [..., n] of positions int64 [...], the largest `most`, times each frequency, from
    `table` float64 [2, bits, n]: those of the powers of two in a position, lowest first."""
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
    """Logits float32 [R, leaves] to cumulative frequencies int64 [R, leaves], every leaf's at least 1."""
    shares = exp_negative(logits - logits.amax(-1, keepdim=True)) * float(1 << FREQUENCY_BITS)
    return (shares.to(torch.int64) + 1).cumsum(-1)


@cache
def check(device: str) -> None:
    """Raises DeviceError where a device's elementwise operations are not those of IEEE 754."""
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
    for ours, theirs in zip(wanted, found, strict=True):
        if not np.array_equal(ours, theirs.cpu().numpy(), equal_nan=True):
            raise DeviceError(f"{device} does not compute as IEEE 754 says: use `device='cpu'`")
