"""Files of Python's byte code as wrappers, whose content is their streams, one after the other."""

import io
import re
from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from squeeze.codecs.content import Content
from squeeze.codecs.parse.protocol import Found, Wrapper
from squeeze.codecs.parse.pyc.places import ROW
from squeeze.codecs.parse.pyc.streams import Streams, join, split
from squeeze.codecs.parse.room import Room
from squeeze.errors import DamagedError, SqueezeError
from squeeze.system.binary import read_varint, varint

__all__ = ["Pyc"]

_NAMES = ("objects", "lines and exceptions", "places in the source", "instructions", "texts")
_HIGH = b"\x0d\x0e"  # high bytes of the numbers that files begin with
_PROOF = 16  # times as long as reading a file: to take it apart and to close it


class Pyc(Wrapper):
    """A file of byte code, of Python 3.7 and later."""

    kind = 28
    name = "Python byte code"
    mark = re.compile(rb"\r\n[\0-\x03]\0\0\0.{8}[c\xe3]", re.DOTALL)  # after the number, whose search takes long
    is_certain = True
    least = 1 << 9
    least_copied = 0.1
    keeps_header = True

    def find(self, data: bytes) -> Iterator[int]:
        for match in self.mark.finditer(data):
            if match.start() > 1 and data[match.start() - 1] in _HIGH:
                yield match.start() - 2

    def open(self, data: bytes, start: int, room: Room) -> Found | None:
        try:
            streams, end = split(data, start, room)
        except SqueezeError:
            return None
        extra = _extra(streams)
        content = np.frombuffer(b"".join(streams[:5]), np.uint8)
        texts = content.size - len(streams.texts)
        code = texts - len(streams.code)
        rows = (code - len(streams.places), code, Content("table", ROW)), (code, texts, Content("table", 2))
        regions = *rows, (texts, content.size, Content("text"))
        found = Found(self.kind, start, end - start, content, None, extra, None, regions)
        return self.proven(found, data, room, _PROOF * found.size)

    def close(self, content: np.ndarray, stream: np.ndarray, extra: bytes) -> np.ndarray:
        places, caches = _read(extra, content.size)
        objects, lines, rows, code, texts = (content[start:end].tobytes() for start, end in pairwise(places))
        return np.frombuffer(join(Streams(objects, lines, rows, code, texts, caches)), np.uint8)

    def segments(self, content: np.ndarray, extra: bytes) -> list[tuple[int, int, str]]:
        places, _ = _read(extra, content.size)
        return [(*span, name) for span, name in zip(pairwise(places), _NAMES, strict=True)]


def _extra(streams: Streams) -> bytes:
    """Return the sizes of all streams but the last, and pairs of an opcode and the words behind it."""
    sizes = b"".join(varint(len(stream)) for stream in streams[:4])
    return sizes + bytes(number for pair in sorted(streams.caches.items()) for number in pair)


def _read(extra: bytes, size: int) -> tuple[list[int], dict[int, int]]:
    """Return where the streams begin and the last one ends in a content of `size` bytes, and the caches."""
    file, places = io.BytesIO(extra), [0]
    for _ in _NAMES[1:]:
        places.append(places[-1] + read_varint(file)[0])
    pairs = file.read()
    if places[-1] > size or len(pairs) % 2:
        raise DamagedError("the sizes of streams of byte code are impossible: the file is damaged")
    return [*places, size], dict(zip(pairs[::2], pairs[1::2], strict=True))
