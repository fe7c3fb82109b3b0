"""What is left of a file after damage."""

import io

import pytest

import squeeze
from squeeze.codecs.stream import container
from squeeze.codecs.stream.compressor import compress_stream
from squeeze.codecs.stream.decompressor import decompress_stream
from squeeze.codecs.stream.index import Index, index_bytes, read_index
from tests.makers import inputs

DATA = inputs.words(2_000) + inputs.random_bytes(3_000) + inputs.words(4_000, seed=3)


@pytest.fixture(scope="module")
def coded():
    sink = io.BytesIO()
    compress_stream(io.BytesIO(DATA), sink, level=1, block_size=1_000)
    return sink.getvalue() + squeeze.compress(b"", 1) + squeeze.compress(DATA[:1_500], 2)


WHOLE = DATA + DATA[:1_500]


def salvage(data):
    sink = io.BytesIO()
    totals = decompress_stream(io.BytesIO(data), sink, salvage=True)
    return sink.getvalue(), totals.damage


def test_salvage_of_an_undamaged_file_is_the_file(coded):
    assert salvage(coded) == (WHOLE, ())


def test_damage_stays_in_its_block(coded):
    """Payload, block header and stream header: whatever is hit, the other blocks come back in their places."""
    stream = read_index(io.BytesIO(coded))[0]
    for hurt in stream.blocks:
        for at in (hurt.coded_offset, hurt.coded_offset + hurt.coded_length // 2):
            damaged = bytearray(coded)
            damaged[at] ^= 1
            expected = bytearray(WHOLE)
            start, end = hurt.raw_offset, hurt.raw_offset + hurt.raw_length
            expected[start:end] = bytes(end - start)
            assert salvage(bytes(damaged)) == (
                bytes(expected),
                (f"bytes {start} to {end} are lost: their block is damaged",),
            )


def test_a_cut_file_gives_all_whole_blocks(coded):
    blocks = read_index(io.BytesIO(coded))[0].blocks
    hurt = blocks[-1]
    restored, damage = salvage(coded[: hurt.coded_offset + 20])
    assert restored == DATA[: hurt.raw_offset]
    assert damage == (f"what follows byte {hurt.raw_offset} is lost: the file was cut off",)


@pytest.mark.parametrize("junk", [b"junk", b"\xf5SQ\x09", b"\xf5SQ"])
def test_salvage_restores_what_stands_before_foreign_bytes(coded, junk):
    restored, damage = salvage(coded + junk)
    assert restored == WHOLE
    assert len(damage) == 1


def test_salvage_writes_no_more_than_blocks_can_hold():
    header = container.header_bytes({})
    lying = header + index_bytes(Index(len(header), [(1 << 62, 0)], 0))
    assert salvage(lying)[0] == b""


def test_salvage_refuses_what_is_no_sqz_file():
    with pytest.raises(squeeze.FormatError, match="it is empty"):
        salvage(b"")
    with pytest.raises(squeeze.FormatError, match=r"not a \.sqz file"):
        salvage(b"hello, this is text")
