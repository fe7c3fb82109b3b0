"""Tables of the docs, made of the rows of results."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Protocol

Row = dict[str, Any]
Record = dict[str, Any]
MACHINE = "on machine"  # a field that rows of docs have besides: what they were measured on
Value = str | Callable[[Row], object]


@dataclass(frozen=True)
class Column:
    """value: a field of the row, or what makes the cell of it; form: as `format` has it. None gives an empty cell."""

    title: str
    value: Value
    form: str = ""

    def cell(self, row: Row) -> str:
        return cell(self.value, row, self.form)


class Table(Protocol):
    def chosen(self, records: Iterable[Record]) -> list[Record]:
        """The records that the table shows."""

    def lines(self, rows: Sequence[Row]) -> list[str]:
        """Its lines in Markdown."""

    def title(self, row: Row) -> str:
        """The first cell of the line that a row is in."""


@dataclass(frozen=True)
class Listing:
    """A line a row, in the order of the results.

    where: which rows are shown; order: what sorts them; prepare: what gives rows fields that take other rows.
    """

    columns: tuple[Column, ...]
    where: Callable[[Row], bool] = lambda row: True
    order: Callable[[Row], Any] | None = None
    prepare: Callable[[Sequence[Row]], Sequence[Row]] = lambda rows: rows

    def chosen(self, records: Iterable[Record]) -> list[Record]:
        return [record for record in records if self.where(record["row"])]

    def lines(self, rows: Sequence[Row]) -> list[str]:
        rows = self.prepare(rows)
        ordered = sorted(rows, key=self.order) if self.order else rows
        cells = [[column.cell(row) for column in self.columns] for row in ordered]
        return markdown([column.title for column in self.columns], cells)

    def title(self, row: Row) -> str:
        return self.columns[0].cell(row)


@dataclass(frozen=True)
class Pivot:
    """A line for all rows of the same `lead`, a column for each value of `across`.

    titles: value of `across` -> title of its column, in their order; rows of other values are not shown. None: all
    that there are. needed: a value of `across` without which a line is left out. top: title of a first line, and its
    value in each column. total: title of the last line, the sums of numbers in the columns that have all lines.
    """

    lead: tuple[Column, ...]
    across: Value
    titles: Mapping[Any, str] | None
    value: Value
    form: str = ""
    where: Callable[[Row], bool] = lambda row: True
    order: Callable[[Row], Any] | None = None
    needed: object = None
    top: tuple[str, Value] | None = None
    total: str = ""

    def chosen(self, records: Iterable[Record]) -> list[Record]:
        shown = [one for one in records if self._column(one["row"]) and self.where(one["row"])]
        leads = {self._lead(one["row"]) for one in shown if value(self.across, one["row"]) == self.needed}
        return [one for one in shown if self.needed is None or self._lead(one["row"]) in leads]

    def lines(self, rows: Sequence[Row]) -> list[str]:
        titles = list(self.titles.values()) if self.titles else list(dict.fromkeys(map(self._column, rows)))
        ordered = sorted(rows, key=self.order) if self.order else rows
        grid: dict[tuple[str, ...], dict[str, Row]] = {}
        for row in ordered:
            grid.setdefault(self._lead(row), {})[self._column(row)] = row
        cells = [
            [*lead, *(cell(self.value, found[title], self.form) if title in found else "" for title in titles)]
            for lead, found in grid.items()
        ]
        if self.top:
            cells.insert(0, self._first(self.top, rows, titles))
        if self.total:
            cells.append(self._sums(rows, titles))
        return markdown([*(column.title for column in self.lead), *titles], cells)

    def title(self, row: Row) -> str:
        return self.lead[0].cell(row)

    def _lead(self, row: Row) -> tuple[str, ...]:
        return tuple(column.cell(row) for column in self.lead)

    def _column(self, row: Row) -> str:
        """The title of a row's column; empty where it has none."""
        found = value(self.across, row)
        return str(found) if self.titles is None else self.titles.get(found, "")

    def _first(self, top: tuple[str, Value], rows: Sequence[Row], titles: Sequence[str]) -> list[str]:
        columns = {self._column(row): cell(top[1], row, self.form) for row in rows}
        return [top[0], *(columns[title] for title in titles)]

    def _sums(self, rows: Sequence[Row], titles: Sequence[str]) -> list[str]:
        columns = [[row for row in rows if self._column(row) == title] for title in titles]
        most = max(map(len, columns))
        whole = next(column for column in columns if len(column) == most)
        leads = [sum(value(column.value, row) for row in whole) for column in self.lead[1:]]
        sums = [sum(value(self.value, row) for row in column) if len(column) == most else None for column in columns]
        return [self.total, *("" if one is None else f"{one:,}" for one in [*leads, *sums])]


def value(source: Value, row: Row) -> Any:
    return row.get(source) if isinstance(source, str) else source(row)


def cell(source: Value, row: Row, form: str) -> str:
    found = value(source, row)
    return "" if found is None else format(found, form)


def markdown(head: Sequence[str], cells: Iterable[Sequence[str]]) -> list[str]:
    """Columns of numbers to the right, the others to the left."""
    grid = list(cells)
    marks = ["--:" if is_numbers([row[place] for row in grid]) else "---" for place in range(len(head))]
    return [f"| {' | '.join(head)} |", f"|{'|'.join(marks)}|", *(f"| {' | '.join(row)} |" for row in grid)]


def is_numbers(column: Iterable[str]) -> bool:
    return all(text[0] in "+-0123456789" for text in column if text)


def above(part: str, whole: str, digits: int = 2) -> Callable[[Row], str | None]:
    """The field `part`, and how far it is above `whole`."""

    def found(row: Row) -> str | None:
        return f"{row[part]:,} ({100 * row[part] / row[whole] - 100:+.{digits}f} %)" if row.get(part) else None

    return found


def percent(field: str, digits: int = 2, sign: str = "") -> Callable[[Row], str | None]:
    """A share, in per cent."""

    def found(row: Row) -> str | None:
        return f"{100 * row[field]:{sign}.{digits}f} %" if row.get(field) is not None else None

    return found


def pair(one: str, other: str, form: str = ".2f") -> Callable[[Row], str | None]:
    """Two fields with a stroke between them, such as both ways of a coder."""

    def found(row: Row) -> str | None:
        return f"{row[one]:{form}} / {row[other]:{form}}" if row.get(one) is not None else None

    return found


def significant(field: str, digits: int, unit: str = "") -> Callable[[Row], str | None]:
    """A number with so many digits that say something, never with an exponent."""

    def found(row: Row) -> str | None:
        return None if row.get(field) is None else f"{Decimal(f'{row[field]:.{digits}g}'):,f}{unit}"

    return found


def mebibytes(field: str) -> Callable[[Row], str | None]:
    return lambda row: f"{row[field] / 2**20:,.0f}" if row.get(field) else None
