"""Files of byte code become streams, and come back, also by the specification."""

import base64
import io
import marshal
import tarfile

import numpy as np
import pytest

import squeeze
from squeeze.codecs.parse.pyc import places, streams
from squeeze.codecs.parse.pyc.objects import HEADER
from squeeze.codecs.parse.pyc.wrapper import Pyc
from squeeze.codecs.parse.room import FIELD, Room
from squeeze.errors import DamagedError
from tests.codecs.parse.trees import wrappers
from tests.makers import byte_code
from tests.references import naive_pyc

NOTHING = np.empty(0, np.uint8)


def opened(data: bytes) -> list[bytes]:
    """Return the contents of files of byte code in data, which comes back as it was, also by the specification."""
    found = wrappers(data, Pyc.kind)
    for child in found:
        assert child.found
        start, content = child.found.start, child.node.own.tobytes()
        assert naive_pyc.close(content, child.found.extra) == data[start : start + child.found.size]
    return [child.node.own.tobytes() for child in found]


@pytest.mark.parametrize("module", [tarfile, base64, streams])
def test_files_of_this_python_become_streams(module):
    data = byte_code.of_module(module)
    (content,) = opened(b"before" + data + b"after")
    assert content.endswith(b"\n") and len(content) < len(data)


@pytest.mark.parametrize("version", byte_code.VERSIONS)
def test_files_of_other_pythons_become_streams(version):
    data = byte_code.by_hand(version)
    (content,) = opened(data)
    assert b"function\n" in content and content.startswith(data[:HEADER])


def test_all_objects_are_known():
    values = (
        None,
        True,
        ...,
        StopIteration,
        -7,
        1 << 70,
        0.5,
        2j,
        b"raw\n",
        "text",
        "two\nlines",
        "\xe9\u4e2d",
        "x" * 300,
    )
    every = (*values, list(values), set(values[:3]), frozenset(values[4:6]), {1: values, "k": [None]}, (1,) * 300, ())
    for version in (2, 3, 4):  # those before write floats as text
        data = byte_code.header(3495) + marshal.dumps(every, version)
        found, end = streams.split(data, 0, Room.of(0))
        assert end == len(data) and streams.join(found) == data


def test_caches_follow_from_their_opcodes():
    code = bytes([151, 0, 116, 1, 0, 0, 0, 0, 83, 0, 116, 2, 0, 0, 0, 0, 0, 0, 83, 9])
    data = byte_code.with_code(code)
    found, _ = streams.split(data, 0, Room.of(0))
    assert found.caches == {116: 2} and found.code == bytes([151, 0, 116, 1, 83, 0, 116, 2, 0, 0, 83, 9])
    assert streams.join(found) == data
    assert streams.split(byte_code.with_code(code + b"\1"), 0, Room.of(0))[0].caches == {}


@pytest.mark.parametrize("module", [tarfile, base64, io])
def test_places_become_rows(module):
    tables = byte_code.tables(module)
    for table in tables:
        rows, more = places.to_rows(table) or (b"", b"")
        assert rows and places.to_table(rows, io.BytesIO(more)) == table
    assert len(tables) > 5


def test_places_that_python_writes_in_another_form_stay_what_they_are():
    assert places.to_rows(bytes([0x80, 0x11])) == (bytes([0, 1, 1, 0]), b"")
    for table in (b"\x80", b"\x00\x11", b"\xd0\1\2", b"\xf0\0\0\2\3", b"\xf0\0\0\0\3", b"\xf0\x40\0\0\2\3"):
        assert places.to_rows(table) is None
    far = bytes([0xF1, 0x40 | 5, 0x40, 9, 3, 2, 9])  # a difference of lines of 36869, three lines more
    assert places.to_rows(far) == (bytes([5, 1, 7, 1 | 32 | 64]), b"\x90\1\3")


def test_a_file_of_byte_code_becomes_smaller_by_it():
    data = byte_code.of_module(tarfile)
    coded = squeeze.compress(data, level=1)
    assert squeeze.decompress(coded) == data and len(coded) < 0.95 * len(squeeze.compress(data, level=1, parse=False))


@pytest.mark.parametrize("place", range(HEADER, 600, 29))
def test_what_is_no_file_of_byte_code_stays_what_it_is(place):
    data = byte_code.of_module(base64)
    broken = data[:place] + b"?" + data[place + 1 :]
    for found in (broken, data[:place]):
        opened(found)
    deep = byte_code.header(3495) + b"c" + b"(\1\0\0\0" * 5000
    assert Pyc().open(deep, 0, Room.of(len(deep))) is None
    assert Pyc().open(byte_code.header(3379) + data[HEADER:], 0, Room.of(len(data))) is None


@pytest.mark.parametrize(
    "change",
    [
        {"objects": b""},
        {"objects": byte_code.header(3495) + b"\2"},
        {"objects": byte_code.header(3495) + b"s\xff\xff\xff\xff\x0f"},
        {"objects": byte_code.header(3495) + b"i\xff\xff\xff\xff\xff\1"},
        {"objects": byte_code.header(3495) + b"N", "texts": b"rest"},
        {"objects": byte_code.header(3495) + b"\1", "texts": b"x" * 256 + b"\n"},
        {"objects": byte_code.header(3000) + b"N"},
        {"objects": byte_code.header(3495) + b"N", "caches": {1: 16}},
        {"objects": byte_code.header(3495) + b"N", "code": b"\1", "caches": {1: 1}},
    ],
)
def test_refuses_impossible_streams(change):
    with pytest.raises(DamagedError):
        streams.join(streams.Streams(b"", b"", b"", b"", b"", {})._replace(**change))


def test_long_attempts_in_vain_are_counted():
    room, data = Room(1 << 20), byte_code.header(3495) + b"c" + bytes(20) + b"(\xff\xff\xff\x7f" + b"N" * 5_000
    assert Pyc().open(data, 0, room) is None
    assert Room(0).attempts - room.attempts > FIELD * 5_000
    room, module = Room(100), byte_code.of_module(tarfile)
    assert Pyc().open(module, 0, room) is None and Room(0).attempts - room.attempts > len(module)


def test_a_number_in_places_that_no_line_has_leaves_the_table_closed():
    """Numbers of any length would take time in proportion to the square of the table."""
    assert places.to_rows(bytes([0xF0, *[0x7F] * 4, 1, 0, 1, 1]))
    assert places.to_rows(bytes([0xF0, *[0x7F] * 400_000, 1, 0, 1, 1])) is None


def test_caches_that_make_code_too_large_are_refused(monkeypatch):
    data = byte_code.with_code((bytes([1, 0]) + bytes(30)) * 10)
    found, _ = streams.split(data, 0, Room.of(0))
    assert found.caches == {1: 15} and streams.join(found) == data
    monkeypatch.setattr(streams, "MOST_OPENED", 319)
    with pytest.raises(DamagedError, match="streams of a file of byte code"):
        streams.join(found)


@pytest.mark.parametrize("extra", [b"", b"\x10\0\0", b"\x7f\0\0\0", b"\x10\0\0\0\1"])
def test_refuses_impossible_sizes(extra):
    with pytest.raises(DamagedError):
        Pyc().close(np.zeros(40, np.uint8), NOTHING, extra)


def test_files_in_an_archive_are_coded_together():
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for number, module in enumerate((tarfile, base64, streams)):
            data = byte_code.of_module(module)
            info = tarfile.TarInfo(f"{number}.pyc")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    assert len(opened(out.getvalue())) == 3
