"""Transform-coded tokens to values on the CPU, in one loop: what packing.py and a table of points define.

Stands apart from transform.py so that numba is loaded only when a CPU decodes.
"""

import numba
import numpy as np
import torch

from squeeze.quant.kv.grid import lloyd_max

__all__ = ["points_of"]


def points_of(packed: torch.Tensor, scale: torch.Tensor, widths: tuple[int, ...], group: int) -> torch.Tensor:
    """uint8 [N, bytes] and float32 [N] to float32 [N, K]: the points of the codes times the scale of their token.

    widths: bits of each group of `group` channels, descending, K = group * len(widths).
    """
    runs = sorted(set(widths), reverse=True)
    counts = np.array([group * widths.count(width) for width in runs], np.int64)
    table = np.zeros((len(runs), 1 << max(runs)), np.float32)
    for row, width in enumerate(runs):
        table[row, : 1 << width] = lloyd_max(width).numpy()
    out = torch.empty((packed.shape[0], group * len(widths)))
    _fill(packed.contiguous().numpy(), scale.contiguous().numpy(), np.array(runs), counts, table, out.numpy())
    return out


@numba.njit(nogil=True, cache=True)
def _fill(packed, scale, runs, counts, table, out):
    codes = np.empty(out.shape[1], np.int32)
    for n in range(packed.shape[0]):
        at, channel = 0, 0
        for row in range(runs.shape[0]):
            width, count = runs[row], counts[row]
            above = width
            codes[channel : channel + count] = 0
            for plane in (4, 2, 1):
                if width & plane:
                    above -= plane
                    size, mask = count * plane // 8, (1 << plane) - 1
                    for part in range(8 // plane):
                        shift, first = part * plane, channel + part * size
                        for j in range(size):
                            codes[first + j] |= ((packed[n, at + j] >> shift) & mask) << above
                    at += size
            for c in range(channel, channel + count):
                out[n, c] = table[row, codes[c]] * scale[n]
            channel += count
