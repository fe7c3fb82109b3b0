"""Decode blocks that repeat others by section 3.5 of docs/format.md, in Python. It is written from the text alone.

naive_dictionary.py decodes the matrix of copies.
"""

from collections.abc import Callable

from tests.references import naive_dictionary


def varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at


def decode(
    payload: bytes, length: int, before: bytes, window: int, decode_block: Callable[[int, bytes, int], bytes]
) -> bytes:
    """Return the raw bytes of a block.

    Args:
        payload: coded bytes.
        length: raw bytes of the block.
        before: raw bytes of the stream before the block.
        window: that of the header, in MiB.
        decode_block: decodes a block of another kind from its kind, payload and raw length.
    """
    count, at = varint(payload, 0)
    ranges, start = [], len(before)
    for _ in range(count):
        gap, at = varint(payload, at)
        size, at = varint(payload, at)
        assert size >= 1
        ranges.insert(0, (start - gap - size, start - gap))
        start -= gap + size
    assert start >= max(len(before) - (window << 20), 0)
    columns, at = varint(payload, at)
    assert 1 <= columns <= length // 32
    listed, at = varint(payload, at)
    matrix = naive_dictionary.matrix(payload[at : at + listed], 3, columns).tolist()
    at += listed
    kind, at = payload[at], at + 1
    size, at = varint(payload, at)
    coded = size
    if kind != 1:
        coded, at = varint(payload, at)
    assert len(payload) - at == coded
    rest = payload[at:] if kind == 1 else decode_block(kind, payload[at:], size)
    assert len(rest) == size == length - sum(matrix[1])
    joined = b"".join(before[a:b] for a, b in ranges)
    raw, expected = b"", 0
    for gap, count, distance in zip(*matrix, strict=True):
        raw, rest = raw + rest[:gap], rest[gap:]
        source = expected + gap + distance
        assert gap >= 0
        assert count >= 32
        assert 0 <= source <= len(joined) + len(raw) - count
        raw += (joined + raw)[source : source + count]
        expected = source + count
    return raw + rest
