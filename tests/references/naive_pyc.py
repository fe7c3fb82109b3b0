"""Closing of files of byte code, written from docs/format.md, section 21.17."""

import struct

from tests.references.reading import Bytes

_STRINGS = "zZaAtu"


def close(content: bytes, extra: bytes) -> bytes:
    """Return the file of byte code with a content."""
    sizes = Bytes(extra)
    file = Bytes(content)
    objects, lines, places, code = (Bytes(file.take(sizes.varint())) for _ in range(4))
    texts = Bytes(file.take(file.rest))
    caches = {}
    while sizes.rest:
        opcode = sizes.byte()
        caches[opcode] = sizes.byte()
    return _Closing(objects, lines, places, code, texts, caches).file()


class _Closing:
    def __init__(self, objects: Bytes, lines: Bytes, places: Bytes, code: Bytes, texts: Bytes, caches: dict[int, int]):
        self.objects, self.lines, self.places, self.texts, self.line = objects, lines, places, texts, 0
        if caches:
            words = b""
            while code.rest:
                word = code.take(2)
                words += word + bytes(2 * caches.get(word[0], 0))
            code = Bytes(words)
        self.code = code

    def file(self) -> bytes:
        header = self.objects.take(16)
        self.magic = header[0] + 256 * header[1]
        return header + self.object(self.texts)

    def signed(self) -> int:
        folded = self.objects.varint()
        return -(folded + 1) // 2 if folded % 2 else folded // 2

    def object(self, bytes_of: Bytes) -> bytes:
        byte = self.objects.byte()
        flag, kind = byte & 128, byte & 127
        if 1 <= kind <= 6:
            text = b""
            while (letter := self.texts.take(1)) != b"\n":
                text += letter
            return self.string(flag, _STRINGS[kind - 1], text)
        name, begin = chr(kind), bytes([byte])
        if name in _STRINGS:
            return self.string(flag, name, self.texts.take(self.objects.varint()))
        if name in "ir":
            return begin + struct.pack("<i", self.signed())
        if name in "Igy":
            return begin + self.objects.take({"I": 8, "g": 8, "y": 16}[name])
        if name == "s":
            size = self.objects.varint()
            if bytes_of is self.places:
                table = self.table(size // 2) if size % 2 else self.lines.take(size // 2)
                return begin + struct.pack("<i", len(table)) + table
            return begin + struct.pack("<i", size) + bytes_of.take(size)
        if name == "l":
            size = self.signed()
            return begin + struct.pack("<i", size) + self.objects.take(2 * abs(size))
        if name == "c":
            return begin + self.code_object()
        if name == "{":
            while (key := self.object(self.texts)) not in (b"0", b"\xb0"):
                begin += key + self.object(self.texts)
            return begin + key
        if name == ":":
            return begin + b"".join(self.object(self.texts) for _ in range(3))
        if name == ")":
            size = self.objects.byte()
            return begin + bytes([size]) + b"".join(self.object(self.texts) for _ in range(size))
        if name in "([<>":
            size = self.signed()
            return begin + struct.pack("<i", size) + b"".join(self.object(self.texts) for _ in range(size))
        assert name in "0NFTS."
        return begin

    def string(self, flag: int, name: str, text: bytes) -> bytes:
        size = bytes([len(text)]) if name in "zZ" else struct.pack("<i", len(text))
        return bytes([flag | ord(name)]) + size + text

    def code_object(self) -> bytes:
        new = self.magic >= 3450
        numbers = 6 if 3411 <= self.magic < 3450 else 5
        out = b"".join(struct.pack("<i", self.signed()) for _ in range(numbers))
        out += self.object(self.code)
        for number in range(7):
            out += self.object(self.objects if new and number == 3 else self.texts)
        self.line += self.signed()
        out += struct.pack("<i", self.line) + self.object(self.places if new else self.lines)
        return out + self.object(self.lines) if new else out

    def table(self, count: int) -> bytes:
        out = b""
        for _ in range(count):
            line, first, columns, flags = self.places.take(4)
            line += 256 * self.lines.varint() if flags & 64 else 0
            lines = self.lines.varint() if flags & 32 else 0
            last = (first + columns) % 256
            if flags & 8:
                form, rest = 15, b""
            elif flags & 16:
                form, rest = 13, _groups(line)
            elif lines == line == 0 and first < 80 and 0 <= last - first < 16:
                form, rest = first // 8, bytes([first % 8 * 16 + last - first])
            elif lines == 0 and line in (0, 2, 4) and max(first, last) < 128:
                form, rest = 10 + line // 2, bytes([first, last])
            else:
                form, rest = 14, b"".join(_groups(number) for number in (line, lines, first + 1, last + 1))
            out += bytes([128 + 8 * form + flags % 8]) + rest
        return out


def _groups(number: int) -> bytes:
    return bytes([64 + number % 64]) + _groups(number // 64) if number >= 64 else bytes([number])
