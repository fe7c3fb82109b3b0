"""Blocks of bzip2 streams have their runs coded and the CRC of their content, and bits are written high ones first."""

import bz2

import numpy as np
import pytest

from squeeze.codecs.parse.bzip2.writing import BLOCK_MARK, END_MARK, Bits, blocks, put_all
from tests.makers import inputs


def blocks_of(content: bytes, level: int = 1):
    return list(blocks(np.frombuffer(content, np.uint8), level))


@pytest.mark.parametrize(
    ("content", "coded"),
    [
        (b"abc", b"abc"),
        (b"aaab", b"aaab"),
        (b"aaaa", b"aaaa\0"),
        (b"a" * 10 + b"b", b"aaaa\6b"),
        (b"a" * 255, b"aaaa\xfb"),
        (b"a" * 256, b"aaaa\xfba"),
    ],
)
def test_runs_are_four_bytes_and_a_number(content, coded):
    (block,) = blocks_of(content)
    assert block.data.tobytes() == coded
    assert block.checksum == int.from_bytes(bz2.compress(content)[10:14], "big")


def test_blocks_are_as_long_as_their_level_lets_them():
    content = inputs.random_bytes(250_000)
    for level, sizes in ((1, [99_981, 99_981, 50_038]), (2, [199_981, 50_019]), (9, [250_000])):
        found = blocks_of(content, level)
        assert [abs(block.data.size - size) < 9 for block, size in zip(found, sizes, strict=True)] == [True] * len(
            found
        )


def test_numbers_are_written_with_their_high_bits_first():
    bits = Bits(np.zeros(32, np.uint8), np.zeros(1, np.int64))
    put_all(bits, (1, 1), (0, 2), (0b10101, 5))
    assert bits.size == 8 and bits.data[0] == 0b10010101
    put_all(bits, (BLOCK_MARK, 48), (END_MARK, 48), (3, 2))
    assert bits.data[1:14].tobytes() == bytes.fromhex("314159265359 177245385090 c0") and bits.size == 106
