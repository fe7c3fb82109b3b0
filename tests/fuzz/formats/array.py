"""A .sqz file with arrays of numbers, by both of their models."""

from tests.fuzz.formats.sqz import Sqz
from tests.makers import arrays


class Array(Sqz):
    """Files of one array, and of several with other bytes between them."""

    def _inputs(self) -> list[tuple[bytes, int]]:
        first = arrays.npy("<f4", "300, 3", arrays.points(300))
        joined = first + b"between" * 20 + arrays.npy("<i8", "400,", arrays.times(400))
        lines = arrays.npy(">i2", "25, 70", arrays.heights(25, 70))
        return [(first, 1 << 20), (joined, 1 << 20), (joined, 2_000), (lines, 1 << 20)]


FORMAT = Array
