"""Percent-encoding, quoted-printable and \\u escapes become what they stand for, and come back the same."""

import binascii
import email.quoprimime
import json
import quopri
import urllib.parse

import numpy as np
import pytest

from squeeze.codecs.parse import escaping
from squeeze.codecs.parse.escapes import JsonEscapes, Percent, QuotedPrintable
from squeeze.codecs.parse.room import Room
from squeeze.codecs.parse.wrappers import WRAPPERS
from squeeze.errors import DamagedError
from tests.codecs.parse.trees import wrappers
from tests.makers import inputs
from tests.references import naive_escapes

WORDS = inputs.words(4_000).decode()
TEXT = "Привет, «мир» 😀 & <déjà vu>; 100 % = все\n" * 40 + WORDS
LATIN = TEXT.replace("в", "é").encode("latin-1", "replace")


def opened(data: bytes, wrapper=None) -> list:
    """Return the wrappers with escapes in data, which come back as they were, also by the naive decoder."""
    found = [child.found for child in wrappers(data, 11, 12, 13)]
    for one in found:
        closed = WRAPPERS[one.kind].close(one.content, one.content[:0], one.extra).tobytes()
        assert naive_escapes.close(one.kind, one.content.tobytes(), one.extra) == closed
    assert wrapper is None or {one.kind for one in found} == {wrapper.kind}
    return found


@pytest.mark.parametrize(
    "data",
    [
        urllib.parse.quote(TEXT),
        urllib.parse.quote(TEXT, safe=" /<>"),
        urllib.parse.quote(TEXT).replace("%D", "%d"),
        urllib.parse.urlencode({"a": TEXT, "b": WORDS + "+" * 20}),
        "\n".join("https://example.org/" + urllib.parse.quote(word) for word in TEXT.split()),
    ],
)
def test_percent_encoding_becomes_bytes(data):
    found = opened(data.encode(), Percent)
    assert sum(one.content.size for one in found) < 0.6 * len(data)
    assert max(len(one.extra) for one in found) <= 100


def test_a_form_has_plus_signs_for_spaces():
    (found,) = opened(urllib.parse.quote_plus("ключ & слово " * 40).encode())
    assert found.content.tobytes().decode() == ("ключ & слово " * 40)[:-1]


@pytest.mark.parametrize(
    "data",
    [
        quopri.encodestring(TEXT.encode()),
        binascii.b2a_qp(TEXT.replace("\n", "\r\n").encode(), istext=True),
        *(email.quoprimime.body_encode(LATIN.decode("latin-1"), width).encode() for width in (70, 76, 100)),
        quopri.encodestring(b"spaces at the end \nd\xe9j\xe0 vu\t\n" * 30),
    ],
)
def test_quoted_printable_becomes_lines(data):
    (found,) = opened(b"Subject: one\n\n" + data + b"\n--end", QuotedPrintable)
    assert b"=\n" not in found.content.tobytes() and b"=\r" not in found.content.tobytes()
    assert len(found.extra) <= 10


def test_breaks_between_words_are_noted():
    words = iter((TEXT.encode() + b" ").hex(" ", 8).upper().split())
    data = b"=\n".join(b"=C3=A9 " + b" ".join(next(words).encode() for _ in range(4)) for _ in range(40))
    (found,) = opened(data, QuotedPrintable)
    assert found.content.size < len(data)


@pytest.mark.parametrize(
    "data", [json.dumps([TEXT, WORDS]), json.dumps([TEXT]).replace("\\u00e", "\\u00E"), "\\u003ca>" * 40]
)
def test_escapes_of_json_become_utf_8(data):
    (found,) = opened(data.encode(), JsonEscapes)
    assert len(found.extra) <= 8 and found.content.tobytes().decode()


def test_what_json_must_escape_stays():
    (found,) = opened(b"\\u00e9" * 16 + rb'\ud800\u0000\u0022\u005c\u007f"\udc00\ud83d\ude00\\u1234')
    assert found.content.tobytes().decode() == "é" * 16 + r'\ud800\u0000\u0022\u005c\u007f"\udc00😀\ሴ'


def test_text_in_both_ways_stays_closed():
    assert opened(b"".join(b"a%%%02xbc" % byte + bytes([byte]) * (k % 2) for byte in b"defg" for k in range(90))) == []


@pytest.mark.parametrize(
    "data", [b"", b"%", b"100 % of all, " * 99, b"a=b;" * 99, b"%41" * 15, b"=\n" * 99, b"\\u12" * 99]
)
def test_other_text_stays_as_it_is(data):
    assert opened(data) == []


def test_noise_with_escapes_comes_back():
    marks = np.frombuffer(b"%=\\u0aAfF \n\r+", np.uint8)
    for seed in range(30):
        opened(marks[np.frombuffer(inputs.random_bytes(3_000, seed), np.uint8) % marks.size].tobytes())


def test_text_is_read_up_to_a_second_soft_break_in_a_row():
    text = np.frombuffer(b"a=41=\nb=\n=\nc", np.uint8)
    content, actions, used = escaping.read(text, escaping.Rule(escaping.QUOTED, 1))
    assert (content.tobytes(), actions.tolist(), used) == (b"aAb", [0, 1, 2], 7)


def test_content_without_room_stays_closed():
    data = urllib.parse.quote(TEXT).encode()
    room = Room(100)
    assert Percent().open(data, next(Percent().find(data)), room) is None


@pytest.mark.parametrize("wrapper", [Percent(), QuotedPrintable(), JsonEscapes()])
@pytest.mark.parametrize(
    "extra",
    [b"", b"\x18\0\0", b"\0\xe9\x07\0", b"\0\0\x81\x02", b"\0\0\x05abc", b"\0\0\0\xff\x03", b"\0\0\0\x0f\xff\xff\x7f"],
)
def test_impossible_closings_are_refused(wrapper, extra):
    with pytest.raises(DamagedError):
        wrapper.close(np.frombuffer(b"content \xc3\xa9", np.uint8), np.empty(0, np.uint8), extra)


@pytest.mark.parametrize(
    ("content", "extra"), [(b"\xc3", b"\0\0\0"), (b"\xc3\xa9", b"\0\0\0\0"), (b"\xc3\xa9", b"\0\0\x01\xc3")]
)
def test_characters_that_are_none_are_refused(content, extra):
    with pytest.raises(DamagedError):
        JsonEscapes().close(np.frombuffer(content, np.uint8), np.empty(0, np.uint8), extra)
