"""An engine without a cluster: each call runs in this process when its result is requested."""

from collections import deque
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from squeeze.cluster.engine import Call, Lost, Needs
from squeeze.cluster.run import Run


def shorten_calls(monkeypatch: Any, seconds: float) -> None:
    """Limit calls to `seconds`, so that files are split into more parts."""
    original = Run.__init__
    monkeypatch.setattr(Run, "__init__", lambda self, *rest, **more: original(self, *rest, **more, seconds=seconds))


@dataclass(frozen=True)
class Put:
    """A value in the object store, of which each call gets a copy."""

    value: Any


class Inline:
    """The engine. `breaks` is told of each call and may raise an error that represents a lost worker."""

    def __init__(self, room: int = 4, breaks: Callable[[Call[Any]], None] = lambda call: None):
        self.processors, self.room, self.breaks = 1.0, room, breaks
        self.waiting: deque[Call[Any]] = deque()
        self.most = self.calls = 0
        self.closed = False

    def at_once(self, needs: Needs) -> float:
        return self.processors

    def has_room(self, needs: Needs) -> bool:
        return len(self.waiting) < self.room

    @property
    def is_busy(self) -> bool:
        return bool(self.waiting)

    def share(self, value: Any) -> Any:
        return Put(deepcopy(value))

    def submit(self, call: Call[Any]) -> None:
        self.waiting.append(call)
        self.most, self.calls = max(self.most, len(self.waiting)), self.calls + 1

    def next(self, timeout: float | None = None) -> tuple[Call[Any], Any, BaseException | None]:
        call = self.waiting.popleft()
        try:
            self.breaks(call)
        except RuntimeError as error:
            return call, None, Lost(str(error))
        try:
            given = (deepcopy(one.value) if isinstance(one, Put) else one for one in call.arguments)
            return call, call.function(*given), None
        except Exception as error:
            return call, None, error

    def close(self) -> None:
        self.waiting.clear()
        self.closed = True
