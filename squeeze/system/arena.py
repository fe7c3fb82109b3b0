"""Memory for results that come one after the other. The system takes as long to hand out a fresh page as decoding takes
to fill several, unless memory comes in pieces so large that it uses huge pages."""

import threading

import numpy as np

__all__ = ["cut", "fresh", "kept", "scratch"]

_PIECE = 1 << 24  # bytes; numpy asks for huge pages in arrays of 4 MiB or more
_LARGE = 1 << 22
_ALIGNED = 64
_own = threading.local()


def fresh(size: int) -> np.ndarray:
    """uint8 [size], undefined. A small one is a part of a piece that goes when all its parts are gone."""
    if size >= _LARGE:
        return np.empty(size, np.uint8)
    start = getattr(_own, "used", _PIECE)
    if start + size > _PIECE:
        _own.piece, start = np.empty(_PIECE, np.uint8), 0
    _own.begin, _own.used = start, start + _rounded(size)
    part: np.ndarray = _own.piece[start : start + size]
    _own.last = part
    return part


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
