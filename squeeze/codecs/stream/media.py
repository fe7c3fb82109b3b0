"""The media that have a model of their own, and the regions of data that belong to them."""

from collections.abc import Iterator

import numpy as np

from squeeze.codecs.array.formats import Array
from squeeze.codecs.content import Content, Medium, Region
from squeeze.codecs.image.medium import Image
from squeeze.codecs.jpeg.medium import Jpeg
from squeeze.codecs.sound.formats import Sound
from squeeze.codecs.stream import blocks, runs

__all__ = ["MEDIA", "of_block", "of_content", "regions"]

_SAMPLE = 1 << 16  # bytes about which media are compared
_MOSTLY = 15 / 16  # share of runs in data of no medium
MEDIA: tuple[Medium, ...] = (Image(), Jpeg(), Sound(), Array())


def of_content(content: Content) -> Medium | None:
    """Return the medium of a content, or None for one of the usual kinds."""
    return next((medium for medium in MEDIA if medium.kind == content.kind), None)


def of_block(kind: int) -> Medium | None:
    """Return the medium whose blocks have a kind, or None for another kind of blocks."""
    return next((medium for medium in MEDIA if medium.block == kind), None)


def regions(data: np.ndarray) -> Iterator[Region]:
    """Yield (start, end, content) of regions that cover uint8 `data`: media, and the usual kinds between them."""
    done, found = 0, [region for medium in MEDIA for region in medium.find(data)]
    if not found and (content := _guess(data)):
        yield 0, data.size, content
        return
    for start, end, content in sorted(found, key=lambda region: region[0]):
        if start >= done:
            yield from _usual(data, done, start)
            yield start, end, content
            done = end
    yield from _usual(data, done, data.size)


def _guess(data: np.ndarray) -> Content | None:
    """Return the content of data without headers that seems to be of a medium, or None.

    If several media take it for theirs, the one that makes a sample smallest at level 1 has it. No medium has data that
    are nearly all runs, which cost no time apart, and as much as any other bytes in a medium.
    """
    if (found := runs.find(data, 0)) and found.removed >= _MOSTLY * data.size:
        return None
    guesses = [(medium, content) for medium in MEDIA if (content := medium.guess(data))]
    if len(guesses) < 2:
        return guesses[0][1] if guesses else None
    sizes = [medium.coded_size(data, medium.sample(data.size, content, _SAMPLE), 1) for medium, content in guesses]
    return guesses[int(np.argmin(sizes))][1]


def _usual(data: np.ndarray, begin: int, end: int) -> Iterator[Region]:
    if begin < end:
        for start, stop, content in blocks.regions(data[begin:end]):
            yield begin + start, begin + stop, content
