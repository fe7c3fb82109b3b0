"""Records whose lines stand for several rows."""

from pathlib import Path

from bench import records
from bench.measure import Measure

ABOUT = {"date": "2026-01-02", "commit": "0123abcd", "machine": {"cpu": "A"}, "versions": {}, "commands": ["a"]}


def test_rows_that_differ_in_one_field_share_a_line(tmp_path: Path) -> None:
    measure = Measure(lambda options: iter([]), key=("model",), together="model")
    rows = [{"model": "a", "pack": "works"}, {"model": "b", "pack": "refused"}, {"model": "c", "pack": "works"}]
    for row in [*rows, {"model": "b", "pack": "works"}, rows[1]]:
        records.save("x", measure, ABOUT, row, tmp_path)
    lines = (tmp_path / "x.json").read_text().splitlines()
    assert lines[-3:] == [
        '{"each model": ["a", "c"], "pack": "works"},',
        '{"each model": ["b"], "pack": "refused"}',
        "]}",
    ]
    assert records.rows("x", tmp_path) == [rows[0], rows[2], rows[1]]
