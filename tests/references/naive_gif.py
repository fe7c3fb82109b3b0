"""The data of images in GIF files, closed as docs/format.md says (21.7), slowly; and LZW of PDF (21.12)."""

from tests.references.reading import Bytes


def close(content: bytes, extra: bytes) -> bytes:
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            at, byte = at + 1, extra[at]
            value, shift = value | (byte & 127) << shift, shift + 7
            if byte < 128:
                return value

    bits, width, size, clears_at, count = (varint() for _ in range(5))
    numbers = [(varint(), varint() - 1) for _ in range(count)]
    last, rest = extra[at], extra[at + 1 :]
    if width:
        rows = [content[i : i + width] for i in range(0, len(content), width)]
        content = b"".join(row for first, step in ((0, 8), (4, 8), (2, 4), (1, 2)) for row in rows[first::step])
    written = _written(content, bits, clears_at, numbers)
    padded = written + "0" * (-len(written) % 8)
    stream = bytes(int(padded[i : i + 8][::-1], 2) for i in range(0, len(padded), 8))
    stream = stream[:-1] + bytes([stream[-1] ^ last]) + rest
    blocks = [stream[i : i + size] for i in range(0, len(stream), size)]
    return bytes([bits]) + b"".join(bytes([len(block)]) + block for block in blocks) + b"\0"


def close_early(content: bytes, extra: bytes) -> bytes:
    """Close LZW of PDF, whose high bits are first, and whose codes grow one code early."""
    file = Bytes(extra)
    clears_at, last, numbers = file.varint(), file.varint(), []
    while file.rest:
        numbers.append((file.varint(), file.varint() - 1))
    written = _written(content, 8, clears_at, numbers, True)
    written += "0" * (-len(written) % 8)
    stream = bytes(int(written[i : i + 8], 2) for i in range(0, len(written), 8))
    return stream[:-1] + bytes([stream[-1] ^ last])


def _written(symbols: bytes, bits: int, clears_at: int, differences: list[tuple[int, int]], early: bool = False) -> str:
    """Return the bits of all codes as digits, in the order in which they are written."""
    clear = 1 << bits
    fresh = {bytes([symbol]): symbol for symbol in range(clear)}
    table, strings = dict(fresh), {code: string for string, code in fresh.items()}
    known, last, width, position, digits, due = clear + 2, -1, bits + 1, 0, "", list(differences)
    gap = 0
    for k in range(1 << 30):
        if k == 0 or known == clears_at:
            code = clear
        elif position == len(symbols):
            code = clear + 1
        else:
            end = position + 1
            while end < len(symbols) and symbols[position : end + 1] in table:
                end += 1
            code = table[symbols[position:end]]
        if due and due[0][0] == gap:
            code, gap = due.pop(0)[1], -1
            if code < 0:
                break
        gap += 1
        digits += f"{code:0{width}b}"[:: 1 if early else -1]
        if code == clear + 1:
            break
        if code == clear:
            table, strings = dict(fresh), {code: string for string, code in fresh.items()}
            known, last, width = clear + 2, -1, bits + 1
            continue
        if last >= 0 and known < 4096:
            known += 1
            if known + early == 1 << width and width < 12:
                width += 1
        last, position = code, position + len(strings[code])
        if known < 4096 and position < len(symbols):
            string = strings[code] + symbols[position : position + 1]
            strings[known] = string
            table.setdefault(string, known)
    assert position == len(symbols) and not due
    return digits
