"""Inputs that tests share. All are generated or come with Python, so they are the same for everybody."""

import pydoc_data.topics
from pathlib import Path

import numpy as np
import pytest

from squeeze.codecs.stream import blocks

_VOCABULARY = "the of and a to in is it that was for on with as by at from his her not but"


def random_bytes(count: int, seed: int = 1) -> bytes:
    return np.random.default_rng(seed).integers(0, 256, count, dtype=np.uint8).tobytes()


def python_text(count: int) -> bytes:
    """Return the first bytes of a text that every Python contains. It differs between Python versions."""
    return Path(pydoc_data.topics.__file__).read_bytes()[:count]


def words(count: int, seed: int = 2) -> bytes:
    """Return text-like bytes that are the same everywhere: a random walk over a small vocabulary."""
    vocabulary = _VOCABULARY.split()
    steps = np.random.default_rng(seed).integers(0, 4, count)
    out, i = [], 0
    for step in steps:
        i = (i * 3 + int(step)) % len(vocabulary)
        out.append(vocabulary[i])
    return " ".join(out).encode()[:count]


PROSE = b"""My grandmother kept bees behind the old mill. Every spring she carried the hives across the river, because
the meadows on the other side were full of clover, and every autumn she carried them home again. When the bridge was
closed one year, nobody in the village thought that she would find a way; but on a cold morning in April we saw her
standing in a borrowed boat, with a veil over her face, and three hives between her knees.

"They do not like to be late," she said, when somebody asked her why she could not wait for another week. "And
neither do I." So we helped her to carry the hives up the bank, one after the other, and nobody was stung but the
schoolmaster, who had brought his camera. The picture still hangs in the town hall: a boat, a veil, six men in a row
who hold their breath, and at the left edge the schoolmaster's hand, a little blurred.

I have kept her notebooks. She wrote down what the weather was like and how many pounds of honey there were, and
nothing else, for forty-one years. On the last page it says: "Rain. The bees are well. 12 lb. 3 oz."
"""  # our own, which no model has read


def records(rows: int) -> bytes:
    """Return a table of 24-byte records: counters, small numbers, padding."""
    table = np.zeros((rows, 6), "<u4")
    table[:, 0] = np.arange(rows)
    table[:, 1] = np.arange(rows) * 37 % 1000
    table[:, 2] = np.random.default_rng(3).integers(0, 5, rows)
    table[:, 4] = 0x40490FDB
    return table.tobytes()


def machine_code(calls: int) -> bytes:
    """Return x86-like code: calls from many places to few targets."""
    out = bytearray()
    for i in range(calls):
        target = 4096 * (i * 7 % 5)
        out += b"\x48\x89\xe5\x53\x90" + bytes([i % 7]) + b"\xe8"
        out += ((target - len(out) - 4) & 0xFFFFFFFF).to_bytes(4, "little")
    return bytes(out)


def program(count: int) -> bytes:
    """Return bytes of an x86 program that comes with numpy, with absolute calls. Skips the test if there is no such
    program."""
    for path in sorted(Path(np.__file__).parent.rglob("*.so")):
        raw = np.fromfile(path, np.uint8)
        for start in range(0, raw.size - count, count):
            piece = raw[start : start + count].copy()
            if blocks.content(piece).kind == "executable":
                blocks.calls_to_absolute(piece)
                return piece.tobytes()
    pytest.skip("numpy has no program for x86 here")


SPECIAL_TOKENS = b"<|endoftext|><|im_start|>user\n<s></s><unk>[CLS][PAD]<pad>" * 3
EDGE_CASES = {
    "empty": b"",
    "one byte": b"a",
    "one high byte": b"\xff",
    "all bytes": bytes(range(256)),
    "all bytes twice": bytes(range(256)) * 2,
    "control bytes": b"\x04\x06\x13\x14\x16\x1d" * 5,
    "invalid UTF-8": b"abc\xff\xfe\x80 caf\xe9 \xc3\x28" * 20,
    "other scripts": "naïve 日本語 👩‍🔬 \U00040000 e\u0301 \ufeff".encode() * 9,
    "CRLF and NUL": b"line one\r\nline two\x00\r\n\tend" * 11,
    "special tokens": SPECIAL_TOKENS,
    "long run": b"\x00" * 100_000,
    "long run of one word": b"again and " * 3_000,
    "random": random_bytes(3_000),
    "random twice": random_bytes(3_000) * 2,
    "words": words(4_000),
    "records": records(400),
    "machine code": machine_code(600),
    "real text": python_text(5_000),
    "text, then random": words(2_000) + random_bytes(2_000),
    "random, then text": random_bytes(5 << 16) + words(9 << 15),
}
