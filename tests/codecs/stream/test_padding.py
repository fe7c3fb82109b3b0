"""Padding after a stream in multiples of four zeros, as in xz, and other bytes there."""

import io

import pytest

import squeeze
from squeeze.codecs.stream.index import read_index
from squeeze.errors import FormatError
from tests.makers.inputs import random_bytes, words
from tests.makers.streams import DATA, long

SHORT = squeeze.compress(DATA[:1_000], 1)
LONG = long(DATA, 1)
STORED = squeeze.compress(random_bytes(300)[:296] + bytes(4), 1)  # whose last bytes are zeros
CASES = {
    "long": (LONG + bytes(8), DATA),
    "short": (SHORT + bytes(512), DATA[:1_000]),
    "between": (LONG + bytes(4) + SHORT + bytes(12) + LONG + bytes(1 << 17), DATA + DATA[:1_000] + DATA),
    "zeros of a stream": (LONG + bytes(4) + STORED + bytes(4), DATA + random_bytes(300)[:296] + bytes(4)),
}


@pytest.mark.parametrize("case", CASES)
def test_zeros_after_a_stream_are_no_part_of_it(case):
    coded, raw = CASES[case]
    assert squeeze.decompress(coded) == raw
    assert sum(stream.raw_size for stream in read_index(io.BytesIO(coded))) == len(raw)
    with squeeze.open(io.BytesIO(coded)) as file:
        assert file.read() == raw
    sink = io.BytesIO()
    assert squeeze.decompress_stream(io.BytesIO(coded), sink, salvage=True).damage == ()
    assert sink.getvalue() == raw


@pytest.mark.parametrize("count", [1, 3, 5, 4097])
@pytest.mark.parametrize("coded", [LONG, SHORT], ids=["long", "short"])
def test_an_odd_number_of_zeros_is_refused(coded, count):
    said = "the padding after a stream is not a multiple of 4 bytes"
    with pytest.raises(FormatError, match=said):
        squeeze.decompress(coded + bytes(count))
    with pytest.raises(FormatError, match=said):
        read_index(io.BytesIO(coded + bytes(count)))


def test_zeros_alone_and_before_a_stream_are_no_file():
    for data in (bytes(8), bytes(4) + SHORT):
        with pytest.raises(FormatError, match=r"^not a \.sqz file: it does not begin"):
            squeeze.decompress(data)
        with pytest.raises(FormatError, match=r"^not a \.sqz file: it does not begin"):
            read_index(io.BytesIO(data))


@pytest.mark.parametrize("coded", [LONG, SHORT, SHORT + LONG], ids=["long", "short", "both"])
def test_refuses_other_bytes_after_a_stream(coded):
    """Some callers read from the start, some from the end."""
    said = rf"^the bytes after the first {len(coded):,} are not a \.sqz stream: cut them off$"
    with pytest.raises(FormatError, match=said):
        squeeze.decompress(coded + b"garbage\n")
    with pytest.raises(FormatError, match=said):
        read_index(io.BytesIO(coded + b"garbage\n"))
    with pytest.raises(FormatError, match=r"^the bytes after the first"):
        squeeze.open(io.BytesIO(coded + words(100)))
