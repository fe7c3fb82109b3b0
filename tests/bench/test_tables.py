"""Tables of rows: listings and pivots, and what cells hold."""

import pytest

from bench.entries.public import _beside_zpaq
from bench.registry import ENTRIES
from bench.tables import Column, Listing, Pivot, above, markdown, pair, percent, significant

ROWS = [
    {"file": "b", "raw": 1000, "tool": "x", "bytes": 500},
    {"file": "a", "raw": 90, "tool": "x", "bytes": 50},
    {"file": "b", "raw": 1000, "tool": "y", "bytes": 400},
    {"file": "a", "raw": 90, "tool": "z", "bytes": 1},
]
LEAD = (Column("file", "file"), Column("raw", "raw", ","))


def records(rows: list[dict]) -> list[dict]:
    return [{"row": row} for row in rows]


def test_a_listing_shows_a_line_a_row() -> None:
    table = Listing((Column("f", "file"), Column("size", "bytes", ",")), where=lambda row: row["tool"] == "x")
    assert table.lines([one["row"] for one in table.chosen(records(ROWS))]) == [
        "| f | size |",
        "|---|--:|",
        "| b | 500 |",
        "| a | 50 |",
    ]


def test_words_stand_to_the_left_and_numbers_to_the_right() -> None:
    assert markdown(["a", "b", "c"], [["x", "1", "-2 %"], ["y", "", "z"]])[1] == "|---|--:|---|"


def test_a_pivot_puts_tools_beside_each_other() -> None:
    table = Pivot(LEAD, "tool", {"x": "X", "y": "Y"}, "bytes", ",", order=lambda row: row["raw"], total="total")
    shown = [one["row"] for one in table.chosen(records(ROWS))]
    assert table.lines(shown) == [
        "| file | raw | X | Y |",
        "|---|--:|--:|--:|",
        "| a | 90 | 50 |  |",
        "| b | 1,000 | 500 | 400 |",
        "| total | 1,090 | 550 |  |",
    ]


def test_a_pivot_leaves_out_lines_without_what_is_needed() -> None:
    table = Pivot(LEAD, "tool", {"x": "X", "y": "Y"}, "bytes", needed="y")
    assert [one["row"]["file"] for one in table.chosen(records(ROWS))] == ["b", "b"]


def test_a_pivot_may_begin_with_a_line_of_its_own() -> None:
    table = Pivot((Column("", "tool"),), "file", {"a": "A", "b": "B"}, "bytes", ",", top=("as it is", "raw"))
    assert table.lines(ROWS)[2:4] == ["| as it is | 90 | 1,000 |", "| x | 50 | 500 |"]


@pytest.mark.parametrize(
    ("value", "row", "shown"),
    [
        (above("part", "whole"), {"part": 1010, "whole": 1000}, "1,010 (+1.00 %)"),
        (above("part", "whole"), {"whole": 1000}, None),
        (percent("part", 1), {"part": 0.125}, "12.5 %"),
        (percent("part"), {}, None),
        (pair("a", "b"), {"a": 1, "b": 2.345}, "1.00 / 2.35"),
        (significant("part", 3), {"part": 0.0000113}, "0.0000113"),
        (significant("part", 4, " %"), {"part": 1202}, "1,202 %"),
        (significant("part", 4), {"part": None}, None),
    ],
)
def test_cells(value: object, row: dict, shown: str | None) -> None:
    assert value(row) == shown  # type: ignore[operator]


def test_levels_beside_rivals_count_files_that_both_have() -> None:
    rows = [
        *({"file": name, "tool": "squeeze -1", "bytes": size} for name, size in (("a", 10), ("b", 30), ("c", 7))),
        *({"file": name, "tool": "xz -9e", "bytes": size} for name, size in (("a", 20), ("b", 30))),
    ]
    lines = ENTRIES["sizes"].tables["sizes-beside"].lines(rows)
    assert lines[2] == "| squeeze -1 | xz -9e | 20.0 % | 1 of 2 |"


def test_a_row_is_compared_with_rounding_on_its_grid() -> None:
    rows = [
        {"name": "rtn-sym-4", "base": "rtn-sym-4", "bits": 4.25, "samples": 24, "gap": 0.4},
        {"name": "gptq-sym-4", "base": "rtn-sym-4", "bits": 4.25, "samples": 24, "gap": 0.1},
        {"name": "gptq-nvfp4", "base": "rtn-nvfp4", "bits": 4.5, "samples": 24, "gap": 0.1},
    ]
    shares = [line.split("|")[5].strip() for line in ENTRIES["quantize"].tables["quantize"].lines(rows)[2:]]
    assert shares == ["", "25 %", ""]


def test_speeds_of_another_machine_than_their_base_are_left_out() -> None:
    times = {"compress s": 2.0, "decompress s": 4.0}
    rows = [
        {"tool": tool, "on machine": machine} | times for tool, machine in [("zpaq -m5", "a"), ("b", "a"), ("c", "d")]
    ]
    assert [row.get("compress") for row in _beside_zpaq(rows)] == [1, 1, None]
