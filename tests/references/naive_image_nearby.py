"""Least squares by the pixels nearby, written from docs/format.md, section 22.8, one number at a time."""

import math
from collections import defaultdict

USED = (
    (0, 3, 6, 7, 1, 4, 8, 9, 10, 11, 2, 5, 12, 13),
    (0, 3, 6, 7, 1, 4, 9, 12, 13, 14, 15, 16, 17, 18),
    (0, 3, 6, 7, 1, 4, 12, 13, 14, 15, 16, 19, 20, 21),
)
MOST = 65536  # samples of a row with sums


class Nearby:
    """The sums of one pass: of the rows above each sample, and of what is to the left of it in each plane."""

    def __init__(self, samples: int, sample: int):
        self.samples, self.shift = samples, 2 if sample == 2 else -6
        self.above = defaultdict[int, list[int]](lambda: [0] * 119)
        self.own: dict[int, list[int]] = {}
        self._begin_row()

    def _begin_row(self) -> None:
        self.left = {plane: [0] * 119 for plane in range(self.samples)}

    def estimate(self, plane: int, c: int, x: list[int]) -> int:
        """Return sample `c` of a row less its base, in sixteenths."""
        sums = [a + b for a, b in zip(self.above[c], self.left[plane], strict=True)]
        a = [[0.0] * 14 for _ in range(14)]
        for i in range(14):
            for j in range(i + 1):
                a[i][j] = float(sums[i * (i + 1) // 2 + j]) + 1024.0 * (i == j)
        f = [float(v) for v in sums[105:]]
        for j in range(14):
            for k in range(j):
                a[j][j] -= a[j][k] * a[j][k] * a[k][k]
            a[j][j] = max(a[j][j], 1024.0)
            for i in range(j + 1, 14):
                for k in range(j):
                    a[i][j] -= a[i][k] * a[j][k] * a[k][k]
                a[i][j] /= a[j][j]
            for k in range(j):
                f[j] -= a[j][k] * f[k]
        for j in range(13, -1, -1):
            f[j] /= a[j][j]
            for k in range(j + 1, 14):
                f[j] -= a[k][j] * f[k]
        total = 0.0
        for j, k in enumerate(USED[min(plane, 2)]):
            total += f[j] * x[k]
        return math.floor(total * 16 + 0.5) if abs(total) <= 65536 else 0

    def learn(self, plane: int, c: int, inputs: list[int], t: int) -> None:
        """Add sample `c` of a row, which is `t` more than its base."""
        x = [inputs[k] for k in USED[min(plane, 2)]]
        new = [x[i] * x[j] for i in range(14) for j in range(i + 1)] + [x[i] * t for i in range(14)]
        new = [v >> self.shift if self.shift > 0 else v << -self.shift for v in new]
        left = [v - (v >> 2) + add for v, add in zip(self.left[plane], new, strict=True)]
        self.left[plane] = self.own[c] = left

    def skip(self, plane: int, c: int) -> None:
        """Go on by sample `c`, which is in a flat part."""
        self.left[plane] = self.own[c] = [v - (v >> 2) for v in self.left[plane]]

    def end_row(self, count: int) -> None:
        """Add a row of `count` samples to the sums above each."""
        for plane in range(self.samples):
            right = [0] * 119
            for c in reversed(range(plane, min(count, MOST), self.samples)):
                own, after = (
                    self.own[c],
                    self.own.get(c + self.samples) if c + self.samples < min(count, MOST) else None,
                )
                if after:
                    right = [r + b - (a - (a >> 2)) for r, a, b in zip(right, own, after, strict=True)]
                    right = [r - (r >> 2) for r in right]
                total = [sum(v) for v in zip(self.above[c], own, right, strict=True)]
                self.above[c] = [v - (v >> 2) for v in total]
        self._begin_row()
