"""UTF-16, base64 and hexadecimal digits are opened to what they stand for, and closed to the same text."""

import base64

import numpy as np
import pytest

from squeeze.codecs.parse.finding import parse
from squeeze.codecs.parse.texts import Lines
from squeeze.codecs.parse.wrappers import WRAPPERS
from tests.codecs.parse import trees
from tests.makers import inputs, wrapped

TEXT = inputs.words(5_000).decode()
NOISE = inputs.random_bytes(3_000)


def check(data: bytes) -> list[tuple[str, bytes]]:
    """Return the names and contents of the wrappers in data, which come back as they were."""
    root = trees.opened(data)
    return [(WRAPPERS[child.kind].name, child.node.own.tobytes()) for node in root.nodes() for child in node.children]


@pytest.mark.parametrize("order", ["utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_utf_16_becomes_utf_8(order, mark):
    text = mark + TEXT + "déjà vu 中文 😀\r\n" * 3 * bool(mark)
    assert check(text.encode(order)) == [("UTF-16", text.encode())]


def test_utf_16_among_other_bytes():
    data = NOISE + TEXT.encode("utf-16-le") + b"\x01\xd8" + NOISE
    ((name, content),) = check(data)
    assert name == "UTF-16" and content.startswith(TEXT.encode())


@pytest.mark.parametrize("newline", ["", "\n", "\r\n", "\\n"])
@pytest.mark.parametrize("size", [2_998, 2_999, 3_000])
def test_base64_becomes_bytes(newline, size):
    digits = base64.b64encode(NOISE[:size]).decode()
    lines = [digits[at : at + 76] for at in range(0, len(digits), 76)] if newline else [digits]
    data = b'{"image": "' + newline.join(lines).encode() + b'"}'
    assert check(data)[-1] == ("base64", NOISE[:size])


@pytest.mark.parametrize("upper", [False, True])
def test_hexadecimal_digits_become_bytes(upper):
    digits = NOISE.hex()
    data = b"key: " + (digits.upper() if upper else digits).encode() + b"\n"
    assert check(data) == [("hexadecimal", NOISE)]


@pytest.mark.parametrize(
    "data",
    [
        base64.b64encode(NOISE)[:-2] + b"*=",
        base64.b64encode(NOISE[:-1])[:-2] + b"/=",  # padding bits that are not zero
        b"A" * 59,
        NOISE.hex().encode()[:120],
        b"\xff\xfe" + b"\x00\xd8" * 50,
    ],
)
def test_what_is_not_canonical_is_opened_in_part_or_not_at_all(data):
    contents = [content for _, content in check(data)]
    assert all(len(content) < len(data) and NOISE.startswith(content) for content in contents)


def test_lines_that_end_in_cr_lf_lose_the_cr():
    text = TEXT.replace(" ", "\n").encode()
    data = b"one\nline\r\n\0" + b"first\n" + text.replace(b"\n", b"\r\n") + b"last"
    assert check(data) == [("CR LF", text + b"last")]


def test_lines_that_end_in_cr_get_lf():
    text = TEXT.replace(" ", "\n").encode() + b"last"
    assert check(text.replace(b"\n", b"\r")) == [("CR LF", text)]


def test_lines_that_end_in_cr_stop_before_cr_lf():
    """Check that the end of many lines is found once, and not looked for from each of them."""
    text = b"ab\n" * 100_000
    assert check(text.replace(b"\n", b"\r") + b"end\r\n") == [("CR LF", text + b"end")]


@pytest.mark.parametrize("end", [b"\n", b"\r\r\n", b"\0\r\n", b"\r\n\n"])
def test_lines_with_another_end_stay_as_they_are(end):
    assert check(b"line".join([end] * 500)) == []


def test_lines_are_text():
    lines = [b"d\xe9j\xe0 vu, " * 9, "привет ".encode() * 9, bytes(range(128, 192))]
    found = [check((line + b"\r\n") * 40) for line in lines]
    assert [len(one) for one in found] == [2, 1, 0]  # the first one is in a code page, too


def test_few_lines_are_not_worth_it():
    assert check(b"a line of text\r\n" * 60) == [] and check(b"a b " * 500 + b"\r\n" * 15) == []


def test_kinds_can_be_left_out():
    data = np.frombuffer(TEXT.replace(" ", "\r\n").encode(), np.uint8)
    assert parse(data, lambda data, found: True).children
    assert not parse(data, lambda data, found: True, (Lines.kind,)).children


def test_an_archive_in_base64_is_opened():
    archive = wrapped.documents()["zip"]
    names = [name for name, _ in check(b'"data:application/zip;base64,' + base64.b64encode(archive) + b'"')]
    assert names == ["base64", *["zip member"] * 4]
