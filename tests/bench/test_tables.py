"""Tables of rows: listings, their cells, and rows of rows."""

import pytest

from bench.measure import load
from bench.measures.public import all_levels
from bench.tables import Column, Listing, above, markdown, percent, significant, sums

ROWS = [
    {"file": "b", "raw": 1000, "tool": "x", "bytes": 500},
    {"file": "a", "raw": 90, "tool": "x", "bytes": 50},
    {"file": "b", "raw": 1000, "tool": "y", "bytes": 400},
    {"file": "a", "raw": 90, "tool": "z", "bytes": 1},
]


def test_a_listing_shows_a_line_a_row() -> None:
    table = Listing(Column("f", "file"), Column("size", "bytes", ","), where=lambda row: row["tool"] == "x")
    assert table.lines(table.chosen(ROWS)) == [
        "| f | size |",
        "|---|--:|",
        "| b | 500 |",
        "| a | 50 |",
    ]


def test_a_column_that_no_row_fills_is_left_out_of_a_listing() -> None:
    table = Listing(Column("f", "file"), Column("speed", "speed"), Column("size", "bytes"))
    assert table.lines(ROWS)[0] == "| f | size |"


def test_words_are_aligned_left_and_numbers_right() -> None:
    assert markdown(["a", "b", "c"], [["x", "1", "-2 %"], ["y", "", "z"]])[1] == "|---|--:|---|"


def test_sums_are_those_of_numbers_that_every_row_has() -> None:
    rows = [{"file": "a", "raw": 3, "x": 1, "share": 0.5}, {"file": "b", "raw": 4, "y": 2, "share": 0.5}]
    assert sums(rows) == {"raw": 7}


@pytest.mark.parametrize(
    ("value", "row", "shown"),
    [
        (above("part", "whole"), {"part": 1010, "whole": 1000}, "1,010 (+1.00 %)"),
        (above("part", "whole"), {"whole": 1000}, None),
        (percent("part", 1), {"part": 0.125}, "12.5 %"),
        (percent("part"), {}, None),
        (significant("part", 3), {"part": 0.0000113}, "0.0000113"),
        (significant("part", 4, " %"), {"part": 1202}, "1,202 %"),
        (significant("part", 4), {"part": None}, None),
    ],
)
def test_cells_have_the_expected_text(value: object, row: dict, shown: str | None) -> None:
    assert value(row) == shown  # type: ignore[operator]


def test_a_row_is_compared_with_rounding_on_its_grid() -> None:
    rows = [
        {"name": "rtn-sym-4", "base": "rtn-sym-4", "bits": 4.25, "samples": 24, "gap": 0.4},
        {"name": "gptq-sym-4", "base": "rtn-sym-4", "bits": 4.25, "samples": 24, "gap": 0.1},
        {"name": "gptq-nvfp4", "base": "rtn-nvfp4", "bits": 4.5, "samples": 24, "gap": 0.1},
    ]
    shares = [line.split("|")[5].strip() for line in load("quantize").tables["quantize"].lines(rows)[2:]]
    assert shares == ["", "25 %", ""]


def test_levels_that_were_not_measured_have_no_figures() -> None:
    rows = [{"tool": "squeeze -1", "raw": 1000}]
    assert [row["tool"] for row in all_levels(rows)] == [f"squeeze -{level}" for level in range(1, 10)]
    assert [row for row in all_levels(rows) if "raw" in row] == rows
