"""The RECORD of a wheel follows from its members."""

import struct
import zlib

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


@pytest.mark.parametrize("wrong", [b"words/part-1.txt*\n", b"words/part-1.txt*\n" * 20, b"\n", b"*\n"])
def test_lines_that_would_be_taken_for_others_leave_the_record_as_it_is(wrong, monkeypatch):
    monkeypatch.setattr(wheel_record, "_MOST", 1000)
    assert own_of_record(wrapped.wheel(wrong=wrong)).startswith(wrong)


def member(method: int, coded: bytes, size: int, name: bytes = b"name", streamed: bool = False) -> bytes:
    head = struct.pack("<4s5H3IHH", b"PK\3\4", 20, 8 * streamed, method, 0, 0, 0, len(coded), size, len(name), 0)
    return head + name + coded


def deflated(content: bytes) -> bytes:
    return zlib.compress(content, wbits=-15)


MEMBERS = {
    "nothing": (8, deflated(b""), 0, b""),
    "text": (8, deflated(b"text"), 4, b"text"),
    "stored": (0, b"text", 4, b"text"),
    "65,536 bytes": (8, deflated(bytes(65536)), 65536, bytes(65536)),
    "65,537 bytes": (8, deflated(bytes(65537)), 65537, None),
    "another size": (8, deflated(b"text"), 5, None),
    "a longer size": (8, deflated(b"text"), 3, None),
    "bytes behind it": (8, deflated(b"text") + b"\0", 4, None),
    "cut": (8, deflated(b"text" * 9)[:-2], 36, None),
    "much longer than what it has": (8, b"\0\0\0\xff\xff" * 13 + deflated(b""), 0, None),
    "another method": (12, b"text", 4, None),
}


@pytest.mark.parametrize("name", MEMBERS)
def test_members_that_are_not_opened_are_known_if_they_are_short(name):
    method, coded, size, content = MEMBERS[name]
    data = member(method, coded, size) + HEADER + b"last" + bytes(1000)
    remains = np.frombuffer(b"name*", np.uint8)
    line = record_of(remains, data, []).tobytes()
    assert line == naive_zip.record(b"name*", data, [], [])
    assert line.endswith(b",,\n") if content is None else line.endswith(b",%d\n" % len(content))


@pytest.mark.parametrize("method", [0, 8])
def test_members_in_each_other_are_read_within_limits(method, monkeypatch):
    read, reading = [], wheel_record._content
    monkeypatch.setattr(wheel_record, "_content", lambda *one: read.append(one[0].sizes[0]) or reading(*one))
    count, size = 2000, 35
    parts = (member(method, b"", 60_000, b"%05d" % number)[:18] for number in range(count))
    rest = (
        struct.pack("<IIHH", size * (count - 1 - number), 60_000, 5, 0) + b"%05d" % number for number in range(count)
    )
    data = b"".join(begin + end for begin, end in zip(parts, rest, strict=True))
    ours = record_of(np.frombuffer(b"00000*\n01999*", np.uint8), data, []).tobytes()
    assert ours == naive_zip.record(b"00000*\n01999*", data, [], [])
    assert 0 < sum(read) <= 65536 + 2 * len(data)


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
    for remains in (b"x" * 99 + b"\n", b"\n" * 101, b"x*\n" * 40):
        with pytest.raises(DamagedError):
            record_of(np.frombuffer(remains, np.uint8), b"", [])
