"""Digits to the base 85, closed as docs/format.md says (21.11), one group at a time."""

from tests.references.reading import Bytes

_ASCII = "".join(map(chr, range(ord("!"), ord("u") + 1)))
_GIT = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def close(kind: int, content: bytes, extra: bytes) -> bytes:
    if kind == 15 and not extra:
        return _digits(content, _GIT).encode()
    if kind == 15:
        lines = [content[at : at + 52] for at in range(0, len(content), 52)]
        return "".join(f"{_LETTERS[len(line) - 1]}{_digits(line, _GIT, whole=True)}\n" for line in lines).encode()
    file = Bytes(extra)
    flags, first, length = file.byte(), file.varint(), file.varint()
    digits = _digits(content, _ASCII, zeros=bool(flags & 4))
    newline = ["", "\n", "\r\n", "\r"][flags % 4]
    if newline:
        lines = [digits[:first]] + [digits[at : at + length] for at in range(first, len(digits), length)]
        digits = newline.join(lines) + (newline if flags & 8 else "")
    return digits.encode()


def _digits(content: bytes, alphabet: str, whole: bool = False, zeros: bool = False) -> str:
    found = ""
    for at in range(0, len(content), 4):
        group = content[at : at + 4]
        number = int.from_bytes(group.ljust(4, b"\0"), "big")
        digits = "".join(alphabet[number // 85**power % 85] for power in (4, 3, 2, 1, 0))
        if zeros and group == bytes(4):
            digits = "z"
        found += digits if whole or len(group) == 4 else digits[: len(group) - 4]
    return found
