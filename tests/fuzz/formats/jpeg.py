"""A .sqz file with JPEG images: their headers, what ends their scans, and their coefficients."""

from pathlib import Path

from tests.fuzz.formats.sqz import Sqz
from tests.makers import jpegs


class Jpeg(Sqz):
    """Files of an image alone, and of several with other bytes between them."""

    def __init__(self, name: str, folder: Path) -> None:
        super().__init__(name, folder, 1)

    def _inputs(self) -> list[tuple[bytes, int]]:
        images = [jpegs.by_hand(48, 32, seed) for seed in range(3)]
        joined = b"between".join(images)
        return [(images[0], 1 << 20), (joined, 1 << 20), (joined, 2_000)]


FORMAT = Jpeg
