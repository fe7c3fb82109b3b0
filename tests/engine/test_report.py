"""Reports that are read again: of squeeze, or one line."""

import json

import pytest

from squeeze.engine.report import NAME, Report
from squeeze.errors import FormatError

GOOD = Report("a", "b", "rtn", "squeeze", {"bits": 4})
HOSTILE = {
    "layers": [None, 1, "x", [1], [{}], [{"shape": 3}]],
    "before": [1, "x", [1], {"a": 1}],
    "packed": [1, 2.5],
}


def test_a_report_is_read_again(tmp_path):
    (tmp_path / NAME).write_text(json.dumps(GOOD.as_json()))
    assert Report.read(tmp_path).as_json() == GOOD.as_json()


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in HOSTILE.items() for value in values])
def test_other_files_are_refused(tmp_path, key, value):
    (tmp_path / NAME).write_text(json.dumps(GOOD.as_json() | {key: value}))
    with pytest.raises(FormatError, match="is no report of squeeze, or damaged"):
        Report.read(tmp_path)
    (tmp_path / NAME).write_text("[]")
    with pytest.raises(FormatError, match="is not a JSON object"):
        Report.read(tmp_path)
