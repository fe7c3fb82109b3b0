"""Files of several streams: one of many blocks (words and noise), an empty one, and one of a single block."""

import io
from functools import cache

import xxhash

import squeeze
from squeeze.codecs.stream import container
from squeeze.codecs.stream.compressor import compress_stream
from squeeze.codecs.stream.footer import Index, index_bytes
from tests.makers import inputs

DATA = inputs.words(2_000) + inputs.random_bytes(3_000) + inputs.words(4_000, seed=3)
WHOLE = DATA + DATA[:1_500]


def long(data: bytes, level: int, block_size: int | None = None) -> bytes:
    """Return a stream with an index, even if `data` is short.

    Args:
        data: raw bytes
        level: level of compression
        block_size: raw bytes of a block, None for the default
    """
    if not data:
        header = container.header_bytes({})
        return header + index_bytes(Index(len(header), [], xxhash.xxh3_64_intdigest(b"")))
    sink = io.BytesIO()
    compress_stream(io.BytesIO(data), sink, level=level, threads=1, block_size=min(block_size or len(data), len(data)))
    return sink.getvalue()


@cache
def several() -> bytes:
    """Return long streams that decode to WHOLE."""
    return long(DATA, 1, 1_000) + long(b"", 1) + long(DATA[:1_500], 2)


@cache
def of_both_forms() -> bytes:
    """Return a long stream and short ones that decode to WHOLE."""
    return long(DATA, 1, 1_000) + squeeze.compress(b"", 1) + squeeze.compress(DATA[:1_500], 2)
