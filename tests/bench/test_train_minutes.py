"""What training the network brings, on records that it never saw."""

import pytest

from bench.__main__ import parser
from bench.registry import ENTRIES


@pytest.mark.slow
def test_all_ways_are_measured_on_the_same_records() -> None:
    entry = ENTRIES["train-minutes"]
    words = "--sets events --train 60 --records 2 --minutes 0.01"
    (row,) = entry.rows("train-minutes")(parser("train-minutes", entry).parse_args(words.split()))
    assert (row["set"], row["records"], row["trained"], row["level"]) == ("events", 2, 60, 5)
    assert 0 < row["dictionary"] < row["alone"] < row["raw"]
    for way in ("alone", "dictionary"):
        assert row[f"of {way}"] == pytest.approx(row["network"] / row[way], abs=1e-4)
    assert row["zstd"] is None or row["of zstd"] == pytest.approx(row["network"] / row["zstd"], abs=1e-4)
