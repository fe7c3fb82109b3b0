"""Transform-coded tokens to their channels on the CPU, in one loop: what packing.py and a table of points define.

Channels come first here, so that the loop runs along tokens with everything about a channel at hand.
"""

from functools import cache

import numpy as np
import torch

from squeeze.kv.lloyd_max import lloyd_max
from squeeze.kv.packing import bit_planes
from squeeze.numerics.jit import lossy_kernel

__all__ = ["unpacked_channels"]


def unpacked_channels(packed: torch.Tensor, scale: torch.Tensor, widths: tuple[int, ...], group: int) -> torch.Tensor:
    """uint8 [N, bytes] and float32 [N] to float32 [K, N]: the points of the codes times the scale of their token.

    widths: bits of each group of `group` channels, descending, K = group * len(widths).
    """
    out = torch.empty((group * len(widths), packed.shape[0]))
    _fill(packed.T.contiguous().numpy(), scale.contiguous().numpy(), *_plan(widths, group), out.numpy())
    return out


@cache
def _plan(widths: tuple[int, ...], group: int) -> tuple[np.ndarray, np.ndarray]:
    """For each channel, int64 [K, 7]: byte, shift and mask of the high and of the low plane, bits of the low one (0
    where there is none); and its points, float32 [K, 64].
    """
    plan, points, byte = [], [], 0
    for width in sorted(set(widths), reverse=True):
        count, (high, low) = group * widths.count(width), (*bit_planes(width), 0)[:2]
        table = torch.nn.functional.pad(lloyd_max(width), (0, 64 - (1 << width))).numpy()
        high_bytes, low_bytes = count * high // 8, count * low // 8
        for channel in range(count):
            first = [byte + channel % high_bytes, channel // high_bytes * high, (1 << high) - 1]
            second = [0, 0, 0]
            if low:
                second = [byte + high_bytes + channel % low_bytes, channel // low_bytes * low, (1 << low) - 1]
            plan.append([*first, *second, low])
            points.append(table)
        byte += high_bytes + low_bytes
    return np.array(plan, np.int64).reshape(-1, 7), np.array(points, np.float32).reshape(-1, 64)


@lossy_kernel(fastmath=False)
def _fill(packed, scale, plan, points, out):
    for c in range(out.shape[0]):
        high, high_shift, high_mask, low, low_shift, low_mask, above = plan[c]
        for n in range(out.shape[1]):
            code = (np.uint32(packed[high, n]) >> np.uint32(high_shift) & np.uint32(high_mask)) << np.uint32(above)
            code |= np.uint32(packed[low, n]) >> np.uint32(low_shift) & np.uint32(low_mask)
            out[c, n] = points[c, code] * scale[n]
