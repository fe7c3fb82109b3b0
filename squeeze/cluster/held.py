"""Files that wait for a worker, in few bytes each: a cluster of 1,000 processors has a million small ones in hand."""

import pickle
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

__all__ = ["Held"]

T = TypeVar("T")


class Held(Sequence[T]):
    """A sequence that cannot be changed, kept as compressed pickles."""

    def __init__(self, items: Sequence[T]):
        self._count, self._data = len(items), zlib.compress(pickle.dumps(list(items)), 1)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        return self._all()[index]

    def __iter__(self) -> Iterator[T]:
        return iter(self._all())

    def _all(self) -> list[T]:
        found: list[T] = pickle.loads(zlib.decompress(self._data))
        return found
