"""Tables of the docs, made from the rows of results."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

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
        found = row.get(self.value) if isinstance(self.value, str) else self.value(row)
        return "" if found is None else format(found, self.form)


class Listing:
    """A table with a line per row, in the order of the results. Columns that no row fills are omitted.

    Args:
        columns: its columns
        where: function that says which rows are shown
        order: sort key, None for the order of the results
        prepare: function that returns the lines' rows from those of the results
    """

    def __init__(
        self,
        *columns: Column,
        where: Callable[[Row], bool] = lambda row: True,
        order: Callable[[Row], Any] | None = None,
        prepare: Callable[[Sequence[Row]], Sequence[Row]] = lambda rows: rows,
    ):
        self.columns, self.where, self.order, self.prepare = columns, where, order, prepare

    def chosen(self, rows: Sequence[Row]) -> list[Row]:
        return [row for row in rows if self.where(row)]

    def lines(self, rows: Sequence[Row]) -> list[str]:
        rows = self.prepare(rows)
        ordered = sorted(rows, key=self.order) if self.order else rows
        columns = [column for column in self.columns if any(column.cell(row) for row in ordered)]
        return markdown([column.title for column in columns], [[one.cell(row) for one in columns] for row in ordered])


def sums(rows: Sequence[Row]) -> Row:
    """Return the sums of the fields that are whole numbers in every row."""
    common = [name for name in rows[0] if all(isinstance(row.get(name), int) for row in rows)]
    return {name: sum(row[name] for row in rows) for name in common}


def with_total(rows: Sequence[Row]) -> list[Row]:
    """Return rows of files, from the smallest, and their total."""
    return [*sorted(rows, key=lambda row: int(row["raw"])), {"file": "total"} | sums(rows)]


def compared_with(base: str, field: str) -> Callable[[Sequence[Row]], list[Row]]:
    """Make a function that adds `of base` to rows: a field as a share of that of the row of this name."""

    def compared(rows: Sequence[Row]) -> list[Row]:
        whole = next((row[field] for row in rows if row["name"] == base), None)
        return [row | {"of base": row[field] / whole if whole and row[field] else None} for row in rows]

    return compared


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
