"""Blocks with opened wrappers: smaller files, every reader, and refusals."""

import io

import numpy as np
import pytest

import squeeze
from squeeze.codecs.stream import container, opened
from squeeze.codecs.stream.index import read_index
from squeeze.errors import DamagedError, LimitError
from tests.makers import inputs, wrapped

DOCUMENTS = wrapped.documents()


def kinds_of(stream: bytes) -> list[int]:
    return [block.kind for one in read_index(io.BytesIO(stream)) for block in one.blocks]


@pytest.mark.parametrize("level", [1, 3, 4])
@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_file_is_smaller_with_its_wrappers_opened(name, level):
    data = DOCUMENTS[name]
    stream = squeeze.compress(data, level)
    assert squeeze.decompress(stream) == data
    assert len(stream) < 0.95 * len(squeeze.compress(data, level, parse=False))
    assert kinds_of(stream) == [container.OPENED]


@pytest.mark.parametrize("level", [5, 6])
def test_levels_with_a_network_open_wrappers(level):
    stream = squeeze.compress(DOCUMENTS["nested"], level)
    assert squeeze.decompress(stream) == DOCUMENTS["nested"] and kinds_of(stream) == [container.OPENED]


def test_blocks_are_read_at_any_place_and_salvaged():
    data = DOCUMENTS["zip"] + inputs.words(100_000) + DOCUMENTS["PNG"] + DOCUMENTS["zlib"]
    stream = squeeze.compress(data, 1, block_size=30_000)
    assert container.OPENED in kinds_of(stream) and container.BYTEWISE in kinds_of(stream)
    with squeeze.open(io.BytesIO(stream)) as file:
        for place in range(0, len(data) - 500, 7_001):
            file.seek(place)
            assert file.read(500) == data[place : place + 500]
    damaged = bytearray(stream)
    damaged[200] ^= 1
    sink = io.BytesIO()
    totals = squeeze.decompress_stream(io.BytesIO(damaged), sink, salvage=True)
    assert totals.damage and sink.getvalue().endswith(data[-10_000:])


def test_threads_give_the_same_bytes():
    data = b"".join(DOCUMENTS.values())
    assert squeeze.compress(data, 1, threads=2, block_size=20_000) == squeeze.compress(data, 1, block_size=20_000)


def test_incompressible_contents_stay_closed():
    data = wrapped.gzip_file(inputs.random_bytes(20_000))
    assert len(squeeze.compress(data, 3)) <= len(squeeze.compress(data, 3, parse=False))


def test_a_small_memory_limit_refuses_what_a_block_opens():
    stream = squeeze.compress(wrapped.gzip_file(inputs.words(2_000_000)), 1)
    with pytest.raises(LimitError, match="a block of"):
        squeeze.decompress(stream, limits=squeeze.Limits(memory=12 << 20))


@pytest.mark.parametrize(
    "payload", [b"", b"\1", b"\0", b"\0\5", b"\0\1\2ab", b"\0\1\xff\xff\xff\x7f", b"\0\1\3\0\0\0\0"]
)
def test_refuses_impossible_payloads(payload):
    with pytest.raises(DamagedError):
        opened.decode(payload, 100, lambda part, size: np.frombuffer(part.payload, np.uint8))
