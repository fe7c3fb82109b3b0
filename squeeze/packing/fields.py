"""Words of packed integers laid out anew as bytes that entropy coding can take: quantised weights mostly.

Codes of 2, 4 and 8 bits lie whole in the bytes of their words. Codes of 3 bits straddle them, so two codes each are
given a byte of their own; GPTQ packs them down the columns of a matrix, others along its rows.
"""

from math import prod

import numpy as np

from squeeze.checkpoint.safetensors import Bytes
from squeeze.codecs.tensors import floats
from squeeze.codecs.tensors.content import Content, InMemory, whole

BYTES, THREES, THREES_DOWN = "bytes", "threes", "threes-down"
KINDS = (BYTES, THREES, THREES_DOWN)
DTYPES = ("I32", "U32")


def relaid(data: Bytes, shape: tuple[int, ...], kind: str) -> Bytes | None:
    """A tensor's bytes in the layout `kind`; None where its shape does not allow that."""
    if not fits(shape, kind):
        return None
    if kind == BYTES:
        return data
    if kind == THREES_DOWN:
        words = data.view(np.uint32).reshape(shape[0] // 3, 3, shape[1])
        data = np.ascontiguousarray(words.transpose(0, 2, 1)).view(np.uint8).reshape(-1)
    triples = data.reshape(-1, 3)
    first, second, third = triples[:, 0], triples[:, 1], triples[:, 2]
    out = np.empty((len(triples), 4), np.uint8)
    out[:, 0] = first & 63
    out[:, 1] = first >> 6 | (second & 15) << 2
    out[:, 2] = second >> 4 | (third & 3) << 4
    out[:, 3] = third >> 2
    return out.reshape(-1)


def restored(data: Bytes, shape: tuple[int, ...], kind: str) -> Bytes:
    """Undo `relaid`."""
    if kind == BYTES:
        return data
    a, b, c, d = data.reshape(-1, 4).T
    triples = np.empty((len(a), 3), np.uint8)
    triples[:, 0] = a | b << 6
    triples[:, 1] = b >> 2 | c << 4
    triples[:, 2] = c >> 4 | d << 2
    if kind == THREES_DOWN:
        words = triples.reshape(-1).view(np.uint32).reshape(shape[0] // 3, shape[1], 3)
        return np.ascontiguousarray(words.transpose(0, 2, 1)).view(np.uint8).reshape(-1)
    return triples.reshape(-1)


def size_of(size: int, kind: str) -> int:
    """Bytes of the layout of a tensor of `size` bytes."""
    return size if kind == BYTES else size // 3 * 4


def fits(shape: tuple[int, ...], kind: str) -> bool:
    if kind == THREES_DOWN:
        return len(shape) == 2 and shape[0] % 3 == 0 and prod(shape) > 0
    return kind == BYTES or (prod(shape) > 0 and prod(shape) % 3 == 0)


def choose(content: Content, dtype: str, shape: tuple[int, ...]) -> tuple[str, Content]:
    """The kind that codes a tensor shortest, and its bytes; an empty kind where none is better than its words."""
    best, kind, shortest = floats.estimate(content, dtype), "", content
    for other in KINDS:
        laid = _relaid(content, shape, other)
        if laid is not None and (bits := floats.estimate(laid, "U8")) < best:
            best, kind, shortest = bits, other, laid
    return kind, shortest


def _relaid(content: Content, shape: tuple[int, ...], kind: str) -> Content | None:
    if kind == BYTES:
        return content
    laid = relaid(whole(content), shape, kind) if fits(shape, kind) else None
    return None if laid is None else InMemory(laid)
