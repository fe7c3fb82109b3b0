"""Deflate streams without a header are found by trying, and nearly nothing else is."""

import zlib

import numpy as np
import pytest

from squeeze.codecs.parse.deflate import bare
from squeeze.codecs.parse.finding import parse
from tests.codecs.parse import trees
from tests.makers import inputs, wrapped

TEXT = inputs.words(20_000)
NOISE = inputs.random_bytes(5_000)


def deflated(content: bytes, level: int = 6) -> bytes:
    return zlib.compress(content, level, -15)


def opened(data: bytes, pays: bool = True) -> list[tuple[int, bytes]]:
    """Return the kinds and contents of the wrappers in data, which come back as they were."""
    root = trees.opened(data, pays)
    return [(child.kind, child.node.own.tobytes()) for child in root.children]


@pytest.mark.parametrize("level", [1, 6, 9])
def test_streams_are_found_among_other_bytes(level):
    data = NOISE + deflated(TEXT, level) + b"abc" + deflated(TEXT[:3_000], level) + NOISE
    assert opened(data) == [(16, TEXT), (16, TEXT[:3_000])]


def test_streams_behind_a_header_are_of_its_kind():
    documents = wrapped.documents()
    for name in ("zip", "gzip", "zlib"):
        assert 16 not in dict(opened(documents[name]))


def test_a_stream_that_does_not_pay_is_tried_once():
    tried = []
    parse(np.frombuffer(zlib.compress(TEXT), np.uint8), lambda data, found: bool(tried.append(found.kind)))
    assert tried == [1]


def test_cut_streams_stay_closed():
    assert opened(NOISE + deflated(TEXT)[:-200]) == []


def test_places_are_rare_in_other_data():
    for data in (inputs.random_bytes(1 << 20), inputs.words(1 << 20), bytes(1 << 16), bytes(range(256)) * 99):
        assert bare.find(np.frombuffer(data, np.uint8), 0).size <= 3


@pytest.mark.parametrize("size", range(0, 64, 7))
def test_short_data_has_no_place(size):
    assert bare.find(np.frombuffer(deflated(TEXT)[:size], np.uint8), 0).size == 0
