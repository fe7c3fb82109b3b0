"""Calls that know nothing of each other, on the workers of a cluster: as many at a time as there is room for, and tried
again where a worker or its node is lost."""

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from squeeze.cluster.engine import Call, Engine, Lost
from squeeze.cluster.run import ATTEMPTS

__all__ = ["Outcome", "each"]

K = TypeVar("K")


@dataclass(frozen=True)
class Outcome(Generic[K]):
    """Of a call. error: instead of a result."""

    key: K
    result: Any
    error: BaseException | None = None


def each(engine: Engine[K], calls: Iterable[Call[K]]) -> Iterator[Outcome[K]]:
    """What becomes of each call, as it comes. What the function itself raises is not tried again."""
    waiting, again, lost = iter(calls), deque[Call[K]](), Counter[K]()
    following = next(waiting, None)
    while True:
        while again and engine.has_room(again[0].needs):
            engine.submit(again.popleft())
        while following and not again and engine.has_room(following.needs):
            engine.submit(following)
            following = next(waiting, None)
        if not engine.is_busy:
            return
        ended = engine.next()
        assert ended  # without a timeout
        call, result, error = ended
        if isinstance(error, Lost):
            lost[call.key] += 1
            if lost[call.key] < ATTEMPTS:
                again.append(call)
                continue
        yield Outcome(call.key, result, error)
