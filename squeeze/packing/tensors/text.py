"""Lossless coding of texts among the bytes of a checkpoint by bzip2: vocabularies of GGUF files, pickles, plain files.

Masks, indices and other tensors that repeat themselves are coded as texts are.
The text is cut into pieces of one block of bzip2 each, so that a reader decodes only what it needs, on several threads.
A piece that does not shrink is stored. docs/format.md specifies the payload.
"""

import bz2
import struct
import zlib
from collections.abc import Callable

import numpy as np

from squeeze.packing.tensors import floats
from squeeze.packing.tensors.content import Content, InSegments, bytes_of, in_parts
from squeeze.packing.tensors.float_payload import Array
from squeeze.packing.tensors.float_writer import Writer
from squeeze.packing.tensors.tables import damaged

__all__ = ["PIECE", "DecodedText", "is_text", "may_repeat", "write"]

PIECE = 300_000  # bytes: a block of bzip2 at level 3, where it takes half the time of level 9
_LEVEL = 3
_FORMAT = 1
_HEAD = struct.Struct("<II")  # format, 0
_LEAST = 1 << 10  # bytes: shorter tensors are no texts
_MOST_BITS = 6.5  # bits of a byte, without context: bytes of more are no text
_SAMPLE, _SAMPLES = 1 << 14, 3
_PROBE, _REPEATS = 1 << 9, 0.6  # bytes that zlib is tried on first, and the share that is left of those of a mask
_GAIN = 0.9  # of the size without context: more is not worth the time


def may_repeat(content: Content) -> bool:
    """Return whether zlib makes a few bytes of a tensor of numbers much shorter, as it does masks and indices.

    This takes less time than `is_text`, and is False for weights.
    """
    if content.size < _LEAST:
        return False
    places = (number * (content.size - _PROBE) // (_SAMPLES - 1) // 8 * 8 for number in range(_SAMPLES))
    probes = (bytes_of(content, place, place + _PROBE).tobytes() for place in places)
    return all(len(zlib.compress(probe, 1)) <= _REPEATS * _PROBE for probe in probes)


def is_text(content: Content, bits: Callable[[], float]) -> bool:
    """Return whether bzip2 makes samples of some bytes clearly shorter than an entropy coding without context does.

    The samples do not overlap, since bzip2 would find the bytes that two of them share. That coding is estimated for
    each sample as well: equal bytes in one, such as padding, say nothing about the others.

    Args:
        content: the bytes.
        bits: called for the bits of that entropy coding.
    """
    if content.size < _LEAST or (plain := bits()) > _MOST_BITS * content.size:
        return False
    sample = _SAMPLE if content.size > _SAMPLES * _SAMPLE else content.size
    places = sorted({number * (content.size - sample) // (_SAMPLES - 1) for number in range(_SAMPLES)})
    parts = [bytes_of(content, place, place + sample).copy() for place in places]
    size = sample * len(parts)
    least = min(plain * size / content.size, sum(floats.estimate(part, "U8") for part in parts))
    return 8 * len(bz2.compress(b"".join(part.tobytes() for part in parts), _LEVEL)) < _GAIN * least


def write(content: Content, writer: Writer, threads: int) -> int:
    """Write the payload of some bytes, a multiple of 8; return its bytes, or 0 if it is no shorter.

    Args:
        content: the bytes.
        writer: where the payload goes.
        threads: threads that code.
    """
    writer.reserve(_start(content.size) + content.size + 8)
    end, lengths = _start(content.size), []
    for piece in in_parts(lambda begin, last: _coded(content, begin, last), content.size, PIECE, threads):
        writer.put(end, np.frombuffer(piece, np.uint8))
        lengths.append(len(piece))
        end += len(piece)
    writer.put(end, np.zeros(-end % 8, np.uint8))
    writer.put(0, np.frombuffer(_HEAD.pack(_FORMAT, 0) + np.array(lengths, "<u4").tobytes(), np.uint8))
    end += -end % 8
    return end if end < content.size else 0


def _coded(content: Content, begin: int, end: int) -> bytes:
    data = bytes_of(content, begin, end).tobytes()
    coded = bz2.compress(data, _LEVEL)
    return coded if len(coded) < len(data) else data


def _start(size: int) -> int:
    """Return the bytes before the first piece of a text of `size` bytes."""
    return _HEAD.size + 4 * -(-size // PIECE)


class DecodedText(InSegments):
    """A content that decodes a payload piece by piece as it is read. Raises DamagedError if it is damaged."""

    room = "decoded text"
    step = PIECE

    def __init__(self, payload: Content, size: int):
        self._payload, self.size = payload, size
        if payload.size < _start(size):
            raise damaged("its text is cut off")
        head = np.empty(_start(size), np.uint8)
        payload.fill(0, head)
        lengths = head[_HEAD.size :].view("<u4").astype(np.int64)
        self._places = np.concatenate(([_start(size)], _start(size) + np.cumsum(lengths)))
        end = int(self._places[-1])
        if head[: _HEAD.size].tobytes() != _HEAD.pack(_FORMAT, 0) or end + -end % 8 != payload.size:
            raise damaged("its length is not that of its parts")

    def _decode(self, first: int, last: int, out: Array) -> None:
        for number in range(first, last):
            piece = out[(number - first) * PIECE : (number - first + 1) * PIECE]
            begin, end = int(self._places[number]), int(self._places[number + 1])
            coded = bytes_of(self._payload, begin, end)
            piece[:] = coded if end - begin == piece.size else _decoded(coded, piece.size)


def _decoded(coded: Array, size: int) -> Array:
    """Return the bytes of a piece, of which there must be `size`; no more are decoded."""
    unpacker = bz2.BZ2Decompressor()
    try:
        data = unpacker.decompress(coded.tobytes(), size)
        data += b"" if unpacker.eof else unpacker.decompress(b"", 1)
    except (OSError, EOFError):
        raise damaged("its text is invalid") from None
    if len(data) != size or not unpacker.eof or unpacker.unused_data:
        raise damaged("its text is invalid")
    return np.frombuffer(data, np.uint8)
