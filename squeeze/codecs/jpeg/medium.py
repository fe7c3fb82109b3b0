"""JPEG images as a medium: where they are in data, and whether their model is worth its time."""

from types import ModuleType

import numpy as np

from squeeze.codecs.content import Content, Medium, Progress, Region
from squeeze.codecs.jpeg import frame

__all__ = ["Jpeg"]

_SMALL = 1 << 16  # bytes of an image that is coded as a whole before it is compared


class Jpeg(Medium):
    """JPEG images of 8-bit samples in Huffman codes, sequential or progressive."""

    block, kind = 7, "jpeg"

    def find(self, data: np.ndarray) -> list[Region]:
        return [(start, end, Content(self.kind)) for start, end in frame.find_images(data.tobytes())]

    def sample(self, size: int, content: Content, most: int) -> Region:
        if size <= _SMALL:
            return 0, size, content
        start = (size - most) // 2
        return start, start + most, content

    def coded_size(self, data: np.ndarray, sample: Region, level: int) -> int:
        """Estimate the bytes of a part, which cannot be coded alone: images become smaller by a tenth or more."""
        return 9 * (sample[1] - sample[0]) // 10

    def encode(self, data: np.ndarray, content: Content, level: int, progress: Progress = None) -> bytes | None:
        payload: bytes | None = _coder().encode(data.tobytes(), progress)
        return payload

    def decode(self, payload: bytes, length: int, progress: Progress = None) -> np.ndarray:
        data: np.ndarray = _coder().decode(payload, length, progress)
        return data

    def memory(self, length: int) -> int:
        return int(_coder().memory(length))


def _coder() -> ModuleType:
    """Import the coder, whose compiled code takes a moment to load that other files do not need."""
    from squeeze.codecs.jpeg import coder

    return coder
