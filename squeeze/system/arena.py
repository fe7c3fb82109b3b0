"""An allocator for short-lived arrays that reuses its blocks.

The operating system takes as long to provide a fresh page as decoding takes to fill several pages. So memory is
allocated in blocks large enough for huge pages, and a block that is no longer referenced is used again.
"""

import threading
from sys import getrefcount

import numpy as np

__all__ = ["allocate", "scratch", "shrink", "thread_buffer"]

_PIECE = 1 << 24  # bytes of a block for small arrays; numpy requests huge pages for 4 MiB or more
_SMALL = 1 << 23  # the largest array that shares a block
_LARGE = 1 << 22
_KEPT = 1 << 27  # total size of blocks that are kept for reuse
_ALIGNED = 64
_own = threading.local()
_blocks: list[np.ndarray] = []


def allocate(size: int) -> np.ndarray:
    """Return undefined memory, uint8 [size]. Small arrays share a block, which is freed when all of them are."""
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
    """Return an unused block, uint8, of at least `size` bytes and less than twice as many."""
    for _ in range(len(_blocks)):
        try:
            holder = [_blocks.pop(0)]  # other threads no longer see it
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
    """Return how many references the array has: arrays that are views of it count, and so do tensors made from them."""
    return getrefcount(holder[0])


_ALONE = _references([np.empty(0)])


def _rounded(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED


def thread_buffer(name: str, size: int) -> np.ndarray:
    """Return undefined memory, uint8 [size], that is the same at every call of this thread with this name if it is
    large enough.
    """
    if not hasattr(_own, "kept"):
        _own.kept = {}
    if (found := _own.kept.get(name)) is None or found.size < size:
        _own.kept[name] = found = np.empty(size, np.uint8)
    part: np.ndarray = found[:size]
    return part


def scratch(size: int) -> np.ndarray:
    """Return undefined memory, uint8 [size]: the same at every call of this thread if it is below 4 MiB, otherwise
    new.
    """
    return np.empty(size, np.uint8) if size >= _LARGE else thread_buffer("scratch", _LARGE)[:size]


def shrink(buffer: np.ndarray, size: int) -> np.ndarray:
    """Return the first `size` bytes of an array from `allocate` and free the rest, unless more was allocated since.

    Do not use `buffer` or views of it afterwards.
    """
    if buffer.base is None:
        buffer.resize(size, refcheck=False)
        return buffer
    part: np.ndarray = buffer[:size]
    if getattr(_own, "last", None) is buffer:
        _own.used = _own.begin + _rounded(size)
        _own.last = None
    return part
