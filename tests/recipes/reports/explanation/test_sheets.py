"""The bits of a spreadsheet by column: every byte counts once, whatever is around the cells."""

import numpy as np
import pytest

from squeeze.recipes.reports.explanation import explain, sheets
from tests.makers import sheets as made


def _ones(raw):
    return np.ones(len(raw))


@pytest.mark.parametrize("version", [2, 8])
def test_values_count_for_their_columns(version):
    raw = b"".join((made.begin(version), *(made.cell(version, 0, column, 7) for column in (0, 2, 27))))
    found = sheets.by_column(raw, _ones(raw))
    width = {2: 2, 8: 4}[version]
    assert {name: total.size for name, total in found.items() if name.startswith("column")} == {
        "column A": width,
        "column C": width,
        "column AB": width,
    }
    assert sum(total.size for total in found.values()) == sum(total.bits for total in found.values()) == len(raw)


def test_cells_of_one_record_are_apart():
    raw = made.begin(8) + made.several(3, 1, [5, 6])
    sizes = {name: total.size for name, total in sheets.by_column(raw, _ones(raw)).items()}
    assert sizes == {"column B": 6, "column C": 6, "column D": 2, "column E": 2} | {
        "types and places of cells": 20,
        "other records": 20,
    }


def test_what_is_cut_off_or_around_records_counts_as_such():
    compound = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(504)
    raw = compound + made.begin(8) + made.cell(8, 0, 0, 1) + made.cell(8, 0, 1, 2)[:-1]
    sizes = {name: total.size for name, total in sheets.by_column(raw, _ones(raw)).items()}
    assert sizes["outside of records"] == 512 + 13
    assert sum(sizes.values()) == len(raw)


@pytest.mark.parametrize("raw", [b"", b"plain text", made.cell(8, 0, 0, 1), b"x" + made.sheet(8, 1), made.begin(8)])
def test_other_files_have_no_columns(raw):
    assert sheets.by_column(raw, _ones(raw)) == {}


def test_explain_names_the_columns_of_a_spreadsheet():
    raw = made.sheet(2, 30, columns=4)
    found = explain.explain(raw, 3)
    columns = found.summary()["columns"]
    assert {"column A", "column B", "column C"} <= set(columns)
    assert sum(total["bytes"] for total in columns.values()) == len(raw)
    assert "column A" in found.table()
