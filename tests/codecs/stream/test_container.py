"""The container: errors for damaged, cut, foreign and malicious files, and the contents of the index."""

import io
import tracemalloc

import pytest
import xxhash

import squeeze
from squeeze.codecs.stream import container
from squeeze.codecs.stream.compressor import compress_stream
from squeeze.codecs.stream.decompressor import decompress_stream
from squeeze.codecs.stream.footer import index_bytes, read_index_before
from squeeze.codecs.stream.index import read_index
from squeeze.errors import DamagedError, FormatError, TruncatedError
from squeeze.system.binary import varint
from tests.makers import inputs

DATA = inputs.words(600) + inputs.random_bytes(600) + inputs.words(300, seed=9)


@pytest.fixture(scope="module")
def coded():
    sink = io.BytesIO()
    compress_stream(io.BytesIO(DATA), sink, level=1, block_size=300)
    return sink.getvalue()


def header_with(**fields):
    return container.header_bytes({"level": 1, "numerics": 1, **fields})


def block_of(kind, raw, payload):
    return container.block_header_bytes(kind, raw, len(payload), 0) + payload


def test_the_index_tells_everything_without_decoding(coded):
    (stream,) = read_index(io.BytesIO(coded))
    assert stream.header == {"level": 1, "numerics": 1}
    assert (stream.raw_size, stream.coded_size) == (len(DATA), len(coded))
    assert stream.checksum == xxhash.xxh3_64_intdigest(DATA)
    for block in stream.blocks:
        raw = DATA[block.raw_offset : block.raw_offset + block.raw_length]
        assert block.checksum == xxhash.xxh3_64_intdigest(raw)
    assert {block.codec for block in stream.blocks} == {"bytewise", "stored"}
    assert {block.content for block in stream.blocks} >= {"text", "stored"}


def test_offsets_of_concatenated_streams_count_on(coded):
    streams = read_index(io.BytesIO(coded + coded))
    assert [stream.offset for stream in streams] == [0, len(coded)]
    assert streams[1].blocks[0].raw_offset == len(DATA)


def test_every_truncation_is_named(coded):
    for length in [*range(200), *range(200, len(coded), 7), *range(len(coded) - 60, len(coded))]:
        error = FormatError if length == 0 else TruncatedError
        with pytest.raises(error):
            squeeze.decompress(coded[:length])
        with pytest.raises(FormatError):
            read_index(io.BytesIO(coded[:length]))


def test_no_flipped_bit_gives_wrong_data(coded):
    noticed = 0
    for position in range(len(coded)):
        flipped = bytearray(coded)
        flipped[position] ^= 1 << position % 8
        try:  # the last bits of a block's code may be of no consequence
            assert squeeze.decompress(bytes(flipped)) == DATA
        except FormatError:
            noticed += 1
    assert noticed > 0.99 * len(coded)


@pytest.mark.parametrize("extra", [b"\x00", b"hello", b"\xf5\xac"])
def test_bytes_after_the_end_are_noticed(coded, extra):
    with pytest.raises(FormatError):
        squeeze.decompress(coded + extra)


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (b"", FormatError, "not a .sqz file: it is empty"),
        (b"PK\x03\x04", container.ForeignError, "not a .sqz file: it does not begin with the .sqz mark"),
        (b"\xf5\xac", TruncatedError, "the file ends too early: it was cut off, and its end is missing"),
        (b"\xf5\xac\x05", FormatError, "form 5 of a stream is unknown: decompress with a newer squeeze"),
        (b"\xf5\xac\x01\xff\xff\xff\x7f", DamagedError, "the header's length is impossible: the file is damaged"),
        (b"\xf5\xac\x01" + b"\xff" * 12, DamagedError, "a length in the file is impossible: the file is damaged"),
        (b"\xf5\xac\x01\x02{}\x00\x00", DamagedError, "the header is damaged: its checksum differs"),
        (
            header_with(numerics=9) + b"\x00",
            FormatError,
            "numerics version 9 is unknown: decompress with a newer squeeze",
        ),
        (
            header_with(level=8) + b"\x00",
            FormatError,
            "the file uses a level or parameter that this version lacks: use a newer squeeze",
        ),
        (
            header_with(level=True) + b"\x00",
            FormatError,
            "the file uses a level or parameter that this version lacks: use a newer squeeze",
        ),
        (
            container.header_bytes({}) + block_of(container.BYTEWISE, 9, b"\x01abc"),
            DamagedError,
            "the header names no level, but a block is coded: the file is damaged",
        ),
        (
            header_with(unknown=4) + b"\x00",
            FormatError,
            "the file uses a level or parameter that this version lacks: use a newer squeeze",
        ),
        (
            header_with(window=0) + b"\x00",
            FormatError,
            "the file uses a level or parameter that this version lacks: use a newer squeeze",
        ),
        (
            header_with(window=True) + b"\x00",
            FormatError,
            "the file uses a level or parameter that this version lacks: use a newer squeeze",
        ),
        (
            header_with(window=1 << 21) + b"\x00",
            FormatError,
            "the file uses a level or parameter that this version lacks: use a newer squeeze",
        ),
        (
            header_with() + b"\x63",
            DamagedError,
            "block kind 99 is unknown: the file is damaged, or needs a newer squeeze",
        ),
        (
            header_with() + block_of(container.BYTEWISE, 1 << 40, b"\x01abc"),
            DamagedError,
            "a block's lengths are impossible: the file is damaged",
        ),
        (
            header_with() + block_of(container.STORED, 0, b""),
            DamagedError,
            "a block's lengths are impossible: the file is damaged",
        ),
        (
            header_with() + block_of(container.BYTEWISE, 2, b"\x01abc"),
            DamagedError,
            "a block's lengths are impossible: the file is damaged",
        ),
        (
            header_with() + block_of(container.BYTEWISE, 99, b"\x77abc"),
            DamagedError,
            "a block's kind of content is unknown: the file is damaged",
        ),
        (
            header_with() + block_of(container.BYTEWISE, 99, b"\x03\x00abc"),
            DamagedError,
            "a block's record length is impossible: the file is damaged",
        ),
        (
            header_with() + block_of(container.BYTEWISE, 9_000, b"\x01\x9a\x02"),
            DamagedError,
            "a block's coded bytes end too early: the file is damaged",
        ),
        (
            header_with() + block_of(container.STORED, 1 << 60, b"abc"),
            TruncatedError,
            "the file ends too early: it was cut off, and its end is missing",
        ),
    ],
)
def test_malformed_files_have_a_sentence_each(data, error, message):
    with pytest.raises(FormatError) as caught:
        squeeze.decompress(data)
    assert type(caught.value) is error
    assert str(caught.value) == message


def test_json_that_is_no_object_is_refused():
    for text in (b"[1]", b"{", b"\xff\xff", b"[" * 60_000):
        body = container.MAGIC + bytes([container.LONG]) + varint(len(text)) + text
        with pytest.raises(DamagedError, match="the header is damaged: it is not"):
            squeeze.decompress(body + container.check16(body))


@pytest.mark.parametrize("fields", [{"level": [[[[[]]]]]}, {"a": {"b": {"c": {"d": 1}}}}, {"level": [0] * 99}])
def test_a_header_that_holds_more_than_headers_do_is_refused(fields):
    with pytest.raises(DamagedError, match=r"^the header is damaged: it has too many values$"):
        squeeze.decompress(container.header_bytes(fields))


def test_numbers_that_json_lacks_are_refused():
    with pytest.raises(DamagedError, match="it is not JSON"):
        squeeze.decompress(header_with(level=float("nan")))


def test_what_a_header_says_is_printed_escaped_and_short():
    with pytest.raises(FormatError) as caught:
        squeeze.decompress(header_with(numerics="\x1b[2J" + "x" * 50_000))
    assert str(caught.value).startswith("numerics version \\x1b[2Jxxx")
    assert len(str(caught.value)) < 300


def test_claimed_lengths_allocate_no_memory():
    claims = header_with() + container.block_header_bytes(container.BYTEWISE, 1 << 28, 1 << 28, 0) + b"short"
    tracemalloc.start()
    try:
        with pytest.raises(TruncatedError):
            squeeze.decompress(claims)
        assert tracemalloc.get_traced_memory()[1] < 1 << 23
    finally:
        tracemalloc.stop()


def test_an_index_that_lies_is_noticed(coded):
    index, start = read_index_before(io.BytesIO(coded), len(coded))
    size = len(index_bytes(index))
    index.entries[0] = (index.entries[0][0] + 1, index.entries[0][1])
    lying = coded[:-size] + index_bytes(index)
    assert start == 0
    for read in (squeeze.decompress, lambda data: read_index(io.BytesIO(data))):
        with pytest.raises(DamagedError, match="the index does not agree with"):
            read(lying)


def test_checking_alone_writes_nothing(coded):
    assert decompress_stream(io.BytesIO(coded), None).raw == len(DATA)
