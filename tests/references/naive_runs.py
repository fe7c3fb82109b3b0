"""Decode runs by section 3.4 of docs/format.md, in Python. It is written from the text alone.

naive_levels.py decodes what is between runs.
"""

from tests.references.naive_levels import Decoder

KINDS = ("other", "text", "executable", "table")


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at


def decode(payload, length, level):
    """Return the raw bytes of a bytewise block with runs.

    Args:
        payload: coded bytes
        length: raw bytes of the block
        level: level of the block
    """
    assert payload[0] == 4
    listed, at = varint(payload, 1)
    end, rows = at + listed, []
    while at < end:
        gap, at = varint(payload, at)
        period, at = varint(payload, at)
        count, at = varint(payload, at)
        rows.append((gap, period, count))
    rest = payload[end:]
    size = length - sum(count for _, _, count in rows)
    left = rest[1:] if rest[0] == 5 else _coded(rest, size, level)
    assert len(left) == size
    data = bytearray()
    for gap, period, count in rows:
        data += left[:gap]
        left = left[gap:]
        for _ in range(count):
            data.append(data[-period])
    return bytes(data + left)


def _coded(payload, size, level):
    kind, at, record = KINDS[payload[0]], 1, 0
    if kind == "table":
        record, at = varint(payload, at)
    data = bytearray(Decoder(level, kind, record, size).decode(payload[at:]))
    if kind == "executable":
        for i in range(size - 4):  # 3.3
            if data[i] in (0xE8, 0xE9) and data[i + 4] in (0, 0xFF):
                value = int.from_bytes(data[i + 1 : i + 4], "little") - i
                data[i + 1 : i + 4] = (value & 0xFFFFFF).to_bytes(3, "little")
    return bytes(data)
