"""Class files of Java as wrappers, whose content is their streams, one after the other."""

import io
import re
from itertools import pairwise

import numpy as np

from squeeze.codecs.content import Content
from squeeze.codecs.parse.java.streams import Streams, join, split
from squeeze.codecs.parse.protocol import Found, Wrapper
from squeeze.codecs.parse.room import Room
from squeeze.errors import DamagedError, SqueezeError
from squeeze.system.binary import read_varint, varint

__all__ = ["JavaClass"]

_NAMES = ("tables", "constants", "line numbers", "instructions", "texts")
_PROOF = 16  # times as long as reading a file: to take it apart and to close it


class JavaClass(Wrapper):
    """A class file of Java 1.1 and later."""

    kind = 29
    name = "Java class"
    mark = re.compile(rb"\xca\xfe\xba\xbe..\0[\x2d-\x60]", re.DOTALL)
    is_certain = True
    least = 1 << 8
    least_copied = 0.1
    keeps_header = True

    def open(self, data: bytes, start: int, room: Room) -> Found | None:
        try:
            streams, end = split(data, start, room)
        except SqueezeError:
            return None
        extra = b"".join(varint(len(stream)) for stream in streams[:-1])
        content = np.frombuffer(b"".join(streams), np.uint8)
        texts = content.size - len(streams.texts)
        code = texts - len(streams.code)
        regions = (code - len(streams.lines), code, Content("table", 4)), (texts, content.size, Content("text"))
        found = Found(self.kind, start, end - start, content, None, extra, None, regions)
        return self.proven(found, data, room, _PROOF * found.size)

    def close(self, content: np.ndarray, stream: np.ndarray, extra: bytes) -> np.ndarray:
        parts = (content[start:end].tobytes() for start, end in pairwise(_places(extra, content.size)))
        return np.frombuffer(join(Streams(*parts)), np.uint8)

    def segments(self, content: np.ndarray, extra: bytes) -> list[tuple[int, int, str]]:
        spans = pairwise(_places(extra, content.size))
        return [(*span, name) for span, name in zip(spans, _NAMES, strict=True)]


def _places(extra: bytes, size: int) -> list[int]:
    """Return where the streams begin and the last one ends in a content of `size` bytes."""
    file, places = io.BytesIO(extra), [0]
    for _ in _NAMES[1:]:
        places.append(places[-1] + read_varint(file)[0])
    if places[-1] > size or file.read(1):
        raise DamagedError("the sizes of streams of a class file are impossible: the file is damaged")
    return [*places, size]
