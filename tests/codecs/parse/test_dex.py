"""Android executables lose what follows from their names, and come back, also by the specification."""

import struct
import tracemalloc

import numpy as np
import pytest

from squeeze.codecs.parse import dex
from squeeze.codecs.parse.dex import Dex
from squeeze.codecs.parse.room import Room
from squeeze.errors import SqueezeError
from squeeze.system.binary import varint
from tests.codecs.parse import trees
from tests.makers import dexes
from tests.references import naive_dex

NOTHING = np.empty(0, np.uint8)
FILE = dexes.dex_file()


def opened(data: bytes):
    """Return the executables in data, which comes back as it was, also by the specification."""
    found = [child.found for child in trees.wrappers(data, Dex.kind)]
    for one in found:
        assert naive_dex.close(one.content.tobytes(), one.extra) == data[one.start : one.start + one.size]
    return found


def test_names_are_a_text_and_their_places_are_left_out():
    (found,) = opened(b"before" + FILE + b"after")
    parts = {
        name: found.content[begin:end].tobytes() for begin, end, name in Dex().segments(found.content, found.extra)
    }
    assert list(parts) == ["header", "types", "prototypes", "methods", "classes", "code", "names"]
    assert parts["names"].startswith(b"\n<init>\nLa/b;\nV\n") and b"two\0lines" in parts["names"]
    assert parts["types"] == bytes.fromhex("02000000 01000000 02000000 01000000")
    assert found.content.size == len(FILE) - 28 - 5 * 47 - 1  # a name of 200 bytes has a length of two
    assert [content.record for _, _, content in found.regions] == [4, 12, 8, 32, 0]


def test_an_executable_is_smaller_and_comes_back():
    data = dexes.dex_file(400)
    (found,) = opened(data)
    assert found.content.size < 0.7 * len(data)


@pytest.mark.parametrize("size", [0, 1, 127, 128, 16_383, 16_384, (1 << 21) - 1, 1 << 21])
def test_lengths_of_names_have_as_many_bytes_as_they_need(size):
    name = b"\xc3\xa9" + b"x" * max(size - 1, 0) if size else b""
    texts, starts = dex._with_lengths(b"a\0" + name + b"\0", 2)
    length = dexes.length(name)
    assert texts == b"\1a\0" + length + name + b"\0" and starts.tolist() == [0, 3]


@pytest.mark.parametrize(("names", "count"), [(b"", 1), (b"a\0", 0), (b"a\0", 2), (b"a\0b", 1)])
def test_refuses_another_number_of_names(names, count):
    with pytest.raises(SqueezeError):
        dex._with_lengths(names, count)


def test_refuses_more_names_than_files_have():
    count = dex._MOST_NAMES + 1
    numbers = struct.pack("<20I", (1 << 32) - 1, 112, 0x12345678, 0, 0, 0, count, 112, *[0] * 12)
    content = np.frombuffer(b"035\0" + numbers + b"\n" * count, np.uint8)
    tracemalloc.start()
    with pytest.raises(SqueezeError):
        Dex().close(content, NOTHING, varint(0) + varint(count))
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 4 * content.size


def test_other_checksums_are_kept():
    (found,) = opened(FILE[:9] + b"\xff" + FILE[10:])
    assert len(found.extra) == 24 + 3


@pytest.mark.parametrize(
    "data",
    [
        FILE[:-1],
        FILE[:100],
        dexes.dex_file(gap=bytes(4)),
        dexes.with_sums(FILE[:36] + b"\x71" + FILE[37:]),  # another length of the header
        dexes.with_sums(FILE[:40] + b"\x12\x34\x56\x78" + FILE[44:]),  # the highest byte first
        dexes.with_sums(FILE[:116] + b"\0" + FILE[117:]),  # another place of a name
        dexes.with_sums(FILE[:56] + b"\xff\xff\xff\x7f" + FILE[60:]),  # more names than bytes
        dexes.with_sums(FILE[:112] + b"\xf0\xff" + FILE[114:]),  # names behind the end
    ],
)
def test_what_would_not_come_back_stays(data):
    assert opened(data) == []


def test_attempts_in_vain_are_counted():
    room = Room(1 << 20)
    data = dexes.with_sums(FILE[:116] + b"\0" + FILE[117:])
    assert Dex().open(data, 0, room) is None and Room(0).attempts - room.attempts > len(data)
    assert Dex().open(FILE, 0, Room(100)) is None


@pytest.mark.parametrize("extra", [b"", b"\1", b"\0\0", b"\x48\x90\x3e", b"\x48\x01", b"\x48\xff\7" + bytes(23)])
def test_refuses_an_impossible_extra(extra):
    (found,) = opened(FILE)
    with pytest.raises(SqueezeError):
        Dex().close(found.content, NOTHING, extra)


@pytest.mark.parametrize("size", [0, 50, 84, 300])
def test_refuses_a_content_that_was_cut(size):
    (found,) = opened(FILE)
    with pytest.raises(SqueezeError):
        Dex().close(found.content[:size], NOTHING, found.extra)
