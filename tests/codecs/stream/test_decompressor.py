"""Thousands of mutated files: each decodes to the exact data or raises a named error, and soon."""

import io

import numpy as np
import pytest

import squeeze
from squeeze.codecs.stream.compressor import compress_stream
from squeeze.codecs.stream.container import check16, read_header
from squeeze.codecs.stream.decompressor import decompress_stream
from tests.makers import inputs
from tests.makers.mutations import mutate

DATA = inputs.words(700) + inputs.random_bytes(500) + inputs.words(300, seed=8) + inputs.records(20)
MUTATIONS = 2_400


@pytest.fixture(scope="module")
def coded():
    sink = io.BytesIO()
    compress_stream(io.BytesIO(DATA), sink, level=1, block_size=700)
    return sink.getvalue()


def outcome(data: bytes) -> bytes | None:
    try:
        return squeeze.decompress(data)
    except squeeze.FormatError:
        return None


def test_mutated_files_never_give_wrong_data(coded):
    generator = np.random.default_rng(2026)
    for _ in range(MUTATIONS):
        restored = outcome(mutate(coded, generator))
        assert restored in (None, DATA)


def test_mutations_that_forge_the_header_check_give_no_wrong_data_either(coded):
    """A header that is damaged and has the right check still cannot make a block's checksum right."""
    header, size, _ = read_header(io.BytesIO(coded))
    for level in (2, 3):
        body = coded[: size - 2].replace(b'"level":%d' % header["level"], b'"level":%d' % level)
        assert outcome(body + check16(body) + coded[size:]) is None


def test_salvaging_mutated_files_always_ends(coded):
    generator = np.random.default_rng(7)
    for _ in range(300):
        data, sink = mutate(coded, generator), io.BytesIO()
        try:
            totals = decompress_stream(io.BytesIO(data), sink, salvage=True)
        except squeeze.FormatError:
            continue
        assert sink.tell() == totals.raw
        assert totals.damage or sink.getvalue() == DATA


def test_random_bytes_are_no_sqz_file():
    for seed in range(200):
        assert outcome(inputs.random_bytes(50, seed)) is None
        assert outcome(b"\xf5SQ\x01" + inputs.random_bytes(50, seed)) is None
