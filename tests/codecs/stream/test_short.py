"""Short streams by level: which inputs become one, their size, and damage."""

import base64
import io
from pathlib import Path

import pytest
import xxhash

import squeeze
from squeeze.codecs.stream import container
from squeeze.codecs.stream.decompressor import decompress_stream
from squeeze.codecs.stream.index import read_index
from squeeze.errors import DamagedError, DictionaryError, FormatError, TruncatedError
from tests.makers import inputs, wrapped
from tests.makers.streams import long

FORMAT = Path(__file__).parents[3] / "docs" / "format.md"
TEXT = inputs.words(700)
MOST_AROUND = 11  # bytes, where the raw ones are stored


@pytest.fixture(scope="module")
def coded():
    return squeeze.compress(TEXT, 2)


def test_every_byte_of_the_example_of_the_format():
    example = FORMAT.read_text().split("### 2.9 ")[1].split("```")[1]
    coded = bytes.fromhex(" ".join(line[:28] for line in example.splitlines()))
    assert squeeze.compress(b"Hello, squeeze!\n") == coded


def test_a_stored_stream_has_these_bytes():
    raw = inputs.random_bytes(16)
    checksum = xxhash.xxh3_64_intdigest(raw).to_bytes(8, "little")[:4]
    expected = b"\xf5\xac\x13" + bytes([len(raw), 0]) + checksum + raw
    assert squeeze.compress(raw) == expected
    assert squeeze.decompress(expected) == raw


@pytest.mark.parametrize("level", range(1, 7))
def test_the_level_is_part_of_the_form(level):
    coded = squeeze.compress(b"", level)
    (stream,) = read_index(io.BytesIO(coded))
    assert coded[:3] == bytes([0xF5, 0xAC, 0x10 | level]) and len(coded) == 9
    assert stream.header == {"level": level, "numerics": 1}
    assert squeeze.decompress(coded) == b""


@pytest.mark.parametrize("data", [b"", b"Hello, squeeze!\n", inputs.machine_code(100)], ids=["empty", "text", "code"])
def test_levels_with_a_language_model_write_level_6_where_it_is_smaller(data):
    """It then opens without the model, too."""
    assert squeeze.compress(data, 8) == squeeze.compress(data, 6)
    with_index = squeeze.compress(data, 8, block_size=max(len(data), 1))
    assert len(with_index) > len(squeeze.compress(data, 8)) or not data


@pytest.mark.parametrize(("size", "short"), [(container.MAX_SHORT, True), (container.MAX_SHORT + 1, False)])
def test_longer_files_have_an_index(size, short):
    data = inputs.words(1_000) * 66
    coded = squeeze.compress(data[:size], 1)
    (stream,) = read_index(io.BytesIO(coded))
    assert stream.short == short
    assert squeeze.decompress(coded) == data[:size]


def test_what_fills_a_block_has_an_index():
    (stream,) = read_index(io.BytesIO(long(TEXT, 1)))
    assert not stream.short


@pytest.mark.parametrize(
    ("data", "content"),
    [
        (TEXT, "text"),
        (inputs.machine_code(400), "executable"),
        (inputs.records(300), "table 24"),
        (bytes(300), "other"),
        (inputs.random_bytes(300), "stored"),
        (b"", "stored"),
    ],
)
def test_what_it_holds_is_told_without_decoding(data, content):
    coded = squeeze.compress(data, 1)
    (stream,) = read_index(io.BytesIO(coded))
    (block,) = stream.blocks
    assert (stream.short, stream.raw_size, stream.coded_size) == (True, len(data), len(coded))
    assert (block.content, block.raw_length, block.coded_length) == (content, len(data), len(coded) - 3)
    assert stream.checksum == block.checksum == xxhash.xxh3_64_intdigest(data) & 0xFFFFFFFF
    with squeeze.open(io.BytesIO(coded)) as file:
        assert (file.seek(100), file.read(50)) == (100, data[100:150])


@pytest.mark.parametrize("size", [1, 127, 128, 2_000, 16_383, 16_384, container.MAX_SHORT])
def test_what_does_not_shrink_is_stored(size):
    data = inputs.random_bytes(size)
    lengths = 1 + (size > 127) + (size > 16_383)
    assert len(squeeze.compress(data, 1)) == size + 8 + lengths <= size + MOST_AROUND


def test_what_hardly_shrinks_is_no_larger_than_stored():
    for count in range(60):
        data = inputs.words(count) + inputs.random_bytes(200, count)
        assert len(squeeze.compress(data, 1)) <= len(data) + 10


def test_a_short_stream_saves_56_bytes(coded):
    payload = read_index(io.BytesIO(coded))[0].blocks[0].payload_length
    assert len(coded) == payload + 10
    assert len(long(TEXT, 2)) == payload + 66


def test_no_flipped_bit_gives_wrong_data(coded):
    for position in range(len(coded)):
        flipped = bytearray(coded)
        flipped[position] ^= 1 << position % 8
        try:
            assert squeeze.decompress(bytes(flipped)) == TEXT
        except (FormatError, DictionaryError):
            continue


def test_every_truncation_is_named(coded):
    for length in range(1, len(coded)):
        with pytest.raises(TruncatedError):
            squeeze.decompress(coded[:length])
        with pytest.raises(TruncatedError):
            read_index(io.BytesIO(coded[:length]))


@pytest.mark.parametrize("extra", [b"\x00", b"hello", b"\xf5\xac"])
def test_bytes_after_the_end_are_noticed(coded, extra):
    for read in (squeeze.decompress, lambda data: read_index(io.BytesIO(data))):
        with pytest.raises(FormatError):
            read(coded + extra)


@pytest.mark.parametrize("named", [0x10, 0x17, 0x1A, 0x1F, 0x57])
def test_a_level_that_it_cannot_have_is_refused(coded, named):
    """Levels 7 to 9 name a language model, for which there is no place."""
    data = coded[:2] + bytes([named]) + coded[3:]
    for read in (squeeze.decompress, lambda data: squeeze.open(io.BytesIO(data))):
        with pytest.raises(FormatError, match=r"^the file uses a level or parameter that this version lacks"):
            read(data)


@pytest.mark.parametrize("named", [0x31, 0x36])
def test_a_language_model_for_a_level_without_one_is_refused(coded, named):
    with pytest.raises(FormatError, match=r"^the file uses a level or parameter that this version lacks"):
        squeeze.decompress(coded[:2] + bytes([named]) + bytes(4) + coded[3:])


@pytest.mark.parametrize("lengths", [b"\xff\xff\x7f\x05", b"\x05\x06", b"\x80\x80\x04\x00"])
def test_lengths_that_are_impossible_take_no_memory(lengths):
    with pytest.raises(DamagedError, match="a block's lengths are impossible"):
        squeeze.decompress(b"\xf5\xac\x11" + lengths + bytes(10))


def test_a_kind_of_content_that_is_unknown_is_refused(coded):
    data = coded.replace(b"\x01" + coded[11:], b"\x77" + coded[11:])
    assert data != coded
    for read in (squeeze.decompress, lambda data: read_index(io.BytesIO(data))):
        with pytest.raises(DamagedError, match="a block's kind of content is unknown"):
            read(data)


def test_short_streams_are_read_from_a_pipe(coded):
    pipe = type("Pipe", (io.BytesIO,), {"seekable": lambda self: False})
    sink = io.BytesIO()
    assert decompress_stream(pipe(coded * 2), sink).raw == 2 * len(TEXT)
    assert sink.getvalue() == TEXT * 2


FORMS = {
    "UTF-16": inputs.PROSE.decode().encode("utf-16"),
    "base64": base64.b64encode(inputs.PROSE),
    "gzip": wrapped.gzip_file(inputs.PROSE),
}


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("level", [1, 3, 4])
def test_opened_wrappers_cost_few_bytes_in_a_short_stream(level, name):
    coded, plain = squeeze.compress(FORMS[name], level), squeeze.compress(inputs.PROSE, level)
    assert squeeze.decompress(coded) == FORMS[name]
    assert coded[2:4] == bytes([0x20 | level, container.OPENED])
    assert len(coded) <= len(plain) + 60
    (stream,) = read_index(io.BytesIO(coded))
    assert (stream.short, stream.blocks[0].kind) == (True, container.OPENED)
    with squeeze.open(io.BytesIO(coded)) as file:
        file.seek(100)
        assert file.read(50) == FORMS[name][100:150]
    sink = io.BytesIO()
    assert not squeeze.decompress_stream(io.BytesIO(coded), sink, salvage=True).damage
    assert sink.getvalue() == FORMS[name]


def test_a_bare_stream_with_opened_wrappers_is_short():
    coded = squeeze.compress(FORMS["gzip"], 3, dictionary="none")
    assert coded[2:4] == bytes([0x63, container.OPENED])
    assert squeeze.decompress(coded) == FORMS["gzip"]


@pytest.mark.parametrize("kind", [0, container.STORED, container.BYTEWISE, 99])
def test_refuses_impossible_kinds(kind):
    coded = bytearray(squeeze.compress(FORMS["base64"], 1))
    coded[3] = kind
    with pytest.raises(DamagedError, match=f"block kind {kind} is unknown"):
        squeeze.decompress(bytes(coded))


def test_a_checksum_of_no_bytes_is_checked_by_each_reader():
    empty = squeeze.compress(b"")
    for read in (squeeze.decompress, lambda data: squeeze.open(io.BytesIO(data))):
        with pytest.raises(DamagedError, match="checksum differs"):
            read(empty[:-1] + bytes([empty[-1] ^ 1]))
