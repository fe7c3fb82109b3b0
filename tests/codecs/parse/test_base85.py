"""Digits to the base 85 become bytes, and come back as they were, in lines or without."""

import base64
import zlib

import numpy as np
import pytest

from squeeze.codecs.parse.base85 import Ascii85, Base85
from squeeze.codecs.parse.room import Room
from squeeze.codecs.parse.wrappers import WRAPPERS
from squeeze.errors import DamagedError
from tests.codecs.parse import trees
from tests.codecs.parse.trees import wrappers
from tests.makers import inputs
from tests.references import naive_base85

NOISE = inputs.random_bytes(3_003)
ZLIB = zlib.compress(inputs.words(20_000))
NOTHING = np.empty(0, np.uint8)


def opened(data: bytes) -> list[bytes]:
    """Return the contents of digits in data, which come back as they were, also by the naive decoder."""
    found = [child.found for child in wrappers(data, 14, 15)]
    for one in found:
        closed = WRAPPERS[one.kind].close(one.content, NOTHING, one.extra).tobytes()
        assert naive_base85.close(one.kind, one.content.tobytes(), one.extra) == closed
    return [one.content.tobytes() for one in found]


@pytest.mark.parametrize("size", range(3_000, 3_004))
def test_digits_of_python_become_bytes(size):
    assert opened(b"data: '" + base64.b85encode(NOISE[:size]) + b"'\n") == [NOISE[:size]]


@pytest.mark.parametrize("size", range(2_990, 2_994))
@pytest.mark.parametrize("line", [0, 65, 72])
@pytest.mark.parametrize("adobe", [False, True])
@pytest.mark.parametrize("end", [b"", b"\n"])
def test_ascii85_becomes_bytes(size, line, adobe, end):
    content = bytes(8) + NOISE[: size - 100] + bytes(92)
    digits = base64.a85encode(content, wrapcol=line, adobe=adobe)
    digits = digits if adobe else digits + end + b"~>"
    assert opened(b"a stream\n" + digits + b"\nendstream") == [content]


@pytest.mark.parametrize("newline", [b"\r\n", b"\r"])
def test_other_newlines(newline):
    digits = base64.a85encode(NOISE, wrapcol=60).replace(b"\n", newline)
    assert opened(b"/ASCII85Decode filter" + newline + digits + newline + b"~>" + newline) == [NOISE]


def test_zeros_without_z():
    content = NOISE[:400] + bytes(80)
    assert opened(b"<~" + base64.a85encode(content).replace(b"z", b"!!!!!") + b"~>") == [content]


def patch(content: bytes) -> bytes:
    letters = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
    lines = [content[at : at + 52] for at in range(0, len(content), 52)]
    return b"".join(letters[len(line) - 1 : len(line)] + base64.b85encode(line, pad=True) + b"\n" for line in lines)


@pytest.mark.parametrize("size", [2_600, 2_601, 2_603])
def test_binary_patches_of_git(size):
    data = b"GIT binary patch\nliteral 9999\n" + patch(NOISE[:size]) + b"\nliteral 0\nHcmV?d00001\n\n"
    assert opened(data) == [NOISE[:size]]


def test_a_stream_in_digits_is_opened():
    for data in (base64.b85encode(ZLIB), b"<~" + base64.a85encode(ZLIB) + b"~>", b"a\ndelta 9\n" + patch(ZLIB)):
        root = trees.parsed(data)
        assert [node.own.size for node in root.nodes()][-1] == 20_000


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"~>",
        b"<~~>",
        b"<~" + b"u" * 200 + b"~>",
        b"~" * 200,
        NOISE.hex().encode(),
        b"<~" + base64.a85encode(NOISE)[:-1] + b" ~>",
        b"a\nliteral 9\n" + patch(NOISE[:40]),
    ],
)
def test_other_text_stays_as_it_is(data):
    assert opened(data) == []


def test_a_damaged_patch_is_opened_up_to_the_damage():
    data = b"a\nliteral 9\n" + patch(NOISE)
    assert all(NOISE.startswith(content) for content in opened(data[:900] + b"\n" + data[901:]))


def test_content_without_room_stays_closed():
    for wrapper, data in ((Base85(), base64.b85encode(NOISE)), (Ascii85(), b"<~" + base64.a85encode(NOISE) + b"~>")):
        assert wrapper.open(data, next(wrapper.find(data)), Room(100)) is None


@pytest.mark.parametrize(
    ("wrapper", "extra"),
    [
        *((Ascii85(), extra) for extra in (b"", b"\x10\1\1", b"\1\1\0", b"\0\1\1\1")),
        (Base85(), b"\2"),
        (Base85(), b"\1\1"),
    ],
)
def test_impossible_closings_are_refused(wrapper, extra):
    with pytest.raises(DamagedError):
        wrapper.close(np.frombuffer(NOISE, np.uint8), NOTHING, extra)
