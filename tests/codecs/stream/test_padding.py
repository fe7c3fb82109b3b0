"""Padding after a stream in multiples of four zeros, as in xz, and other bytes there."""

import io
from functools import cache

import pytest

import squeeze
from squeeze.codecs.stream.index import read_index
from squeeze.errors import FormatError
from tests.makers.inputs import random_bytes, words
from tests.makers.streams import DATA, long

RAW = {
    "long": DATA,
    "short": DATA[:1_000],
    "stored": random_bytes(300)[:296] + bytes(4),  # whose stream ends with zeros
}
CASES: dict[str, tuple[str | int, ...]] = {  # streams, and zeros after them
    "long": ("long", 8),
    "short": ("short", 512),
    "between": ("long", 4, "short", 12, "long", 1 << 17),
    "zeros of a stream": ("long", 4, "stored", 4),
}


@cache
def stream(name):
    """Return a stream of RAW; not made at import, since that compiles."""
    return long(RAW[name], 1) if name == "long" else squeeze.compress(RAW[name], 1)


@pytest.mark.parametrize("case", CASES)
def test_zeros_after_a_stream_are_no_part_of_it(case):
    coded = b"".join(bytes(part) if isinstance(part, int) else stream(part) for part in CASES[case])
    raw = b"".join(RAW[part] for part in CASES[case] if not isinstance(part, int))
    assert squeeze.decompress(coded) == raw
    assert sum(one.raw_size for one in read_index(io.BytesIO(coded))) == len(raw)
    with squeeze.open(io.BytesIO(coded)) as file:
        assert file.read() == raw
    sink = io.BytesIO()
    assert squeeze.decompress_stream(io.BytesIO(coded), sink, salvage=True).damage == ()
    assert sink.getvalue() == raw


@pytest.mark.parametrize("count", [1, 3, 5, 4097])
@pytest.mark.parametrize("name", ["long", "short"])
def test_an_odd_number_of_zeros_is_refused(name, count):
    coded = stream(name)
    said = "the padding after a stream is not a multiple of 4 bytes"
    with pytest.raises(FormatError, match=said):
        squeeze.decompress(coded + bytes(count))
    with pytest.raises(FormatError, match=said):
        read_index(io.BytesIO(coded + bytes(count)))


def test_zeros_alone_and_before_a_stream_are_no_file():
    for data in (bytes(8), bytes(4) + stream("short")):
        with pytest.raises(FormatError, match=r"^not a \.sqz file: it does not begin"):
            squeeze.decompress(data)
        with pytest.raises(FormatError, match=r"^not a \.sqz file: it does not begin"):
            read_index(io.BytesIO(data))


@pytest.mark.parametrize("names", [["long"], ["short"], ["short", "long"]], ids=" and ".join)
def test_refuses_other_bytes_after_a_stream(names):
    """Some callers read from the start, some from the end."""
    coded = b"".join(map(stream, names))
    said = rf"^the bytes after the first {len(coded):,} are not a \.sqz stream: cut them off$"
    with pytest.raises(FormatError, match=said):
        squeeze.decompress(coded + b"garbage\n")
    with pytest.raises(FormatError, match=said):
        read_index(io.BytesIO(coded + b"garbage\n"))
    with pytest.raises(FormatError, match=r"^the bytes after the first"):
        squeeze.open(io.BytesIO(coded + words(100)))
