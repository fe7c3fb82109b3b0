"""The progress of work that is done in several ways: each gets a share by its estimated time."""

from collections.abc import Callable, Sequence
from itertools import accumulate

__all__ = ["Share", "shares"]


class Share:
    """A function that takes `size` bytes of work as progress from `begin` to `end`."""

    def __init__(self, progress: Callable[[int], None] | None, size: int, begin: int, end: int):
        self._progress, self._size, self._span = progress, size, end - begin
        self._done = self._told = 0

    def __call__(self, count: int) -> None:
        self._done += count
        self._tell(min(self._span * self._done // max(self._size, 1), self._span))

    def finish(self) -> None:
        """Report what is left of the share."""
        self._tell(self._span)

    def _tell(self, place: int) -> None:
        if self._progress and place > self._told:
            self._progress(place - self._told)
            self._told = place


def shares(progress: Callable[[int], None] | None, size: int, weights: Sequence[float]) -> list[Share]:
    """Return the shares of works of `size` bytes each in the progress of one of them.

    Args:
        progress: is called with the number of bytes done since its last call, or None.
        size: bytes of each work, and of the progress.
        weights: estimated time of each.
    """
    total = sum(weights)
    ends = [round(size * done / total) if total else size for done in accumulate(weights)]
    return [Share(progress, size, begin, end) for begin, end in zip([0, *ends], ends, strict=False)]
