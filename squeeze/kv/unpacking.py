"""Transform-coded tokens to their channels on the CPU, in one loop: what packing.py and a table of points define.

Channels come first here, so that the loop runs along tokens with everything about a channel at hand.
"""

from functools import cache

import numpy as np
import torch

from squeeze.kv.lloyd_max import CURVED, curve, lloyd_max
from squeeze.kv.packing import bit_planes
from squeeze.numerics.jit import lossy_kernel

__all__ = ["unpacked_channels"]

_WORD = 4  # bytes


def unpacked_channels(
    packed: torch.Tensor, scale: torch.Tensor, widths: tuple[int, ...], group: int, exact: bool = True
) -> torch.Tensor:
    """uint8 [N, bytes] and float32 [N] to float32 [K, N]: the points of the codes times the scale of their token.

    widths: bits of each group of `group` channels, descending, K = group * len(widths). exact: the points, and not
    their curves, which are faster.
    """
    out = torch.empty((group * len(widths), packed.shape[0]))
    if packed.shape[1] % _WORD:
        packed = torch.nn.functional.pad(packed, (0, -packed.shape[1] % _WORD))
    words = packed.contiguous().numpy().view(np.uint32)
    columns = np.empty(words.shape[::-1], np.uint32)
    _transpose(words, columns)
    _fill(columns, scale.contiguous().numpy(), *_plan(widths, group), 0 if exact else CURVED, out.numpy())
    return out


@cache
def _plan(widths: tuple[int, ...], group: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For each channel, int64 [K, 8]: word, shift and mask of the high and of the low plane, bits of the low one (0
    where there is none) and of both; its points, float32 [K, 64]; and their curve, float32 [K, 8].
    """
    plan, points, curves, byte = [], [], [], 0
    for width in sorted(set(widths), reverse=True):
        count, (high, low) = group * widths.count(width), (*bit_planes(width), 0)[:2]
        table = torch.nn.functional.pad(lloyd_max(width), (0, 64 - (1 << width))).numpy()
        high_bytes, low_bytes = count * high // 8, count * low // 8
        for channel in range(count):
            first = [*_place(byte + channel % high_bytes, channel // high_bytes * high), (1 << high) - 1]
            second = [0, 0, 0]
            if low:
                place = _place(byte + high_bytes + channel % low_bytes, channel // low_bytes * low)
                second = [*place, (1 << low) - 1]
            plan.append([*first, *second, low, width])
            points.append(table)
            curves.append(curve(min(width, CURVED)).numpy())
        byte += high_bytes + low_bytes
    shaped = np.array(plan, np.int64).reshape(-1, 8), np.array(points, np.float32).reshape(-1, 64)
    return *shaped, np.array(curves, np.float32).reshape(-1, 8)


def _place(byte: int, shift: int) -> tuple[int, int]:
    """The word that a byte of a token is in, and where bits that stand `shift` above the byte's lowest are in it."""
    return byte // _WORD, byte % _WORD * 8 + shift


@lossy_kernel(fastmath=False)
def _transpose(rows, columns):
    """Of words: bytes take eight times as long, as much as all the rest."""
    for n in range(rows.shape[0]):
        for i in range(rows.shape[1]):
            columns[i, n] = rows[n, i]


@lossy_kernel(fastmath=False)
def _pointed(highs, lows, place, points, scale, values):
    high_shift, high_mask, low_shift, low_mask, above = place
    for n in range(values.shape[0]):
        code = np.uint32(np.uint32(np.uint32(highs[n]) >> high_shift) & high_mask) << above
        code |= np.uint32(np.uint32(lows[n]) >> low_shift) & low_mask
        values[n] = points[code] * scale[n]


@lossy_kernel(fastmath={"contract"})
def _bent(highs, lows, place, step, terms, scale, values):
    """As _pointed, by the points' curve; step: 2 / (number of points - 1)."""
    high_shift, high_mask, low_shift, low_mask, above = place
    lift = np.float32(np.int32(1) << np.int32(above))
    a, b, c, d, e, f, g, h = terms[0], terms[1], terms[2], terms[3], terms[4], terms[5], terms[6], terms[7]
    for n in range(values.shape[0]):
        high = np.int32(np.uint32(np.uint32(highs[n]) >> high_shift) & high_mask)
        low = np.int32(np.uint32(np.uint32(lows[n]) >> low_shift) & low_mask)
        x = (np.float32(high) * lift + np.float32(low)) * step - np.float32(1)
        y = x * x
        values[n] = x * (a + y * (b + y * (c + y * (d + y * (e + y * (f + y * (g + y * h))))))) * scale[n]


@lossy_kernel(fastmath=False)
def _fill(packed, scale, plan, points, curves, curved, out):
    """curved: most bits of channels whose points are taken from their curves."""
    for channel in range(out.shape[0]):
        high, high_shift, high_mask, low, low_shift, low_mask, above, bits = plan[channel]
        place = np.uint32(high_shift), np.uint32(high_mask), np.uint32(low_shift), np.uint32(low_mask), np.uint32(above)
        if bits > curved:
            _pointed(packed[high], packed[low], place, points[channel], scale, out[channel])
        else:
            step = np.float32(2) / np.float32((1 << bits) - 1)
            _bent(packed[high], packed[low], place, step, curves[channel], scale, out[channel])
