"""Attempts that open nothing are counted, so that many headers before the same bytes take time in proportion."""

import base64
import struct
import zlib

import numpy as np
import pytest

from squeeze.codecs.parse.finding import parse
from squeeze.codecs.parse.room import Room
from squeeze.codecs.parse.streams import Gzip, Png, ZipMember, Zlib
from squeeze.codecs.parse.wrappers import WRAPPERS
from tests.codecs.parse import trees
from tests.makers import inputs

TEXT, HEADERS = inputs.words(60_000), 300
CUT = zlib.compress(TEXT)[2:-300]  # a stream without its end


def pngs() -> bytes:
    """Return headers of PNG images with a chunk up to the same damaged data, which begins like their own."""
    size, end = 20, 20 * HEADERS
    headers = (b"\x89PNG\r\n\x1a\n" + struct.pack(">I", end - size * (n + 1)) + b"skipIDAT" for n in range(HEADERS))
    return b"".join(headers) + struct.pack(">I", len(CUT) + 2) + b"IDAT\x78\x9c" + CUT + bytes(20)


def members() -> bytes:
    """Return headers of zip members whose names reach to the same damaged data."""
    names = (30 * (HEADERS - 1 - n) for n in range(HEADERS))
    return b"".join(struct.pack("<4sHHH16xHH", b"PK\3\4", 20, 0, 8, name, 0) for name in names) + CUT


def sums() -> bytes:
    """Return zlib streams of many zeros with other checksums than theirs."""
    return (zlib.compress(bytes(1 << 18), 9)[:-4] + b"sums") * HEADERS


DATA = {
    "PNG": (Png(), pngs(), len(CUT)),
    "zip": (ZipMember(), members(), len(TEXT) // 2),
    "zlib": (Zlib(), sums(), 1 << 18),
    "gzip": (Gzip(), b"\x1f\x8b\x08\x08" * 30_000, 1 << 16),
}


@pytest.mark.parametrize("name", DATA)
def test_attempts_in_vain_are_counted(name):
    wrapper, data, least = DATA[name]
    places, room = list(wrapper.find(data))[: HEADERS // 3], Room(1 << 22)
    before = room.attempts
    assert all(wrapper.open(data, place, room) is None for place in places)
    assert before - room.attempts >= len(places) * least
    assert room.content == 1 << 22


@pytest.mark.parametrize("name", DATA)
def test_a_block_without_room_for_attempts_stays_closed(name):
    _, data, _ = DATA[name]
    once = trees.parsed(data)
    assert once.children == ()


def test_attempts_end_with_their_room(monkeypatch):
    streams = sums() + zlib.compress(TEXT)
    tried: list[int] = []
    for wrapper in WRAPPERS:
        monkeypatch.setattr(wrapper, "open", lambda data, place, room, wrapper=wrapper: opened(wrapper, room))

    def opened(wrapper, room) -> None:
        tried.append(wrapper.kind)
        room.spend(1 << 24)

    trees.parsed(streams)
    assert len(tried) == -(-Room.of(len(streams)).attempts // (1 << 24)) < HEADERS


def test_what_does_not_pay_is_an_attempt():
    calls: list[int] = []
    streams = zlib.compress(bytes(1 << 20), 9) * 40

    def pays(data, found) -> bool:
        calls.append(found.start)
        return False

    assert parse(np.frombuffer(streams, np.uint8), pays).children == ()
    assert len(calls) == -(-Room.of(len(streams)).attempts // (8 << 20)) < 40


def test_base64_whose_last_bits_are_not_zeros_is_opened_up_to_them():
    lines = base64.encodebytes(inputs.random_bytes(3_000))
    data = lines + b"QUFB" * 10 + b"QR==\n"
    root = trees.parsed(data)
    ((found,),) = (root.children,)
    assert found.node.own.tobytes() == base64.decodebytes(lines)
    one = base64.b64encode(inputs.random_bytes(298))
    assert one.endswith(b"==")
    other = one[:-3] + bytes([one[-3] + 1]) + b"=="
    (found,) = trees.parsed(other).children
    assert found.node.own.tobytes() == base64.b64decode(one)[:-1]
