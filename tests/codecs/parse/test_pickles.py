"""Pickles lose the numbers of what they remember, and come back, also by the specification."""

import collections
import datetime
import pickle

import numpy as np
import pytest

from squeeze.codecs.parse import pickles
from squeeze.codecs.parse.pickles import Pickle
from squeeze.codecs.parse.room import FIELD, Room
from squeeze.errors import SqueezeError
from tests.codecs.parse import trees
from tests.references import naive_pickle

NOTHING = np.empty(0, np.uint8)
DAYS = [datetime.date(2020, 1 + number % 12, 1 + number % 28) for number in range(300)]
VALUES = {f"name {number}": [number, 1 << number, number / 7, (day, DAYS[0])] for number, day in enumerate(DAYS)}
OBJECTS = [VALUES, collections.OrderedDict(VALUES), {b"raw" * 90, "\xe9", None, True}, frozenset("abc"), -7, "x" * 300]


def opened(data: bytes) -> list[bytes]:
    """Return the contents of pickles in data, which comes back as it was, also by the specification."""
    root = trees.opened(data)
    contents = [child.found.content.tobytes() for child in root.children if child.found and child.kind == Pickle.kind]
    for content in contents:
        assert naive_pickle.close(content) in data
    return contents


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_pickles_lose_their_numbers(protocol):
    data = pickle.dumps(OBJECTS, protocol)
    (content,) = opened(b"before" + data + b"after")
    assert len(content) < len(data)


def test_numbers_that_do_not_count_up_stay():
    data = pickle.dumps(VALUES, 2)
    assert data[3:5] == b"q\0"
    assert Pickle().open(data, 0, Room.of(len(data)))
    assert Pickle().open(data[:4] + b"\1" + data[5:], 0, Room.of(len(data))) is None


@pytest.mark.parametrize("cut", range(2, 900, 31))
def test_a_pickle_that_ends_early_stays_what_it_is(cut):
    assert opened(pickle.dumps(VALUES, 2)[:cut]) == []


def test_long_attempts_in_vain_are_counted():
    for data in (b"\x80\2]" + b"N" * 5_000, b"\x80\2]" + b"N" * 5_000 + b"."):
        room = Room(1 << 20)
        assert Pickle().open(data, 0, room) is None
        assert Room(0).attempts - room.attempts > FIELD * 5_000


def test_numbers_that_make_a_pickle_too_large_are_refused(monkeypatch):
    content = np.frombuffer(b"q" * 300 + b".", np.uint8)
    assert Pickle().close(content, NOTHING, b"").size == 256 * 2 + 44 * 5 + 1
    monkeypatch.setattr(pickles, "MOST_OPENED", 700)
    with pytest.raises(SqueezeError, match="opcodes of a pickle are impossible"):
        Pickle().close(content, NOTHING, b"")


@pytest.mark.parametrize(
    "content", [b"", b"N", b"h\1.", b"r.", b"j\0.", b"X\xff\xff\xff\x7f.", b"cno line", b"\xff.", b"K", b"N.N"]
)
def test_refuses_impossible_opcodes(content):
    with pytest.raises(SqueezeError):
        Pickle().close(np.frombuffer(content, np.uint8), NOTHING, b"")
    with pytest.raises(SqueezeError, match="opcodes of a pickle are impossible"):
        Pickle().close(np.frombuffer(b"N.", np.uint8), NOTHING, b"\0")
