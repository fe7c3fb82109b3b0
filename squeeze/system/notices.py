"""Notices for the user from deep inside a computation. The command line shows them; the library does not.

A notice is shown once per process.
"""

from collections.abc import Callable

__all__ = ["COMPILING", "listen", "mention"]

COMPILING = "The first use compiles code for this processor, which takes from seconds to a minute."
_listener: Callable[[str], None] | None = None
_said: set[str] = set()


def listen(listener: Callable[[str], None] | None) -> None:
    """Pass notices to `listener` from now on, or to nobody if it is None."""
    global _listener  # noqa: PLW0603
    _listener = listener


def mention(sentence: str) -> None:
    """Pass a notice to the listener, unless it was passed before."""
    if _listener is not None and sentence not in _said:
        _said.add(sentence)
        _listener(sentence)
