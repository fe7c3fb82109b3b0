"""Blocks with opened wrappers decode by a decoder written from docs/format.md, and trees are those of zlib."""

import base64
import bz2
import json
import quopri
import zlib
from functools import partial
from urllib.parse import quote

import numpy as np
import pytest

from squeeze.codecs.parse.deflate import layout, reading, writing
from squeeze.codecs.parse.deflate.encoders import Encoder
from squeeze.codecs.parse.deflate.huffman import FREQUENCY, LENGTH, work_space, zlib_lengths
from squeeze.codecs.parse.deflate.stream import Closings, Opened
from squeeze.codecs.parse.room import Room
from squeeze.codecs.stream import opened
from squeeze.codecs.stream.container import Coded
from squeeze.codecs.stream.decoding import decode_block
from squeeze.codecs.stream.encoding import encode_block
from squeeze.codecs.stream.resources import LanguageOptions
from squeeze.codecs.stream.settings import resolve_settings
from squeeze.numerics.jit import kernel
from tests.makers import cheapest, gifs, images, inputs, programs, quick, wrapped
from tests.makers.cases import every
from tests.references import naive_deflate, naive_huffman, naive_opened

SETTINGS, _ = resolve_settings(1, 1, None, None, LanguageOptions())
TEXT = inputs.words(3_000)
ACCENTS = TEXT.decode().replace("e", "é").replace(" a", " 😀")


def deflated(level: int, strategy: int = 0, memory: int = 8, window: int = 15) -> bytes:
    coder = zlib.compressobj(level, zlib.DEFLATED, window, memory, strategy)
    return coder.compress(TEXT + bytes(700) + inputs.random_bytes(300) + TEXT[:900]) + coder.flush()


def flushed() -> bytes:
    coder = zlib.compressobj(6)
    return b"".join(
        coder.compress(TEXT[at : at + 600]) + coder.flush(zlib.Z_SYNC_FLUSH) for at in range(0, 3_000, 600)
    ) + (coder.flush())


CASES = {
    **wrapped.documents(),
    **{f"level {level}": deflated(level) for level in range(10)},
    **{"fixed": deflated(6, 4), "filtered": deflated(6, 1), "literals": deflated(6, 2), "runs": deflated(6, 3)},
    **{"memory 1": deflated(6, 0, 1), "window 9": deflated(9, 0, 9, 9), "flushed": flushed()},
    "cheapest tokens": b"\x78\xda" + cheapest.deflated(TEXT, 2, 0.05) + zlib.adler32(TEXT).to_bytes(4),
    "UTF-16": TEXT.decode().encode("utf-16"),
    "archive in a file": b"first bytes\n" + wrapped.documents()["zip"],
    "base64": base64.encodebytes(TEXT),
    "programs": b"between".join(programs.images().values()),
    "hexadecimal": TEXT.hex().upper().encode(),
    "bzip2": bz2.compress(TEXT),
    "percent-encoding": quote(ACCENTS).encode(),
    "quoted-printable": quopri.encodestring(ACCENTS.encode()),
    "\\u escapes": json.dumps([ACCENTS]).encode(),
    "base85": b"data: " + base64.b85encode(zlib.compress(TEXT)),
    "Ascii85": base64.a85encode(TEXT, wrapcol=70, adobe=True),
    "bare": inputs.random_bytes(300) + deflated(6)[2:-4] + inputs.random_bytes(90),
    "LZW": b"/Filter /LZWDecode>>\nstream\n" + gifs.packed_early(gifs.codes_of(TEXT * 3, 8, 4095)) + b"\nendstream",
    "TIFF": images.tiff(images.pixels(60, 40), strips=2, coding=5, predictor=2),
    "UTF-32": ACCENTS.encode("utf-32-be"),
    "code page": ("“" + ACCENTS.replace("😀", "")).encode("cp1252") + b"\x81",
    **{f"Parquet {encoder}": partial(quick.parquet, encoder) for encoder in range(7)},  # at import that would compile
    "LZ4": partial(quick.lz4_file, TEXT * 40, 0x54),
    "Snappy": partial(quick.snappy_file, TEXT * 40, 2),
    "CR": TEXT.replace(b" ", b"\r"),
    "CR LF": TEXT.replace(b" ", b"\r\n"),
    "GIF": gifs.gif(60, [gifs.image(60, gifs.packed(gifs.codes_of(TEXT * 2, 8), 8), 8, 100)]),
}


def decode_part(kind: int, payload: bytes, length: int) -> bytes:
    return decode_block(Coded(kind, payload), length, SETTINGS).tobytes()


@pytest.mark.parametrize("name", CASES)
def test_a_block_decodes_by_the_specification(name):
    data = CASES[name] if isinstance(CASES[name], bytes) else CASES[name]()
    root = opened.find(np.frombuffer(data, np.uint8))
    assert root, "nothing was opened"
    coded = encode_block(np.frombuffer(data, np.uint8), root, SETTINGS)
    assert coded and naive_opened.decode(coded.payload, decode_part) == data


@pytest.mark.parametrize("level", every(3, range(1, 27)))
def test_a_stream_closes_by_the_specification_whatever_predicts_it(level):
    coder = zlib.compressobj(9, zlib.DEFLATED, -15)
    content = TEXT + bytes(700) + TEXT[:900] + bytes(3)  # the last match is as short as one can be
    stream = coder.compress(content) + coder.flush()
    tokens, size = reading.read(np.frombuffer(stream, np.uint8), Room(1 << 20)) or pytest.fail("this is a stream")
    closing = Closings().encode(Opened(tokens, Encoder(level, joined=level > 9, memory=8 if level > 25 else 6), size))
    assert Closings().close(tokens.content, closing).tobytes() == stream
    assert naive_deflate.Closings().close(content, closing) == stream


@pytest.mark.parametrize("level", [0, 24, 25])
def test_a_position_that_did_not_join_its_chain_has_no_candidates(level):
    """Position 3 lies in a match that was predicted at 2 and not taken."""
    tokens = layout.empty(261, 4, 1, 0)
    tokens.tokens[3] = 258 << 16 | 3
    tokens.blocks[0, [layout.TYPE, layout.FINAL, layout.END, layout.SIZE]] = layout.FIXED, 1, 4, 261
    tokens.totals[[layout.CONTENT, layout.TOKENS, layout.BLOCKS]] = 261, 4, 1
    stream = writing.write(tokens)
    closing = Closings().encode(Opened(tokens, Encoder(level), stream.size))
    assert Closings().close(tokens.content, closing).tobytes() == stream.tobytes()
    assert naive_deflate.Closings().close(bytes(261), closing) == stream.tobytes()


@kernel
def _lengths(w, size, limit, used):
    zlib_lengths(w, size, limit, used)


@pytest.mark.parametrize(("size", "limit"), [(286, 15), (30, 15), (19, 7)])
def test_trees_are_those_of_the_reference(size, limit):
    random = np.random.default_rng(size)
    for case in range(60):
        counts = random.geometric(0.3, size) ** random.integers(1, 9) * (random.random(size) < random.random())
        counts = np.minimum(counts, 60_000)
        w = work_space()
        w[FREQUENCY, :size] = counts
        _lengths(w, size, limit, np.zeros(17, np.int64))
        assert w[LENGTH, :size].tolist() == naive_huffman.zlib_lengths(counts.tolist(), limit), case
