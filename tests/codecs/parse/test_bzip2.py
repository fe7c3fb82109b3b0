"""bzip2 streams of libbzip2 are opened, and the encoder of the package writes the same bytes."""

import bz2

import numpy as np
import pytest

from squeeze.codecs.parse.bzip2 import sorting
from squeeze.codecs.parse.bzip2.stream import Bzip2
from squeeze.codecs.parse.room import Room
from squeeze.errors import SqueezeError
from tests.codecs.parse import trees
from tests.makers import inputs
from tests.references import naive_bzip2

_random = np.random.default_rng(5)
CONTENTS = {
    "one byte": b"a",
    "runs": b"".join(bytes([i % 256]) * i for i in (1, 3, 4, 5, 254, 255, 256, 259, 511, 600)),
    "a period": b"ab" * 4_000,
    "one value": bytes(30_000),
    "noise": inputs.random_bytes(3_000),
    "words": inputs.words(20_000),
    "skewed": b"".join(bytes([i]) * (1 << max(0, 14 - i)) for i in range(40)),
    "few symbols": _random.integers(0, 3, 5_000, np.uint8).tobytes(),
    "many blocks": inputs.random_bytes(99_990) + b"x" * 600 + inputs.random_bytes(60_000) + inputs.words(50_000),
    "copies": inputs.words(20_000) * 3,
}
SMALL = [name for name in CONTENTS if len(CONTENTS[name]) < 10_000]


def opened(data: bytes):
    wrapper = Bzip2()
    (place,) = wrapper.find(data)
    return wrapper.open(data, place, Room(1 << 24))


@pytest.mark.parametrize("level", [1, 9])
@pytest.mark.parametrize("name", CONTENTS)
def test_streams_come_back(name, level):
    stream = bz2.compress(CONTENTS[name], level)
    found = opened(b"before" + stream + b"after")
    assert (found.start, found.size) == (6, len(stream))
    assert found.content.tobytes() == CONTENTS[name] and len(found.extra) <= 4
    assert Bzip2().close(found.content, found.content[:0], found.extra).tobytes() == stream


@pytest.mark.parametrize("name", SMALL)
def test_streams_are_as_specified(name):
    stream = bz2.compress(CONTENTS[name], 1)
    assert naive_bzip2.close(CONTENTS[name], opened(stream).extra) == stream


def test_streams_in_a_row_are_opened_each():
    data = bz2.compress(CONTENTS["words"]) + bz2.compress(CONTENTS["few symbols"])
    root = trees.opened(data)
    assert [child.node.own.tobytes() for child in root.children] == [CONTENTS["words"], CONTENTS["few symbols"]]


def test_damaged_and_cut_streams_stay_closed():
    stream = bz2.compress(CONTENTS["words"])
    for size in range(14, len(stream), 301):
        assert opened(stream[:size]) is None
    for place in range(14, len(stream), 307):
        assert opened(stream[:place] + bytes([stream[place] ^ 16]) + stream[place + 1 :]) is None


def test_bombs_stay_closed():
    room = Room(1 << 16)
    assert Bzip2().open(bz2.compress(bytes(1 << 20)), 0, room) is None
    assert room.attempts < Room(0).attempts


@pytest.mark.parametrize("extra", [b"", b"\0", b"\x0a", b"\x01\xff\xff\xff\xff\x7f", b"\x01\0\0", b"\x01\x80"])
def test_impossible_closings_are_refused(extra):
    content = np.frombuffer(CONTENTS["runs"], np.uint8)
    with pytest.raises(SqueezeError):
        Bzip2().close(content, content[:0], extra)


@pytest.mark.parametrize("size", [1, 2, 7, 8, 9, 40, 300])
def test_rotations_are_sorted(size):
    for values in (1, 2, 256):
        block = _random.integers(0, values, size, np.uint8)
        last, first = sorting.transform(block)
        rotations = sorted(block.tobytes()[i:] + block.tobytes()[:i] for i in range(size))
        assert last.tobytes() == bytes(one[-1] for one in rotations)
        assert rotations.index(block.tobytes()) == first
