"""The RECORD of a wheel follows from its members."""

import numpy as np
import pytest

from squeeze.codecs.parse import finding, tree, wheel_record
from squeeze.codecs.parse.tree import Node
from squeeze.codecs.parse.wheel_record import record_of
from squeeze.codecs.parse.zip_fields import Member
from squeeze.errors import DamagedError
from tests.makers import wrapped
from tests.references import naive_zip


def parsed(data: bytes) -> Node:
    return finding.parse(np.frombuffer(data, np.uint8), lambda data, found: True)


def own_of_record(data: bytes) -> bytes:
    root = parsed(data)
    own = np.concatenate([node.own for node in root.nodes()])
    assert tree.close(tree.read(tree.to_bytes(root), own), len(data)).tobytes() == data
    return root.children[-1].node.own.tobytes()


def test_a_record_of_all_members_in_order_is_empty_lines():
    assert own_of_record(wrapped.wheel()) == b"\n" * 6


def test_lines_of_nothing_remain_and_those_in_another_order_are_names():
    assert own_of_record(wrapped.wheel(wrong=b"other,,\n")) == b"other,," + b"\n" * 7
    line = b"words/part-2.txt,sha256="
    wrong = own_of_record(wrapped.wheel(wrong=line + b"A" * 43 + b",1\n"))
    assert wrong.startswith(line) and wrong.endswith(b",1" + b"\n" * 7)


def test_a_record_that_does_not_come_back_stays_as_it_is():
    record = own_of_record(wrapped.wheel(wrong=b"words*\n"))
    assert record.startswith(b"words*\n") and record.count(b"sha256=") == 6


def test_a_record_of_another_archive_is_one_of_names_alone():
    data = wrapped.wheel()
    at = data.index(b"PK\3\4", 1)
    assert own_of_record(data[at:]).count(b"sha256=") == 1


HEADER = b"PK\3\4" + bytes(22) + b"\4\0\0\0"


@pytest.mark.parametrize("remains", [b"", b"\n\n", b"name*\n", b"none*\n\nline", b"line\n"])
def test_agrees_with_a_decoder_of_the_format(remains):
    data = HEADER + b"name" + HEADER + b"last" + b"stream" + HEADER + b"more"
    content, start = b"text", len(data) - 6 - 34
    members = [Member(start, start + 6, np.frombuffer(content, np.uint8))]
    ours = record_of(np.frombuffer(remains, np.uint8), data, members).tobytes()
    assert ours == naive_zip.record(remains, data, [members[0][:2]], [content])


def test_refuses_a_record_without_end(monkeypatch):
    monkeypatch.setattr(wheel_record, "_MOST", 100)
    with pytest.raises(DamagedError):
        record_of(np.frombuffer(b"x" * 99 + b"\n", np.uint8), b"", [])
