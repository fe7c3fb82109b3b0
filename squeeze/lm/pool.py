"""The same model on several devices, each of which works on one text at a time."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Condition

from squeeze.lm.language_model import LanguageModel

__all__ = ["Pool"]


class Pool:
    """Models that threads borrow."""

    def __init__(self, models: Sequence[LanguageModel]):
        self._free, self._costs = list(models), list[int]()
        self._changed = Condition()

    @contextmanager
    def borrowed(self, cost: int = 0, fits: Callable[[int], bool] | None = None) -> Iterator[LanguageModel]:
        """One that nobody has, as soon as there is one, and the costs of all that are borrowed fit with this one's. The
        first is lent whatever it costs."""

        def ready() -> bool:
            first = len(self._costs) == 0
            return bool(self._free) and (first or fits is None or fits(sum(self._costs) + cost))

        with self._changed:
            self._changed.wait_for(ready)
            model = self._free.pop(0)
            self._costs.append(cost)
        try:
            yield model
        finally:
            with self._changed:
                self._free.insert(0, model)
                self._costs.remove(cost)
                self._changed.notify_all()
