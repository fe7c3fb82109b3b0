"""Text whose lines have the same form has models of its own, and prose has not."""

import io

import numpy as np
import pytest

import squeeze
from squeeze.codecs.stream import container, lines
from squeeze.codecs.stream.index import read_index
from tests.makers import inputs

LOG = "".join(
    f"2026-11-{1 + i // 700:02} {i // 60 % 24:02}:{i % 60:02}:07 worker[{3 * i % 7}]: took={i * i % 997} rows={5 * i}\n"
    for i in range(900)
).encode()
PROSE = "".join(
    "".join(chr(97 + (i * i + 7 * k * k + i * k) % 26) for k in range(3 + i * i % 7)) + (".\n" if i % 11 == 10 else " ")
    for i in range(4_000)
).encode()


def _content(raw, level):
    """Return the kind of content of a file's only block."""
    coded = squeeze.compress(raw, level)
    assert squeeze.decompress(coded) == raw
    (stream,) = read_index(io.BytesIO(coded))
    (block,) = stream.blocks
    payload = coded[block.coded_offset + block.coded_length - block.payload_length :]
    return container.read_content(io.BytesIO(payload))[0].kind


@pytest.mark.parametrize("deep", [False, True])
def test_a_log_is_recognised_and_prose_is_not(deep):
    assert lines.are_alike(np.frombuffer(LOG, np.uint8), deep)
    assert not lines.are_alike(np.frombuffer(PROSE, np.uint8), deep)


@pytest.mark.parametrize("size", [0, 1, 100])
def test_a_short_text_is_not_looked_at(size):
    assert not lines.are_alike(np.frombuffer(LOG[:size], np.uint8), False)


@pytest.mark.parametrize("level", [1, 2, 3])
def test_files_of_lines_are_coded_as_such(level):
    assert _content(LOG, level) == "lines"


def test_a_log_is_smaller_than_by_the_models_of_text():
    text = squeeze.compress(LOG, 3, dictionary="text")
    assert len(squeeze.compress(LOG, 3)) < 0.9 * len(text)


def test_numbers_of_all_lengths_survive():
    raw = b"".join(b"n=%d,%d;\n" % (10**i * 9 + i, 10 ** (i // 2)) for i in range(40)) * 8
    raw += inputs.python_text(4_000)
    assert squeeze.decompress(squeeze.compress(raw, 3)) == raw
