"""Closing of class files of Java, written from docs/format.md, section 21.18."""

from tests.references.reading import Bytes


def close(content: bytes, extra: bytes) -> bytes:
    """Return the class file with a content."""
    sizes, file = Bytes(extra), Bytes(content)
    streams = [Bytes(file.take(sizes.varint())) for _ in range(4)]
    assert sizes.rest == 0
    return _Closing(*streams, Bytes(file.take(file.rest))).file()


class _Closing:
    def __init__(self, rest: Bytes, constants: Bytes, lines: Bytes, code: Bytes, texts: Bytes):
        self.rest, self.constants, self.table, self.code, self.texts = rest, constants, lines, code, texts
        self.out, self.line, self.names = b"", 0, dict[int, bytes]()

    def copy(self, count: int) -> int:
        taken = self.rest.take(count)
        self.out += taken
        return int.from_bytes(taken)

    def file(self) -> bytes:
        self.copy(8)
        count, number = self.copy(2), 1
        while number < count:
            number += self.constant(number)
        self.copy(6)
        self.copy(2 * self.copy(2))
        for _ in range(2):
            for _ in range(self.copy(2)):
                self.copy(6)
                self.attributes()
        self.attributes()
        assert not (self.rest.rest or self.constants.rest or self.table.rest or self.code.rest or self.texts.rest)
        return self.out

    def constant(self, number: int) -> int:
        tag = self.constants.byte()
        if tag in (1, 2):
            text = b""
            if tag == 1:
                while (letter := self.texts.take(1)) != b"\n":
                    text += letter
            else:
                text = self.texts.take(int.from_bytes(self.constants.take(2)))
            self.names[number] = text
            self.out += b"\1" + len(text).to_bytes(2) + text
            return 1
        self.out += bytes([tag])
        self.out += self.constants.take({3: 4, 4: 4, 5: 8, 6: 8, 15: 1, 17: 2, 18: 2}.get(tag, 0))
        references = {3: 0, 4: 0, 5: 0, 6: 0, 9: 2, 10: 2, 11: 2, 12: 2}.get(tag, 1)
        for _ in range(references):
            self.out += ((int.from_bytes(self.constants.take(2)) + number) % 65536).to_bytes(2)
        return 2 if tag in (5, 6) else 1

    def attributes(self) -> None:
        for _ in range(self.copy(2)):
            name, size = self.names.get(self.copy(2)), self.copy(4)
            if name == b"Code":
                self.copy(4)
                size = self.copy(4)
                self.out += self.code.take(size)
                self.copy(8 * self.copy(2))
                self.attributes()
            elif name == b"LineNumberTable":
                place = 0
                for _ in range(self.copy(2)):
                    place = (place + int.from_bytes(self.table.take(2))) % 65536
                    self.line = (self.line + int.from_bytes(self.table.take(2))) % 65536
                    self.out += place.to_bytes(2) + self.line.to_bytes(2)
            else:
                self.copy(size)
