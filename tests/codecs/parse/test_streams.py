"""Headers of zip, gzip and PNG: what is opened, and what stays closed."""

import gzip
import struct
import zlib

import numpy as np
import pytest

from squeeze.codecs.parse.protocol import Found
from squeeze.codecs.parse.room import Room
from squeeze.codecs.parse.streams import Gzip, Png, ZipMember, Zlib
from squeeze.errors import DamagedError
from tests.makers import inputs, wrapped

TEXT = inputs.words(2_000)
NOTHING = np.zeros(0, np.uint8)


def opened(wrapper, data: bytes) -> Found | None:
    return wrapper.open(data, next(wrapper.find(data)), Room(1 << 20))


def gzip_with(flags: int, fields: bytes) -> bytes:
    plain = gzip.compress(TEXT, mtime=0)
    return plain[:3] + bytes([flags]) + plain[4:10] + fields + plain[10:]


@pytest.mark.parametrize(
    ("flags", "fields"),
    [
        (0, b""),
        (4, b"\x05\0extra"),
        (8, b"name\0"),
        (16, b"a comment\0"),
        (2, b"\x12\x34"),
        (31, b"\x02\0abname\0comment\0\x12\x34"),
    ],
)
def test_a_gzip_header_may_have_fields(flags, fields):
    found = opened(Gzip(), gzip_with(flags, fields))
    assert found and found.content.tobytes() == TEXT and found.kind == Gzip.kind


@pytest.mark.parametrize("data", [gzip_with(0, b"")[:40], gzip_with(8, b"name")[:14], gzip_with(4, b"")[:6]])
def test_a_gzip_file_that_is_cut_off_stays_closed(data):
    assert opened(Gzip(), data) is None


def test_a_stored_zip_member_stays_closed():
    archive = bytearray(wrapped.zip_archive({"a.txt": TEXT}))
    assert opened(ZipMember(), bytes(archive))
    archive[8] = 0
    assert opened(ZipMember(), bytes(archive)) is None
    assert opened(ZipMember(), bytes(archive[:20])) is None


def test_a_zlib_stream_needs_its_checksum():
    data = zlib.compress(TEXT)
    found = opened(Zlib(), data)
    assert found and found.size == len(data) - 2
    assert opened(Zlib(), data[:-1] + b"!") is None


def test_an_image_needs_chunks_of_one_length_and_their_checksums():
    image = wrapped.png(TEXT[:1_984], chunk=100)
    found = opened(Png(), image)
    assert found and found.size == len(image) - 33 - 12
    place = image.index(b"IDAT")
    assert opened(Png(), image[: place + 104] + b"!!!!" + image[place + 108 :]) is None
    other = bytearray(image)
    other[place - 4 : place] = struct.pack(">I", 99)
    assert opened(Png(), bytes(other)) is None


@pytest.mark.parametrize("length", [1, 31])
def test_an_image_of_tiny_chunks_stays_closed(length):
    assert opened(Png(), wrapped.png(TEXT[:1_984], chunk=length)) is None
    assert opened(Png(), wrapped.png(TEXT[:1_984], chunk=length + 32))


@pytest.mark.parametrize("count", [1, 5000])
def test_an_image_with_bytes_behind_its_stream_stays_closed(count):
    data = wrapped.png(TEXT[:1_984], chunk=1 << 20)
    begin = data.index(b"IDAT") + 4
    size = int.from_bytes(data[begin - 8 : begin - 4], "big")
    content = data[begin : begin + size] + bytes(count)
    chunk = len(content).to_bytes(4, "big") + b"IDAT" + content + zlib.crc32(b"IDAT" + content).to_bytes(4, "big")
    assert opened(Png(), data[: begin - 8] + chunk + data[begin + size + 4 :]) is None


@pytest.mark.parametrize("extra", [b"", b"x" * 5, b"x\x9c\0\0\0\0", b"x\x9c\xff\xff\xff\xff"])
def test_impossible_chunks_are_refused(extra):
    with pytest.raises(DamagedError, match="impossible"):
        Png().close(NOTHING, NOTHING, extra)
