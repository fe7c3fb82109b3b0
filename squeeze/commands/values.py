"""The kinds of values that options take: paths, URLs, sizes, times and ranges."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from squeeze.errors import OptionError, SqueezeError
from squeeze.options import MOST_MINUTES, size_of
from squeeze.system import storage

__all__ = ["PATH", "PLACE", "STDOUT", "PathOrUrl", "PlaceOrName", "Range", "Size", "Time"]

STDOUT = Path("-")  # this object alone; a file of this name is another


class PathOrUrl(click.Path):
    """A path, or a URL that fsspec reads. standard: whether - may stand for standard output."""

    def __init__(self, urls: bool, standard: bool = False):
        super().__init__(path_type=Path)
        self._urls, self._standard = urls, standard

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "-" and self._standard:
            return STDOUT
        if value == "-":
            self.fail("standard input and output do not serve here: name a file (one called - is ./-)", param, ctx)
        if not storage.is_url(value):
            return super().convert(value, param, ctx)
        if self._urls:
            return storage.path_of(value)
        try:
            return storage.local_path(value)
        except SqueezeError as error:
            self.fail(str(error), param, ctx)


class PlaceOrName(PathOrUrl):
    """A path or a URL, or one of some names; ./NAME is a path."""

    def __init__(self, names: Sequence[str]):
        super().__init__(urls=True)
        self._names = names

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if value in self._names else super().convert(value, param, ctx)


PATH, PLACE = PathOrUrl(urls=False), PathOrUrl(urls=True)


class Size(click.ParamType):  # type: ignore[type-arg]
    """A number of bytes, with K, M or G for powers of 1024."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            return size_of(value)
        except OptionError as error:
            self.fail(str(error), param, ctx)


class Time(click.FloatRange):
    """A time of at most a year, above 0 or with `zero` at least 0, in seconds or `minutes`."""

    def __init__(self, minutes: bool = False, zero: bool = False):
        super().__init__(0, MOST_MINUTES * (1 if minutes else 60), min_open=not zero)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        time = float(super().convert(value, param, ctx))
        if math.isnan(time):
            self.fail(f"{value!r} is not a valid float.", param, ctx)
        return time


class Range(click.ParamType):  # type: ignore[type-arg]
    """A:B, a range of bytes of which either end may be empty."""

    name = "range"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int | None]:
        if isinstance(value, tuple):
            return value
        first, colon, last = value.partition(":")
        if not colon:
            self.fail(f"{value!r} is not a range such as 100:200, 100: or :200", param, ctx)
        start = Size().convert(first, param, ctx) if first else 0
        end = Size().convert(last, param, ctx) if last else None
        if end is not None and end < start:
            self.fail(f"{value!r} ends before it starts", param, ctx)
        return start, end
