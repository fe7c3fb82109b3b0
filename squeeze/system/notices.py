"""Sentences for the user from deep inside a computation. The command line shows them; a library says nothing.

Each sentence goes to the listener once a process.
"""

from collections.abc import Callable

__all__ = ["COMPILING", "listen", "mention"]

COMPILING = "The first use compiles code for this processor, which takes from seconds to a minute."
_listener: Callable[[str], None] | None = None
_said: set[str] = set()


def listen(listener: Callable[[str], None] | None) -> None:
    """Pass sentences to `listener` from now on, or with None to nobody."""
    global _listener  # noqa: PLW0603
    _listener = listener


def mention(sentence: str) -> None:
    """Pass a sentence to the listener, unless that was done before or nobody listens."""
    if _listener is not None and sentence not in _said:
        _said.add(sentence)
        _listener(sentence)
