"""Parts of files: whole, cut off, and damaged anywhere."""

import io

import pytest

from squeeze.errors import DamagedError
from squeeze.system.part_file import PartFile, PartWriter, is_whole, passed_on


def part(data: bytes, description: object) -> bytes:
    sink = io.BytesIO()
    writer = PartWriter(sink)
    for place in range(0, len(data), 7):
        writer.write(data[place : place + 7])
    writer.finish(description)
    return sink.getvalue()


@pytest.mark.parametrize("data", [b"", b"x", b"some bytes " * 20])
def test_a_part_gives_its_bytes_and_what_is_known_of_them(data):
    found, sink = PartFile(io.BytesIO(part(data, ["known", 1 << 63]))), io.BytesIO()
    assert found.description == ["known", 1 << 63] and found.size == len(data)
    first = found.read(len(data) // 2)
    found.pass_on(len(data) - len(first), sink)
    found.check()
    assert first + sink.getvalue() == data


def test_one_that_is_cut_off_or_damaged_is_not_whole():
    whole = part(b"some bytes", [1, 2])
    assert is_whole(io.BytesIO(whole)) and is_whole(io.BytesIO(whole), lambda known: known == [1, 2])
    assert not is_whole(io.BytesIO(whole), lambda known: len(known) == 3)
    for place in range(len(whole)):
        assert not is_whole(io.BytesIO(whole[:place]))
        assert not is_whole(io.BytesIO(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :]))


def test_bytes_that_changed_are_found_at_the_end():
    found = PartFile(io.BytesIO(b"S" + part(b"some bytes", None)[1:]))
    found.pass_on(found.size, io.BytesIO())
    with pytest.raises(DamagedError, match="a part of the file is damaged"):
        found.check()


def test_a_file_is_passed_on_while_it_is_hashed():
    sink = io.BytesIO()
    assert b"".join(passed_on(io.BytesIO(b"bytes" * 9), sink)) == sink.getvalue() == b"bytes" * 9
