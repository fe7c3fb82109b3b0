"""The progress of a long run on standard error: a bar with rate, time left and memory, or lines of JSON.

The bar is for terminals. The lines are shown with --json if standard error is not a terminal: the first one after ten
seconds, and at most one a second, such as

    {"progress": "big.txt", "done": 1048576, "total": 6000000, "unit": "B", "rate": 524288.0, "eta_seconds": 9.4,
     "memory": 183500800}

The rate is in units a second, and the memory in bytes. The entries total and eta_seconds are null until the total is
known. The entry `step` is the current part of the work, or an intermediate result such as "perplexity 17.3". A run on a
cluster has files, failed and workers as well. -q silences both. After Ctrl-C a tick stops the thread that calls it.
"""

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

import click

from squeeze.errors import escaped
from squeeze.system import files
from squeeze.system.machine import resident_memory

__all__ = ["Tick", "bar", "is_shown", "steps"]

_KEPT = "finished work is kept: repeat the command to resume."
_FIRST, _EVERY = 10.0, 1.0  # seconds before the first line, and between lines


class Tick:
    """A function that is called with the number of units that are done since its last call."""

    def __init__(self, display: "_Display", passes: int = 1) -> None:
        self._display, self._passes = display, passes

    def __call__(self, count: int) -> None:
        _stop_if_interrupted()
        self._display.update(count / self._passes)

    def say(self, text: str, **numbers: float) -> None:
        """Show an intermediate result.

        Args:
            text: The result in words.
            numbers: Its numbers, for JSON.
        """
        self._display.step, self._display.numbers = text, numbers

    def expect(self, total: int) -> None:
        """Set the total, if it was not known before."""
        self._display.total = total


def is_shown(quiet: bool, as_json: bool) -> bool:
    """Return whether any progress is shown."""
    return not quiet and (as_json or sys.stderr.isatty())


@contextmanager
def bar(
    name: str, total: int | None, *, unit: str = "B", passes: int = 1, quiet: bool = False, as_json: bool = False
) -> Iterator[Tick]:
    """Yield a Tick.

    Args:
        name: What is shown in front of the bar.
        total: The units of one pass, or None if the total is not known.
        unit: The name of the unit.
        passes: How often each unit is done.
        quiet: Whether nothing is shown.
        as_json: Whether lines of JSON are shown if standard error is not a terminal.
    """
    with _display_for(name, total, unit, quiet, as_json, unit_scale=True) as shown:
        yield Tick(shown, passes)


@contextmanager
def steps(
    name: str,
    *,
    unit: str = " blocks",
    stopped_note: str = _KEPT,
    before: Callable[[], None] | None = None,
    quiet: bool = False,
    as_json: bool = False,
) -> Iterator[Callable[[str, int, int], None]]:
    """Yield a function that takes the name of the current step, the number of steps done, and their total.

    Args:
        name: What is shown in front of the bar.
        unit: The name of the unit.
        stopped_note: What is printed if the run is stopped.
        before: Called before the first step, when nothing more is refused. It may print.
        quiet: Whether nothing is shown.
        as_json: Whether lines of JSON are shown if standard error is not a terminal.
    """
    with _display_for(name, 0, unit, quiet, as_json) as display:

        def step(label: str, done: int, total: int) -> None:
            nonlocal before
            _stop_if_interrupted()
            if before:
                display.clear()
                before()
                before = None
            display.total, display.step = total, label
            display.update(done - display.n)

        try:
            yield step
        except KeyboardInterrupt:
            at = f" at {display.step}, {round(display.n)} of {display.total} done" if display.total else ""
            click.echo(escaped(f"Stopped{at}; {stopped_note}"), err=True)
            raise


def _display_for(name: str, total: int | None, unit: str, quiet: bool, as_json: bool, **settings: Any) -> "_Display":
    if as_json and not quiet and not sys.stderr.isatty():
        return _Lines(name, total, unit.strip())
    if quiet or not sys.stderr.isatty():
        return _Silence(total)
    return _Line(name, total, unit, **settings)


class _Silence:
    """Progress that is counted and not shown."""

    def __init__(self, total: int | None) -> None:
        self.step, self.n, self.total = "", 0.0, total
        self.numbers: dict[str, float] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def clear(self) -> None:
        """Remove what is shown, which the next update shows again."""

    def update(self, count: float) -> None:
        self.n += count


class _Line:
    """A bar of tqdm, followed by the current step and the memory."""

    def __init__(self, name: str, total: int | None, unit: str, **settings: Any) -> None:
        from tqdm import tqdm  # not at the top: without a terminal nothing needs it

        self.step, self.n, self.total, self._looked = "", 0.0, total, 0.0
        self.numbers: dict[str, float] = {}
        tqdm.set_lock(threading.RLock())  # only this process prints: a lock of processes would outlive a killed run
        self._bar = tqdm(total=total, desc=escaped(name), unit=unit, leave=False, **settings)

    def __enter__(self) -> "_Line":
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.close()

    def clear(self) -> None:
        self._bar.clear()

    def update(self, count: float) -> None:
        self.n += count
        now = time.monotonic()
        if now - self._looked >= _EVERY:
            self._looked, memory = now, resident_memory()
            said = [self.step, *([f"{memory / 1e9:.1f} GB"] if memory else [])]
            self._bar.set_postfix_str(", ".join(filter(None, said)), refresh=False)
        self._bar.total = self.total
        self._bar.update(count)


class _Lines(_Silence):
    """Lines of JSON. A short run prints none, and the last tick of a run prints none."""

    def __init__(self, name: str, total: int | None, unit: str) -> None:
        super().__init__(total)
        self.name, self.unit, self._started = name, unit, time.monotonic()
        self._last_line_at = self._started + _FIRST - _EVERY

    def update(self, count: float) -> None:
        now = time.monotonic()
        self.n += count
        if now - self._last_line_at >= _EVERY and (not self.total or self.n < self.total):
            self._last_line_at = now
            self._print_line(self.n / (now - self._started))

    def _print_line(self, rate: float) -> None:
        line: dict[str, Any] = {"progress": self.name, "done": round(self.n), "total": self.total, "unit": self.unit}
        line |= {"step": self.step} if self.step else {}
        seconds = (self.total - self.n) / rate if self.total and rate else None
        line |= {**self.numbers, "rate": round(rate, 3), "eta_seconds": seconds and round(seconds, 1)}
        memory = resident_memory()
        click.echo(json.dumps(line | ({"memory": memory} if memory else {})), err=True)


_Display = _Silence | _Line


def _stop_if_interrupted() -> None:
    if files.interrupted.is_set():
        raise KeyboardInterrupt
