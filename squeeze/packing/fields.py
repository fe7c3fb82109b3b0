"""Words of packed integers laid out anew as bytes that entropy coding can take: quantised weights mostly.

Codes of 2, 4 and 8 bits lie whole in the bytes of their words. Codes of 3 bits straddle them, so two codes each are
given a byte of their own; GPTQ packs them down the columns of a matrix, others along its rows.
"""

from collections.abc import Callable
from math import prod

import numpy as np

from squeeze.checkpoint.safetensors import Bytes
from squeeze.codecs.tensors import floats
from squeeze.codecs.tensors.content import Content, InMemory
from squeeze.errors import DamagedError
from squeeze.system.arena import kept

BYTES, THREES, THREES_DOWN = "bytes", "threes", "threes-down"
KINDS = (BYTES, THREES, THREES_DOWN)
DTYPES = ("I32", "U32")


def relaid(data: Bytes, shape: tuple[int, ...], kind: str) -> Bytes | None:
    """A tensor's bytes in the layout `kind`; None where its shape does not allow that."""
    if kind == BYTES or not fits(shape, kind):
        return data if kind == BYTES else None
    return _coded(_transposed(data, 3, shape[1]) if kind == THREES_DOWN else data)


def restored(data: Bytes, shape: tuple[int, ...], kind: str) -> Bytes:
    """Undo `relaid`."""
    if kind == BYTES:
        return data
    return _transposed(_decoded(data), shape[1], 3) if kind == THREES_DOWN else _decoded(data)


def _coded(data: Bytes) -> Bytes:
    """Four bytes for each three."""
    triples = data.reshape(-1, 3)
    first, second, third = triples[:, 0], triples[:, 1], triples[:, 2]
    out = np.empty((len(triples), 4), np.uint8)
    out[:, 0] = first & 63
    out[:, 1] = first >> 6 | (second & 15) << 2
    out[:, 2] = second >> 4 | (third & 3) << 4
    out[:, 3] = third >> 2
    return out.reshape(-1)


def _decoded(data: Bytes) -> Bytes:
    """Undo `_coded`."""
    a, b, c, d = data.reshape(-1, 4).T
    triples = np.empty((len(a), 3), np.uint8)
    triples[:, 0] = a | b << 6
    triples[:, 1] = b >> 2 | c << 4
    triples[:, 2] = c >> 4 | d << 2
    return triples.reshape(-1)


def _transposed(data: Bytes, rows: int, columns: int) -> Bytes:
    """Matrices of words, each transposed."""
    words = data.view(np.uint32).reshape(-1, rows, columns)
    return np.ascontiguousarray(words.transpose(0, 2, 1)).view(np.uint8).reshape(-1)


def size_of(size: int, kind: str) -> int:
    """Bytes of the layout of a tensor of `size` bytes."""
    return size if kind == BYTES else size // 3 * 4


def fits(shape: tuple[int, ...], kind: str) -> bool:
    if kind == THREES_DOWN:
        return len(shape) == 2 and shape[0] % 3 == 0 and prod(shape) > 0
    return kind == BYTES or (prod(shape) > 0 and prod(shape) % 3 == 0)


def check(shape: tuple[int, ...], kind: str) -> None:
    """Raises DamagedError where a tensor of this shape has no such layout."""
    if not fits(shape, kind):
        raise DamagedError("its coding is impossible for its shape")


def choose(content: Content, dtype: str, shape: tuple[int, ...]) -> tuple[str, Content]:
    """The kind that codes a tensor shortest, and its bytes; an empty kind where none is better than its words."""
    best, kind, shortest = floats.estimate(content, dtype), "", content
    for other in KINDS:
        laid = _relaid(content, shape, other)
        if laid is not None and (bits := floats.estimate(laid, "U8")) < best:
            best, kind, shortest = bits, other, laid
    return kind, shortest


def _relaid(content: Content, shape: tuple[int, ...], kind: str) -> Content | None:
    if isinstance(content, InMemory):
        laid = relaid(content.data, shape, kind)
        return None if laid is None else InMemory(laid)
    if kind == BYTES or not fits(shape, kind):
        return content if kind == BYTES else None
    return _Units(_Turned(content, 3, shape[1]) if kind == THREES_DOWN else content, _coded, 3, 4)


def restored_content(content: Content, shape: tuple[int, ...], kind: str) -> Content:
    """`restored` of a layout that is read in parts."""
    if kind == BYTES:
        return content
    found = _Units(content, _decoded, 4, 3)
    return _Turned(found, shape[1], 3) if kind == THREES_DOWN else found


class _Units:
    """A content of which each `given` bytes stand for `made`, as `work` makes them."""

    def __init__(self, content: Content, work: Callable[[Bytes], Bytes], given: int, made: int):
        self._content, self._work, self._given, self._made = content, work, given, made
        self.size = content.size // given * made

    def fill(self, begin: int, out: Bytes) -> None:
        first, last = begin // self._made, -(-(begin + out.size) // self._made)
        data = kept("units", self._given * (last - first))
        self._content.fill(self._given * first, data)
        out[:] = self._work(data)[begin - self._made * first :][: out.size]


class _Turned:
    """A content of groups of `rows` times `columns` words, each transposed. As much of it is read at once as whole
    groups need."""

    def __init__(self, content: Content, rows: int, columns: int):
        self._content, self._rows, self._columns, self.size = content, rows, columns, content.size

    def fill(self, begin: int, out: Bytes) -> None:
        group = 4 * self._rows * self._columns
        first, last = begin // group, -(-(begin + out.size) // group)
        data = kept("turned", group * (last - first))
        self._content.fill(group * first, data)
        out[:] = _transposed(data, self._rows, self._columns)[begin - group * first :][: out.size]
