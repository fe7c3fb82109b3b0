"""Tables of the docs, made from the rows of results."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Protocol

Row = dict[str, Any]
Value = str | Callable[[Row], object]


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Args:
        title: text of its head
        value: a field of the row, or a function of the row; None gives an empty cell
        form: format specification
    """

    title: str
    value: Value
    form: str = ""

    def cell(self, row: Row) -> str:
        return cell(self.value, row, self.form)


class Table(Protocol):
    def chosen(self, rows: Sequence[Row]) -> list[Row]:
        """Return the rows that the table shows."""

    def lines(self, rows: Sequence[Row]) -> list[str]:
        """Return its lines in Markdown."""


@dataclass(frozen=True)
class Listing:
    """A table with a line per row, in the order of the results. Columns that no row fills are omitted.

    Args:
        columns: its columns
        where: function that says which rows are shown
        order: sort key, None for the order of the results
        prepare: function that adds fields that depend on other rows
    """

    columns: tuple[Column, ...]
    where: Callable[[Row], bool] = lambda row: True
    order: Callable[[Row], Any] | None = None
    prepare: Callable[[Sequence[Row]], Sequence[Row]] = lambda rows: rows

    def chosen(self, rows: Sequence[Row]) -> list[Row]:
        return [row for row in rows if self.where(row)]

    def lines(self, rows: Sequence[Row]) -> list[str]:
        rows = self.prepare(rows)
        ordered = sorted(rows, key=self.order) if self.order else rows
        columns = [column for column in self.columns if any(column.cell(row) for row in ordered)]
        return markdown([column.title for column in columns], [[one.cell(row) for one in columns] for row in ordered])


@dataclass(frozen=True)
class Pivot:
    """A table with a line for all rows of the same `lead`, and a column for each value of the field `across`.

    Args:
        lead: columns that identify a line
        across: field whose values are columns
        titles: column titles by value of `across`, in order; rows of other values are not shown
        value: field or function of a row for the cell
        form: format specification of the cell
        order: sort key of the rows
        total: title of a last line with the sums of complete columns, empty for none
    """

    lead: tuple[Column, ...]
    across: Value
    titles: Mapping[Any, str]
    value: Value
    form: str = ""
    order: Callable[[Row], Any] | None = None
    total: str = ""

    def chosen(self, rows: Sequence[Row]) -> list[Row]:
        return [row for row in rows if self._column(row)]

    def lines(self, rows: Sequence[Row]) -> list[str]:
        present = {self._column(row) for row in rows}
        titles = [title for title in self.titles.values() if title in present]
        grid: dict[tuple[str, ...], dict[str, Row]] = {}
        for row in sorted(rows, key=self.order) if self.order else rows:
            lead = tuple(column.cell(row) for column in self.lead)
            grid.setdefault(lead, {})[self._column(row)] = row
        cells = [
            [*lead, *(cell(self.value, found[title], self.form) if title in found else "" for title in titles)]
            for lead, found in grid.items()
        ]
        if self.total:
            cells.append(self._sums(rows, titles))
        return markdown([*(column.title for column in self.lead), *titles], cells)

    def _column(self, row: Row) -> str:
        """Return the title of a row's column, empty if it has none."""
        return self.titles.get(value(self.across, row), "")

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
    """Return a table in Markdown. Columns of numbers are aligned to the right."""
    grid = list(cells)
    marks = ["--:" if is_numbers([row[place] for row in grid]) else "---" for place in range(len(head))]
    return [f"| {' | '.join(head)} |", f"|{'|'.join(marks)}|", *(f"| {' | '.join(row)} |" for row in grid)]


def is_numbers(column: Iterable[str]) -> bool:
    return all(text[0] in "+-0123456789" for text in column if text)


def above(part: str, whole: str, digits: int = 2) -> Callable[[Row], str | None]:
    """Make a function that shows the field `part`, and in brackets how far it is above the field `whole`.

    Args:
        part: name of the field to show
        whole: name of the field to compare with
        digits: digits after the point
    """

    def shown(row: Row) -> str | None:
        return f"{row[part]:,} ({100 * row[part] / row[whole] - 100:+.{digits}f} %)" if row.get(part) else None

    return shown


def percent(field: str, digits: int = 2) -> Callable[[Row], str | None]:
    """Make a function that shows a share in per cent."""
    return lambda row: f"{100 * row[field]:.{digits}f} %" if row.get(field) is not None else None


def significant(field: str, digits: int, unit: str = "") -> Callable[[Row], str | None]:
    """Make a function that shows a number with `digits` significant digits, never with an exponent.

    Args:
        field: name of the field
        digits: number of significant digits
        unit: text after the number
    """

    def shown(row: Row) -> str | None:
        return None if row.get(field) is None else f"{Decimal(f'{row[field]:.{digits}g}'):,f}{unit}"

    return shown
