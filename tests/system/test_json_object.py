"""JSON from anywhere: an object without doubles and of a bounded depth, or one line."""

import pytest

from squeeze.errors import FormatError
from squeeze.system.json_object import parse_object

HOSTILE = {
    "is not JSON": "[" * 100_000,
    "is nested more than 64 deep": '{"a":' * 65 + "1" + "}" * 65,
    "is nested more than 64": '{"a":' + "[" * 64 + "]" * 64 + "}",
    "has 'a' twice": '{"b": {"a": 1, "a": 2}}',
    r"has '\x1b\ud800' twice": '{"\\u001b\\ud800": 1, "\\u001b\\ud800": 2}',
    "is not a JSON object": "[1]",
    "is not JS": '{"a": ' + "9" * 5000 + "}",
}


@pytest.mark.parametrize("message", HOSTILE)
def test_hostile_texts_end_in_one_line(message):
    with pytest.raises(FormatError) as found:
        parse_object(HOSTILE[message])
    assert message in str(found.value) and str(found.value).isprintable()


def test_objects():
    assert parse_object('{"a": [1, {"b": null}], "c": 1e3}') == {"a": [1, {"b": None}], "c": 1000.0}
    assert parse_object('{"a":' * 63 + "{}" + "}" * 63)
