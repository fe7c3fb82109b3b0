"""Standard streams: lines are printed escaped, and streams that are closed are replaced."""

import io
import os
import sys
from typing import Any

import click

from squeeze.errors import SqueezeError, escaped

__all__ = ["echo", "guard", "mention"]


def echo(text: str, *, err: bool = False) -> None:
    """Print lines. Control codes and lone surrogates are shown by number."""
    for line in text.split("\n"):
        click.echo(escaped(line), err=err)


def mention(text: str) -> None:
    """Print lines on standard error during a run, above its progress bar."""
    if tqdm := sys.modules.get("tqdm"):
        with tqdm.tqdm.external_write_mode(file=sys.stderr):
            echo(text, err=True)
    else:
        echo(text, err=True)


class _Closed(io.TextIOBase):
    """A replacement for a closed stream, which raises an error when it is used."""

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
    """Replace standard streams that are closed. Call it before a file is opened, which would get their numbers."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
    sys.stdin = _Closed("input") if sys.stdin is None else sys.stdin
    sys.stdout = _Closed("output") if sys.stdout is None else sys.stdout
    sys.stderr = io.StringIO() if sys.stderr is None else sys.stderr
