"""Streams of PDF that are coded by LZW are opened, and come back as any encoder wrote them."""

import numpy as np
import pytest

from squeeze.codecs.parse.early_lzw import EarlyLzw
from squeeze.codecs.parse.finding import parse
from squeeze.codecs.parse.room import Room
from squeeze.errors import DamagedError
from tests.codecs.parse import trees
from tests.makers import gifs, inputs
from tests.references import naive_gif

TEXT = inputs.words(30_000)
BEFORE, AFTER = b"4 0 obj <</Filter /LZWDecode /Length 99>>\nstream\r\n", b"\nendstream"
NOTHING = np.empty(0, np.uint8)


def pdf(codes: list[int]) -> bytes:
    return BEFORE + gifs.packed_early(codes) + AFTER


def opened(data: bytes) -> list[bytes]:
    """Return the contents in data, which come back as they were, also by the naive decoder."""
    root = parse(np.frombuffer(data, np.uint8), lambda data, found: found.kind == 17)
    assert trees.closed(root, len(data)) == data
    for child in root.children:
        found = child.found
        assert naive_gif.close_early(found.content.tobytes(), found.extra) == data[found.start :][: found.size]
    return [child.node.own.tobytes() for child in root.children]


@pytest.mark.parametrize("clears_at", [300, 4094, 4095, 4096, 4097])
def test_streams_become_bytes(clears_at):
    assert opened(pdf(gifs.codes_of(TEXT, 8, clears_at))) == [TEXT]


def test_other_codes_are_noted():
    codes = gifs.codes_of(TEXT, 8, 4095, 60)
    assert opened(pdf(codes)) == [TEXT]
    (content,) = opened(pdf(codes[:-1]))  # without an end
    assert content.startswith(TEXT)


def test_an_encoder_costs_few_bytes():
    data = pdf(gifs.codes_of(TEXT, 8, 4095))
    found = EarlyLzw().open(data, len(BEFORE), Room(1 << 20))
    assert found and len(found.extra) <= 4


@pytest.mark.parametrize(
    "data", [BEFORE, BEFORE + AFTER, BEFORE + b"\x80\0\0" * 30, BEFORE + b"\x80" + b"\x7f" * 90 + AFTER]
)
def test_other_streams_stay_closed(data):
    assert opened(data) == []


def test_content_without_room_stays_closed():
    data = pdf(gifs.codes_of(TEXT, 8, 4095))
    assert EarlyLzw().open(data, len(BEFORE), Room(100)) is None


def test_codes_that_are_read_in_vain_cost_what_they_stand_for():
    data = BEFORE + gifs.packed_early([256, 0, *range(258, 4095), *[2000] * 8000, 256, 0, 500])  # code 500 is not known
    room = Room(1 << 26)
    before = room.attempts
    assert EarlyLzw().open(data, len(BEFORE), room) is None
    assert before - room.attempts > 500 * len(data)


@pytest.mark.parametrize("extra", [b"", b"\x02\0", b"\xff\x1f\xff\x03", b"\xff\x1f\0\1", b"\xff\x1f\0\0\xff\x7f"])
def test_impossible_closings_are_refused(extra):
    with pytest.raises(DamagedError):
        EarlyLzw().close(np.frombuffer(TEXT, np.uint8), NOTHING, extra)
