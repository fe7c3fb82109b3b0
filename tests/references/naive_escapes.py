"""Text with escapes, closed as docs/format.md says (21.10), one byte at a time."""

from tests.references.reading import Bytes

_UNRESERVED = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.!~*'()"
_USUAL = {
    11: set(range(256)) - set(_UNRESERVED),
    12: set(range(256)) - set(b"\t\n\r") - set(range(32, 127)) | {61},
    13: set(range(128, 256)),
}


def close(kind: int, content: bytes, extra: bytes) -> bytes:
    file = Bytes(extra)
    flags, width = file.byte(), file.varint()
    others = set(file.take(file.varint()))
    differences, end = dict[int, int](), 0
    while file.rest:
        number = file.varint()
        differences[end + number // 4] = number % 4
        end += number // 4 + 1
    escaped = _USUAL[kind] ^ others
    units = [content[at : at + 1] for at in range(len(content))]
    if kind == 13:
        units = [character.encode() for character in content.decode()]
    text, column, at = b"", 0, 0
    for number, unit in enumerate(units):
        byte = unit[0]
        ends = number + 1 == len(units) or units[number + 1] in (b"\n", b"\r")
        action = int(byte in escaped or (kind == 12 and ends and byte in b" \t"))
        if kind == 12 and width and (action or byte not in b"\r\n"):
            room = width if ends and flags // 8 > action else width - 1
            action += 2 * (column + (3 if action else 1) > room)
        action = differences.pop(at, action)
        at += len(unit)
        if action & 2:
            text += b"=\r\n" if flags & 4 else b"=\n"
            column = 0
        if action & 1:
            text += _escape(kind, unit, bool(flags & 1))
            column += 3
        else:
            text += b"+" if flags & 2 and byte == 32 else unit
            column = 0 if byte == 10 else column + (byte != 13)
    assert not differences
    return text


def _escape(kind: int, unit: bytes, upper: bool) -> bytes:
    digits = unit.hex() if kind != 13 else unit.decode().encode("utf-16-be").hex()
    size, mark = {11: (2, b"%"), 12: (2, b"="), 13: (4, b"\\u")}[kind]
    digits = digits.upper() if upper else digits
    return b"".join(mark + digits[at : at + size].encode() for at in range(0, len(digits), size))
