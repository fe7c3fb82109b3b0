"""Class files of Java become streams, and come back, also by the specification."""

import io
import struct
import zipfile

import numpy as np
import pytest

from squeeze.codecs.parse.java import parts, streams
from squeeze.codecs.parse.java.wrapper import JavaClass
from squeeze.codecs.parse.room import FIELD, Room
from squeeze.errors import SqueezeError
from tests.codecs.parse.trees import wrappers
from tests.makers import classes
from tests.references import naive_class

NOTHING = np.empty(0, np.uint8)


def opened(data: bytes) -> list[bytes]:
    """Return the contents of class files in data, which comes back as it was, also by the specification."""
    found = wrappers(data, JavaClass.kind)
    for child in found:
        assert child.found
        assert (
            naive_class.close(child.node.own.tobytes(), child.found.extra)
            == JavaClass().close(child.node.own, NOTHING, child.found.extra).tobytes()
        )
    return [child.node.own.tobytes() for child in found]


def test_class_files_become_streams():
    data = classes.class_file()
    (content,) = opened(b"before" + data + b"after")
    assert content.endswith(b"\xc3\xa9\n") and b"Code\nLineNumberTable\ntwo\nlinesorg/example/Made\n" in content


def test_references_and_lines_become_differences():
    found, end = streams.split(classes.class_file(methods=2), 0, Room.of(0))
    assert end == len(classes.class_file(methods=2))
    assert found.code == b"\x2a\xb7\0\1\xb1" * 2
    rows = np.frombuffer(found.lines, ">u2").reshape(-1, 2).tolist()
    assert rows == [[0, 0], [2, 2], [2, 2], [0, 6], [2, 2], [2, 2]]
    assert found.constants.startswith(b"\1\1\2\0\x09\1\1" + b"\x07" + struct.pack(">h", 2 - 6))


@pytest.mark.parametrize("methods", [0, 1, 200])
@pytest.mark.parametrize("note", [b"", b"\n", b"x" * 65535])
def test_class_files_of_any_size_come_back(methods, note):
    assert len(opened(classes.class_file(methods, note))) == (methods > 0 or len(note) > 100)


def test_class_files_in_an_archive_are_opened():
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(3):
            archive.writestr(f"{number}.class", classes.class_file(number + 4))
    assert len(opened(out.getvalue())) == 3


@pytest.mark.parametrize("place", range(8, 480, 13))
def test_what_is_not_a_class_file_stays_what_it_is(place):
    data = classes.class_file()
    for broken in (data[:place], data[:place] + b"\xfe" + data[place + 1 :]):
        opened(broken)


def test_a_part_of_another_length_than_it_says_is_not_a_class_file():
    data = classes.class_file()
    at = data.rindex(b"\0\3any") + 1
    longer = data[:at] + b"\4" + data[at + 1 :]
    assert JavaClass().open(data, 0, Room.of(len(data))) and JavaClass().open(longer, 0, Room.of(len(data))) is None


@pytest.mark.parametrize(
    "change",
    [
        {"rest": b""},
        {"constants": b""},
        {"constants": b"\x0d"},
        {"constants": b"\2\xff\xff"},
        {"texts": b"no end"},
        {"texts": b"x" * 65537 + b"\n"},
        {"lines": b"\0"},
        {"code": b""},
        {"code": bytes(99)},
    ],
)
def test_refuses_impossible_streams(change):
    found, _ = streams.split(classes.class_file(), 0, Room.of(0))
    with pytest.raises(SqueezeError):
        streams.join(found._replace(**change))


def test_long_attempts_in_vain_are_counted():
    """Every header is among the constants of those before it: all have the same thousands of constants behind them."""
    data = (b"\x05\xca\xfe\xba\xbe\0\0\0\x34" + b"\x14\xff\x0f\x07\0\0") * 2_000
    room = Room(1 << 20)
    assert JavaClass().open(data, 1, room) is None
    assert Room(0).attempts - room.attempts > FIELD * 5_000
    room, big = Room(100), classes.class_file(methods=300)
    assert JavaClass().open(big, 0, room) is None and Room(0).attempts - room.attempts > len(big)


def test_streams_are_no_class_file_themselves(monkeypatch):
    tried, opens = list[int](), JavaClass.open
    monkeypatch.setattr(JavaClass, "open", lambda self, data, *at: tried.append(len(data)) or opens(self, data, *at))
    data = classes.class_file()
    assert len(opened(data)) == 1 and tried == [len(data)]


def test_attributes_in_attributes_end():
    nested = b"\0\1\0\1\0\0\0\0\0\0\0\0\0\0\0\0\0\0" * 9
    data = b"\xca\xfe\xba\xbe\0\0\0\x34\0\2\1\0\4Code" + bytes(12) + nested
    with pytest.raises(SqueezeError, match="class file are impossible"):
        streams.split(data, 0, Room.of(0))
    assert str(parts.impossible()).endswith("the file is damaged")


@pytest.mark.parametrize("extra", [b"", b"\1\1\1", b"\x7f\0\0\0", b"\1\1\1\1\0"])
def test_refuses_impossible_sizes(extra):
    with pytest.raises(SqueezeError):
        JavaClass().close(np.zeros(40, np.uint8), NOTHING, extra)
