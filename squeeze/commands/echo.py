"""Standard streams: escaped lines, errors as one line, and replacements for closed streams."""

import errno
import io
import os
import re
import sys
from typing import Any

import click

from squeeze.errors import SqueezeError, StorageError, escaped

__all__ = ["EXPECTED_ERRORS", "echo", "echo_lines", "explain", "guard", "mention"]

EXPECTED_ERRORS = (SqueezeError, OSError, MemoryError)
_RENAMED = {  # arguments whose options have other names
    "base_folder": "--base",
    "dictionary": "-D",
    "limits.memory": "--memlimit",
    "limits.output": "--max-output",
    "overwrite": "-f",
    "parse": "--no-parse",
    "span": "--range",
    "target_bytes": "--target-size",
}
_ARGUMENT = re.compile(r"`([a-z_.]+)(?:=(?:True|False|'(\w+)'))?`")  # in messages of the library


def echo(line: str, *, err: bool = False) -> None:
    """Print a line. Control codes, line ends and lone surrogates, which names of files may have, are shown escaped."""
    click.echo(escaped(line), err=err)


def echo_lines(text: str, *, err: bool = False) -> None:
    """Print a text of several lines as `echo` does each of them."""
    for line in text.split("\n"):
        echo(line, err=err)


def mention(line: str) -> None:
    """Print a line on standard error during a run, above its progress bar."""
    if tqdm := sys.modules.get("tqdm"):
        with tqdm.tqdm.external_write_mode(file=sys.stderr):
            echo(line, err=True)
    else:
        echo(line, err=True)


def explain(error: BaseException, name: str = "") -> str:
    """Return one line that says what went wrong with the file `name`, with options in place of arguments."""
    name = "" if getattr(error, "is_named", False) else name
    said = "; ".join([_explain(error, f"{name}: " if name else ""), *getattr(error, "__notes__", ())])
    return escaped(_ARGUMENT.sub(_as_option, said))


def _as_option(argument: re.Match[str]) -> str:
    name, value = argument.groups()
    option = _RENAMED.get(name, f"--{name.replace('_', '-')}")
    return f"{option} {value}" if value else option


def _explain(error: BaseException, prefix: str) -> str:
    if isinstance(error, KeyboardInterrupt):
        return "interrupted; unfinished files were left unchanged"
    if isinstance(error, MemoryError):
        return f"{prefix}not enough memory: use fewer threads (-T) or a smaller --block-size"
    if isinstance(error, OSError) and error.strerror == os.strerror(errno.ENOSPC):
        return f"{prefix}no space is left on the disk; nothing was replaced"
    if isinstance(error, OSError) and error.strerror and not isinstance(error, StorageError):
        return f"{f'{error.filename}: ' if error.filename else prefix}{error.strerror}"
    return str(error) if str(error).startswith(prefix) else f"{prefix}{error}"


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
