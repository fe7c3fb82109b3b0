"""JPEG images as a medium: where they are in data, and whether their model is worth its time."""

import re
from collections.abc import Iterator

import numpy as np

from squeeze.codecs.content import Content, Medium, Progress, Region
from squeeze.codecs.jpeg.frame import Segments, scans_of

__all__ = ["Jpeg", "find_images"]

_START = re.compile(rb"\xff\xd8\xff[\xc0-\xfe]")
_LEAST = 512  # bytes of an image
_SMALL = 1 << 16  # bytes of an image that is coded as a whole before it is compared


def find_images(data: bytes, begin: int = 0) -> Iterator[tuple[int, int]]:
    """Yield the start and the end of each image in data from `begin` on; those in other images are left out."""
    done, segments = begin, None
    for match in _START.finditer(data, begin):
        segments = segments or Segments(data)
        found = scans_of(segments, match.start()) if match.start() >= done else None
        if found and found[1] - match.start() >= _LEAST:
            done = found[1]
            yield match.start(), done


class Jpeg(Medium):
    """JPEG images of 8-bit samples in Huffman codes, sequential or progressive."""

    block, kind, module = 7, "jpeg", "squeeze.codecs.jpeg.coder"

    def find(self, data: np.ndarray) -> list[Region]:
        return [(start, end, Content(self.kind)) for start, end in find_images(data.tobytes())]

    def sample(self, size: int, content: Content, most: int) -> Region:
        if size <= _SMALL:
            return 0, size, content
        start = (size - most) // 2
        return start, start + most, content

    def coded_size(self, data: np.ndarray, sample: Region, level: int) -> int:
        """Estimate the least bytes of a part, which cannot be coded alone: few images become smaller by a half."""
        return (sample[1] - sample[0]) // 2

    def encode(self, data: np.ndarray, content: Content, level: int, progress: Progress = None) -> bytes | None:
        payload: bytes | None = self.coder().encode(data.tobytes(), progress)
        return payload
