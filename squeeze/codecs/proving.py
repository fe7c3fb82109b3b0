"""Verification of a block while it is coded: a second thread decodes the coded bytes that are final, and compares.

A carry may still change the last coded byte, and those before it that are 255 (numerics/bitmodels/coder.py). It ends at
the first byte that is not, and no second one passes there. So all bytes before that one are final.
"""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Self

import numpy as np

__all__ = ["FAULTY", "Proof"]

FAULTY = "the coded data did not decode to the input: this machine's memory or processor is faulty"
_READ_AHEAD = 8  # bytes that a decoder has read beyond those that an encoder had written at the same bit
Decode = Callable[[int, int], bool]  # (begin, end): decodes these bytes of the block; False if they differ


class Proof:
    """The verification of one block, as a context manager: leaving it ends the thread."""

    def __init__(self, coded: np.ndarray, start: Callable[[], Decode]):
        """Begin.

        Args:
            coded: uint8, the buffer that the encoder writes.
            start: builds the decoder of that buffer; it is called in the thread, with the first bytes there.
        """
        self._coded, self._start = coded, start
        self._decode: Decode | None = None
        self._coming = deque[tuple[int, int, int]]()  # (begin, end, coded bytes then)
        self._found = list[Future[bool]]()
        self._pool = ThreadPoolExecutor(1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def note(self, begin: int, end: int, written: int) -> None:
        """Tell that bytes `begin` to `end` of the block are coded, and how many coded bytes there are by now."""
        self._coming.append((begin, end, written))
        final = _final(self._coded, written)
        while self._coming and self._coming[0][2] + _READ_AHEAD <= final:
            self._submit()

    def holds(self) -> bool:
        """Return whether the whole block decodes to its bytes. All coded bytes are final by now."""
        while self._coming:
            self._submit()
        return all(future.result() for future in self._found)

    def _submit(self) -> None:
        begin, end, _ = self._coming.popleft()
        self._found.append(self._pool.submit(self._compare, begin, end))

    def _compare(self, begin: int, end: int) -> bool:
        if self._decode is None:
            self._decode = self._start()
        return self._decode(begin, end)


def _final(coded: np.ndarray, written: int) -> int:
    """Return how many of the coded bytes no carry can change."""
    last = written - 1
    while last > 0 and coded[last] == 255:
        last -= 1
    return max(last, 0)
