"""What the registry knows of a benchmark."""

import argparse
import importlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from bench.tables import Table
from squeeze.options.option import MOST_MINUTES

Row = dict[str, Any]


@dataclass(frozen=True)
class Option:
    """An argument of a benchmark: argparse's own words."""

    name: str
    settings: Mapping[str, Any]


def option(name: str, **settings: Any) -> Option:
    return Option(name, settings)


def time(text: str) -> float:
    """Of an argument: minutes, or seconds."""
    value = float(text)
    if not 0 < value <= MOST_MINUTES:
        raise argparse.ArgumentTypeError(f"{text} does not lie above 0, and up to {MOST_MINUTES:,}")
    return value


@dataclass(frozen=True)
class Entry:
    """A benchmark.

    measures: one line. minutes: what it takes with its defaults on two cores; 0 where that depends on what it is given.
    key: the fields of a row that say which row it is; a new one replaces the old one, and where there is no key nothing
    is kept. keeps: which rows are. needs: a corpus, the bundled model, a GPU. rivals: programs and packages that it
    runs beside squeeze where they are installed. quick: arguments of `make bench-quick`; None where it takes no part.
    module: of bench.measures, where that is not named as the entry.
    """

    measures: str
    minutes: float
    key: tuple[str, ...] = ()
    keeps: Callable[[Row], bool] = lambda row: True
    needs: tuple[str, ...] = ()
    rivals: tuple[str, ...] = ()
    options: tuple[Option, ...] = ()
    quick: str | None = None
    tables: Mapping[str, Table] = field(default_factory=dict)
    module: str = ""

    @property
    def saves(self) -> bool:
        return bool(self.key)

    def parser(self, name: str) -> argparse.ArgumentParser:
        about = "\n".join([f"{self.measures[0].upper()}{self.measures[1:]}.", "", *self.requirements()])
        shape = argparse.RawDescriptionHelpFormatter
        found = argparse.ArgumentParser(f"python -m bench {name}", description=about, formatter_class=shape)
        for one in self.options:
            found.add_argument(one.name, **one.settings)
        return found

    def requirements(self) -> list[str]:
        given = [("Needs", self.needs), ("Beside", self.rivals)]
        lines = [f"{title}: {', '.join(names)}." for title, names in given if names]
        return [*lines, f"Takes about {self.minutes:g} minutes on two cores."] if self.minutes else lines

    def measuring(self, name: str) -> str:
        """The module that measures; with torch and all else that it takes."""
        return f"bench.measures.{self.module or name.replace('-', '_')}"

    def rows(self, name: str) -> Callable[[argparse.Namespace], Iterator[Row]]:
        return importlib.import_module(self.measuring(name)).rows
