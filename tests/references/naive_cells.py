"""The registers of cells by section 5.14 of docs/format.md, in Python. It is written from the text alone."""

from tests.references.naive_bytewise import mix

FIRST = {b"\x09\x08\x10\0", b"\x09\x08\x08\0", b"\x09\0\x04\0", b"\x09\x02\x06\0", b"\x09\x04\x06\0"}
TYPES = {*range(1, 7), 0xBD, 0xBE, 0xD6, 0xFD, *range(0x201, 0x207), 0x27E, 0x406}
WIDTHS = {0xBD: 6, 0xBE: 2}


class Cells:
    def __init__(self, length):
        self.length = length
        self.followed, self.offset, self.type, self.size, self.column, self.before = False, 0, 0, 0, 0, 0
        self.voted, self.usual = 0, {}

    def registers(self, data, records):
        """Return the registers after the last byte of `data`, with those of records (5.13) updated."""
        self._vote(data[-1], len(data) - 1)
        self._follow(data)
        q = len(data)
        since = q - records.counted
        if self.followed:
            cell, counter, place = self._in_chain()
        elif since < 4 * self.length:
            cell, counter, place = mix(records.counter, since), 256 + records.counter, min(since, 255)
            self.voted = since % self.length
        else:
            cell, counter, place = q % self.length, 0, min(q % self.length, 255)
            self.voted = cell
        self.voted %= 8192
        _, _, other, at, three = self.usual.get(self.voted, (0,) * 5)
        unusual = other | min((q - at) // self.length, 255) << 8
        before = three & 0xFFFF | self.voted << 16 | three >> 16 << 32
        return {"CELL": cell, "COUNTER": counter, "UNUSUAL": unusual, "PLACE": place, "BEFORE": before}

    def _vote(self, c, i):
        byte, votes, other, at, three = self.usual.get(self.voted, (0,) * 5)
        three = (three << 8 | c) & 0xFFFFFF
        if c == byte:
            votes = min(votes + 1, 255)
        else:
            byte, votes, other, at = (c, 1, c, i) if votes == 0 else (byte, votes - 1, c, i)
        self.usual[self.voted] = byte, votes, other, at, three

    def _follow(self, data):
        self.offset += 1
        latest = bytes(data[-4:])
        first, last = latest[0] | latest[1] << 8 if len(latest) == 4 else 0, int.from_bytes(latest[2:4], "little")
        second = not self.followed and 6 <= last <= 64 and first in TYPES and self._after_a_cell(data)
        if latest in FIRST or (second and len(latest) == 4):
            self.followed, self.offset, self.type, self.column = True, 4, first, 0
        if not self.followed:
            return
        if self.offset == 2:
            self.type, self.followed = last, last <= 0x10FF
        elif self.offset == 4:
            self.size, self.followed = last, last <= 8228
        elif self.offset == 8 and self.type in TYPES:
            self.column = last
        if self.offset >= 4 + self.size and self.offset >= 4:
            if self.type in WIDTHS:
                self.column += max(self.size - 6, 0) // WIDTHS[self.type]
            self.before, self.offset = self.type, 0

    def _after_a_cell(self, data):
        for size in range(6, 65):
            header = data[-8 - size : -4 - size] if len(data) >= 8 + size else b""
            if int.from_bytes(header[:2], "little") in TYPES and int.from_bytes(header[2:], "little") == size:
                return True
        return False

    def _in_chain(self):
        kind, offset = self.before if self.offset < 2 else self.type, self.offset
        column = self.column
        if kind not in TYPES:
            column = 0
        elif offset < 8:
            column += 1
        elif kind in WIDTHS:
            column, offset = column + (offset - 8) // WIDTHS[kind], 8 + (offset - 8) % WIDTHS[kind]
        self.voted = mix(kind, offset) >> 48
        return mix(self.voted, column), 256 | column & 255, min(offset, 255)
