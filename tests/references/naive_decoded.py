"""The blocks that an image was decoded from, written from docs/format.md, section 22.9, one number at a time."""

from types import SimpleNamespace

from tests.references.naive_jpeg import _Coefficients

HALF = (
    (8192, 8192, 8192, 8192),
    (11363, 9633, 6437, 2260),
    (10703, 4433, -4433, -10703),
    (9633, -2259, -11362, -6436),
    (8192, -8192, -8192, 8192),
    (6437, -11362, 2261, 9633),
    (4433, -10704, 10704, -4433),
    (2260, -6436, 9633, -11363),
)
M = [[*row, *((-1) ** k * value for value in reversed(row))] for k, row in enumerate(HALF)]


def cut(v: int) -> int:
    return min(max(v, 0), 255)


class Blocks:
    """The planes of blocks of an image."""

    def __init__(self, flags: list[tuple[int, int]], height: int, width: int):
        self.height, self.width, self.planes, first = height, width, [], 0
        for flag, place in flags:
            down, across = 1 + (flag >> 3 & 1), 1 + (flag >> 4 & 1)
            top, left = flag >> 1 & 1, flag >> 2 & 1
            row, column = divmod(place, 8)
            h, w = (height + top + down - 1) // down, (width + left + across - 1) // across
            high, wide = (h + row + 7) // 8, (w + column + 7) // 8
            how = flag & 1, down, across, top, left, row, column
            self.planes.append(SimpleNamespace(how=how, h=h, w=w, high=high, wide=wide, first=first, steps=[]))
            first += high * wide
        self.blocks, self.components = first, self.planes

    def decode(self, steps: bytes, coder) -> None:
        for number, plane in enumerate(self.planes):
            plane.steps = [max(step, 1) for step in steps[64 * number :][:64]]
        coefficients = _Coefficients(self, b"")
        coefficients.bits.coder = coder
        self.q = coefficients.decode()

    def pixels(self) -> list[list[list[int]]]:
        """Return the pixels of each plane, by rows."""
        return [self._enlarged(plane, self._small(plane)) for plane in self.planes]

    def _small(self, plane) -> list[list[int]]:
        *_, row, column = plane.how
        made = [self._block(self.q[plane.first + i], plane.steps) for i in range(plane.high * plane.wide)]
        return [
            [
                made[(y + row) // 8 * plane.wide + (x + column) // 8][(y + row) % 8][(x + column) % 8]
                for x in range(plane.w)
            ]
            for y in range(plane.h)
        ]

    def _block(self, q: list[int], step: list[int]) -> list[list[int]]:
        n = range(8)
        t = [[(1024 + sum(q[8 * v + u] * step[8 * v + u] * M[v][y] for v in n)) >> 11 for u in n] for y in n]
        return [[cut(128 + ((131072 + sum(t[y][u] * M[u][x] for u in n)) >> 18)) for x in n] for y in n]

    def _enlarged(self, plane, small: list[list[int]]) -> list[list[int]]:
        smooth, down, across, top, left, _, _ = plane.how

        def a(r: int, c: int) -> int:
            return small[min(max(r, 0), plane.h - 1)][min(max(c, 0), plane.w - 1)]

        def pixel(y: int, x: int) -> int:
            i, j = y // down, x // across
            other, beside = (i + 1 if y % 2 else i - 1), (j + 1 if x % 2 else j - 1)
            if not smooth:
                return a(i, j)
            if down == 1:
                return (3 * a(i, j) + a(i, beside) + 1 + x % 2) >> 2
            if across == 1:
                return (3 * a(i, j) + a(other, j) + 1 + y % 2) >> 2
            s = [3 * a(i, c) + a(other, c) for c in (j, beside)]
            return (3 * s[0] + s[1] + 8 - x % 2) >> 4

        return [[pixel(y + top, x + left) for x in range(self.width)] for y in range(self.height)]
