"""What a long run shows on standard error: a bar with rate and time left on a terminal, JSON lines for machines.

In a pipe nothing is shown but with --json, and then lines after ten seconds and at most once a second, such as

    {"progress": "big.txt", "done": 1048576, "total": 6000000, "unit": "B", "rate": 524288.0, "left": 9.4}

with rate in units a second and left in seconds; `step` names what is worked on where a run has steps. -q silences both.
Whatever is shown, a tick stops the thread that calls it after Ctrl-C.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click

from squeeze.errors import escaped
from squeeze.system import files

__all__ = ["Tick", "bar", "is_shown", "steps"]

Tick = Callable[[int], None]
_FIRST, _EVERY = 10.0, 1.0  # seconds before the first line, and between lines


def is_shown(quiet: bool, as_json: bool) -> bool:
    """Whether anything of the progress is shown."""
    return not quiet and (as_json or sys.stderr.isatty())


@contextmanager
def bar(
    name: str, total: int | None, *, unit: str = "B", passes: int = 1, quiet: bool = False, as_json: bool = False
) -> Iterator[Tick]:
    """A function to call with so many units more done; each is done once in each of the passes. total: None where it
    is not known."""
    with _shown(name, total, unit, quiet, as_json, unit_scale=True) as shown:

        def tick(count: int) -> None:
            _stop_if_asked()
            shown.update(count / passes)

        yield tick


@contextmanager
def steps(name: str, *, quiet: bool = False, as_json: bool = False) -> Iterator[Callable[[str, int, int], None]]:
    """A function to call with the step at work, the number of those done, and of all."""
    with _shown(name, 0, " blocks", quiet, as_json) as shown:

        def step(label: str, done: int, total: int) -> None:
            _stop_if_asked()
            shown.total = total
            shown.set_postfix_str(label, refresh=False)
            shown.update(done - shown.n)

        yield step


def _shown(name: str, total: int | None, unit: str, quiet: bool, as_json: bool, **settings: Any) -> Any:
    if as_json and not quiet and not sys.stderr.isatty():
        return _Lines(name, total, unit.strip())
    from tqdm import tqdm  # here, since `--help` does not need it

    silent = quiet or not sys.stderr.isatty()
    return tqdm(total=total, desc=escaped(name), unit=unit, leave=False, disable=silent, **settings)


class _Lines:
    """What is used of tqdm's bars, in lines of JSON. A short run is silent, and the last tick of any has no line."""

    def __init__(self, name: str, total: int | None, unit: str) -> None:
        self.name, self.total, self.unit, self.step = name, total, unit, ""
        self.n = 0.0
        self._started: float | None = None
        self._said = 0.0

    def __enter__(self) -> "_Lines":
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def set_postfix_str(self, text: str, refresh: bool) -> None:
        self.step = text

    def update(self, count: float) -> None:
        now = time.monotonic()
        if self._started is None:
            self._started, self._said = now, now + _FIRST - _EVERY
        self.n += count
        if now - self._said >= _EVERY and (not self.total or self.n < self.total):
            self._said = now
            self._say(self.n / (now - self._started))

    def _say(self, rate: float) -> None:
        line: dict[str, Any] = {"progress": self.name, "done": round(self.n), "total": self.total, "unit": self.unit}
        line |= {"step": self.step} if self.step else {}
        seconds = (self.total - self.n) / rate if self.total and rate else None
        click.echo(json.dumps({**line, "rate": round(rate, 3), "left": seconds and round(seconds, 1)}), err=True)


def _stop_if_asked() -> None:
    if files.interrupted.is_set():
        raise KeyboardInterrupt
