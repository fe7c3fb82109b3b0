"""A file of several streams: one of many blocks, of words and noise, one of nothing, and one of a single block."""

import io
from functools import cache

import squeeze
from squeeze.codecs.stream.compressor import compress_stream
from tests.makers import inputs

DATA = inputs.words(2_000) + inputs.random_bytes(3_000) + inputs.words(4_000, seed=3)
WHOLE = DATA + DATA[:1_500]


@cache
def several() -> bytes:
    """What decodes to WHOLE."""
    sink = io.BytesIO()
    compress_stream(io.BytesIO(DATA), sink, level=1, block_size=1_000)
    return sink.getvalue() + squeeze.compress(b"", 1) + squeeze.compress(DATA[:1_500], 2)
