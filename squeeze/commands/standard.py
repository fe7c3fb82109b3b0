"""Standard input and output that are closed: what asks for them gets one line, and no file takes their places."""

import io
import os
import sys
from typing import Any

from squeeze.errors import SqueezeError

__all__ = ["guard"]


class _Closed(io.TextIOBase):
    """Stands in for a stream that is closed."""

    encoding = "utf-8"  # which click asks for

    def __init__(self, name: str):
        self._name = name

    @property
    def buffer(self) -> Any:
        raise SqueezeError(f"standard {self._name} is closed: redirect it, or name a file")

    def write(self, text: str, /) -> int:
        return int(self.buffer)

    def read(self, size: int | None = -1, /) -> str:
        return str(self.buffer)


def guard() -> None:
    """To be called before a file is opened: the first one would have the number of what is closed, and get what is
    printed."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
    sys.stdin = _Closed("input") if sys.stdin is None else sys.stdin
    sys.stdout = _Closed("output") if sys.stdout is None else sys.stdout
    sys.stderr = io.StringIO() if sys.stderr is None else sys.stderr
