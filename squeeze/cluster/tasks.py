"""Independent calls on the workers of a cluster, as many at a time as there is room for. Lost calls are retried."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from squeeze.cluster import run
from squeeze.cluster.engine import Call, Engine, Lost

__all__ = ["Outcome", "run_calls"]

K = TypeVar("K")


@dataclass(frozen=True)
class Outcome(Generic[K]):
    """The outcome of a call.

    Attributes:
        key: The call's key.
        result: What the function returned.
        error: The exception, if there is no result.
        attempts: How often it was tried.
        lost: How often its worker was lost.
    """

    key: K
    result: Any
    error: BaseException | None = None
    attempts: int = 1
    lost: int = 0


def run_calls(
    engine: Engine[K], calls: Iterable[Call[K]], passes: Callable[[Any], bool] = lambda result: False
) -> Iterator[Outcome[K]]:
    """Yield the outcome of each call as it comes.

    Args:
        engine: The workers.
        calls: The calls.
        passes: Whether a result reports an error that may pass, so that the call is retried after a while. Exceptions
            of
        the function are not retried.
    """
    waiting, tried, losses = iter(calls), Counter[K](), Counter[K]()
    later: list[tuple[float, Call[K]]] = []  # retries with their earliest time
    following = next(waiting, None)
    while True:
        due = [one for one in later if one[0] <= time.monotonic()]
        while due and engine.has_room(due[0][1].needs):
            later.remove(due[0])
            engine.submit(due.pop(0)[1])
        while following and not due and engine.has_room(following.needs):
            engine.submit(following)
            following = next(waiting, None)
        if not engine.is_busy and not later:
            return
        wait = None if due or not later else max(min(when for when, _ in later) - time.monotonic(), run.LEAST_WAIT)
        if not engine.is_busy:
            time.sleep(wait or run.LEAST_WAIT)
            continue
        if (ended := engine.next(wait)) is None:
            continue
        call, result, error = ended
        tried[call.key] += 1
        attempts, lost = tried[call.key], isinstance(error, Lost)
        losses[call.key] += lost
        if attempts < run.ATTEMPTS and (lost or (error is None and passes(result))):
            later.append((time.monotonic() + run.pause(attempts, lost), call))
            continue
        del tried[call.key]
        yield Outcome(call.key, result, error, attempts, losses.pop(call.key))
