"""Memory for results that come one after the other. The system takes as long to hand out a fresh page as decoding takes
to fill several. So memory comes in blocks so large that they use huge pages, and a block of which nothing is in use any
more is given out again."""

import threading
from sys import getrefcount

import numpy as np

__all__ = ["cut", "fresh", "kept", "scratch"]

_PIECE = 1 << 24  # bytes of a block that has several small parts; numpy asks for huge pages in arrays of 4 MiB or more
_SMALL = 1 << 23  # the most of a part
_LARGE = 1 << 22
_KEPT = 1 << 27  # of blocks that are given out again
_ALIGNED = 64
_own = threading.local()
_blocks: list[np.ndarray] = []


def fresh(size: int) -> np.ndarray:
    """uint8 [size], undefined. A small one is a part of a piece that goes when all its parts are gone."""
    if size > _SMALL:
        return np.empty(size, np.uint8) if size > _KEPT else _block(size)[:size]
    start = getattr(_own, "used", _PIECE)
    if start + size > _PIECE:
        _own.piece = _own.last = None
        _own.piece = _block(_PIECE)
        start = -_own.piece.ctypes.data % _ALIGNED
    _own.begin, _own.used = start, start + _rounded(size)
    part: np.ndarray = _own.piece[start : start + size]
    _own.last = part
    return part


def _block(size: int) -> np.ndarray:
    """uint8 of at least so many bytes, and less than twice as many, of which nothing is in use."""
    for _ in range(len(_blocks)):
        try:
            holder = [_blocks.pop(0)]  # from here on no other thread sees it
        except IndexError:
            break
        is_free = size <= holder[0].size < 2 * size and _references(holder) == _ALONE
        _blocks.append(holder[0])
        if is_free:
            return holder[0]
    block = np.empty(size, np.uint8)
    _blocks.append(block)
    while sum(block.size for block in tuple(_blocks)) > _KEPT:
        _blocks.pop(0)
    return block


def _references(holder: list[np.ndarray]) -> int:
    """To an array, of which each array that lies in it is one, and whatever numpy or torch make of that."""
    return getrefcount(holder[0])


_ALONE = _references([np.empty(0)])


def _rounded(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED


def kept(name: str, size: int) -> np.ndarray:
    """uint8 [size], undefined: the same memory at every call of a thread with this name, as long as it is enough."""
    if not hasattr(_own, "kept"):
        _own.kept = {}
    if (found := _own.kept.get(name)) is None or found.size < size:
        _own.kept[name] = found = np.empty(size, np.uint8)
    part: np.ndarray = found[:size]
    return part


def scratch(size: int) -> np.ndarray:
    """uint8 [size], undefined: the same memory at every call of a thread, of a size below a few MiB; else fresh."""
    return np.empty(size, np.uint8) if size >= _LARGE else kept("scratch", _LARGE)[:size]


def cut(buffer: np.ndarray, size: int) -> np.ndarray:
    """The first bytes of what `fresh` gave; `buffer` and its parts are not to be used any more. The rest is given out
    again, unless more was asked for since."""
    if buffer.base is None:
        buffer.resize(size, refcheck=False)
        return buffer
    part: np.ndarray = buffer[:size]
    if getattr(_own, "last", None) is buffer:
        _own.used = _own.begin + _rounded(size)
        _own.last = None
    return part
