"""Class files of Java, made by hand with every form of constant and the attributes of methods."""

import struct

__all__ = ["CONSTANTS", "class_file"]

# Tags with the bytes after them: texts have their own function.
CONSTANTS = [
    (7, struct.pack(">H", 2)),
    (10, struct.pack(">HH", 1, 4)),
    (9, struct.pack(">HH", 1, 65535)),
    (12, struct.pack(">HH", 6, 7)),
    (3, b"\0\0\0\x2a"),
    (5, bytes(7) + b"\1"),
    (6, b"\x3f\xf0" + bytes(6)),
    (15, struct.pack(">BH", 6, 2)),
    (18, struct.pack(">HH", 0, 4)),
    (16, struct.pack(">H", 2)),
]


def _text(text: bytes) -> bytes:
    return b"\1" + struct.pack(">H", len(text)) + text


def _attribute(name: int, body: bytes) -> bytes:
    return struct.pack(">HI", name, len(body)) + body


def class_file(methods: int = 3, note: bytes = b"two\nlines", code: bytes = b"\x2a\xb7\0\1\xb1") -> bytes:
    """Return a class with a field and some methods, each with code, line numbers and an attribute without a name.

    Args:
        methods: their number.
        note: a text among the constants.
        code: of each method.
    """
    texts = [b"Code", b"LineNumberTable", note, b"org/example/Made", b"\xc3\xa9" * 40]
    constants = b"".join(map(_text, texts)) + b"".join(bytes([tag]) + body for tag, body in CONSTANTS)
    count = 1 + len(texts) + len(CONSTANTS) + 2  # two of which are two numbers
    made = b"\xca\xfe\xba\xbe\0\0\0\x34" + struct.pack(">H", count) + constants
    made += struct.pack(">3HHH", 0x21, 6, 7, 1, 6) + struct.pack(">H3HH", 1, 2, 4, 5, 0) + struct.pack(">H", methods)
    for number in range(methods):
        rows = [(place, 10 * number + place) for place in range(0, 5, 2)]
        lines = struct.pack(">H", len(rows)) + b"".join(struct.pack(">HH", *row) for row in rows)
        inner = struct.pack(">H", 1) + _attribute(2, lines)
        body = struct.pack(">HHI", 2, 1, len(code)) + code + struct.pack(">H4H", 1, 0, 4, 5, 0) + inner
        made += struct.pack(">3HH", 1, 4, 5, 2) + _attribute(1, body) + _attribute(99, b"any")
    return made + struct.pack(">H", 1) + _attribute(3, b"\0\4")
