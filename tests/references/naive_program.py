"""The image of a program from its content, written from docs/format.md, section 21.8, one number at a time."""

from collections.abc import Callable, Iterator
from typing import Any

from tests.references.naive_program_tables import get, hashes_of, headers, put, relocations, rows, symbols
from tests.references.reading import Bytes

_NUMBERS = [0, 0, 0, 0, 0, 1, 2, 5, 0, 3, 1, 3, 3, 1, 0]
_KEPT = {6: 4, 7: 16}


def image(content: bytes, extra: bytes) -> bytes:
    """Return the image of a program."""
    plan = Bytes(extra)
    plan.byte()
    plan.varint()
    segments = [(plan.varint(), plan.varint(), plan.varint()) for _ in range(plan.varint())]
    parts, done = [], 0
    while plan.rest:
        kind = plan.byte()
        start = done + plan.varint()
        size = plan.varint()
        parts.append((kind, start, size, [plan.varint() for _ in range(_NUMBERS[kind])]))
        done = start + size
    data, file = bytearray(), Bytes(content)
    for kind, start, size, _ in parts:
        kept = _KEPT.get(kind, size)
        data += file.take(start + kept - len(data))
        data += bytes(size - kept)
    data += file.take(file.rest)

    def address(place: int) -> int:
        return next((a + place - s for a, s, n in segments if s <= place < s + n), place)

    for kind, start, size, numbers in parts:
        if kind in _IN_PLACE:
            piece = bytearray(data[start : start + size])
            _IN_PLACE[kind](piece, address(start), *numbers)
            data[start : start + size] = piece
    known = bytearray(data)
    for kind, start, size, _ in parts:
        if kind in (4, 6, 7, 9, 11, 12):
            known[start : start + size] = bytes(size)
    for kind, start, size, numbers in parts:
        piece = data[start : start + size]
        if kind == 4:
            data[start : start + size] = relocations(piece, known, segments)
        elif kind in _BY_OTHERS:
            _BY_OTHERS[kind](piece, numbers[0], known[numbers[1] : numbers[1] + numbers[2]])
            data[start : start + size] = piece
    for kind, start, size, numbers in parts:
        if kind == 6:
            frames = data[numbers[0] : sum(numbers)]
            data[start + 4 : start + size] = _index(frames, address(numbers[0]), address(start))
        elif kind == 7:
            wide, names, nnames, strings, nstrings = numbers
            tables = data[names : names + nnames], data[strings : strings + nstrings]
            data[start + 16 : start + size] = hashes_of(data[start : start + 16], size, *tables, wide)
    return bytes(data)


def _hexadecimal(text: str) -> set[int]:
    """Return the numbers of a list such as "0F 70-73"."""
    found: set[int] = set()
    for item in text.split():
        first, _, last = item.partition("-")
        found |= set(range(int(first, 16), int(last or first, 16) + 1))
    return found


_PREFIXES = _hexadecimal("26 2E 36 3E 64-67 F0 F2 F3")
_MODRM = {
    0: {op for op in range(0x40) if op % 8 < 4} | _hexadecimal("62 63 69 6B 80-8F C0 C1 C4-C7 D0-D3 D8-DF F6 F7 FE FF"),
    1: set(range(256)) - _hexadecimal("04-0B 0E 30-37 77 80-8F A0-A2 A8-AA C8-CF"),
}
_BYTE = {
    0: {op for op in range(0x40) if op % 8 == 4}
    | _hexadecimal("6A 6B 70-80 82 83 A8 B0-B7 C0 C1 C6 CD D4 D5 E0-E7 EB"),
    1: _hexadecimal("0F 70-73 A4 AC BA C2 C4 C5 C6"),
}
_FULL = {op for op in range(0x40) if op % 8 == 5} | _hexadecimal("68 69 81 A9 C7")


def instruction(code: bytes, at: int, bits: int) -> tuple[int, int]:
    """Return the length of an instruction, and the place of its relative operand, or 0."""
    p, short, wide = at, False, False
    for _ in range(4):
        if code[p] in _PREFIXES:
            short |= code[p] == 0x66
            p += 1
        else:
            break
    if bits == 64 and 0x40 <= code[p] <= 0x4F:
        wide = bool(code[p] & 8)
        p += 1
    op, table = code[p], 0
    p += 1
    if op in _PREFIXES or (bits == 64 and 0x40 <= op <= 0x4F):
        return p - at, 0
    if op == 0x0F:
        op, table = code[p], 1
        p += 1
        if op in (0x38, 0x3A):
            table = 2 if op == 0x38 else 3
            op = code[p]
            p += 1
    elif bits == 64 and op in (0xC5, 0xC4, 0x62):
        field = 1 if op == 0xC5 else code[p] & 7
        table = {1: 1, 3: 3}.get(field, 2)
        p += {0xC5: 1, 0xC4: 2, 0x62: 3}[op]
        op = code[p]
        p += 1
    q = reg = 0
    if table > 1 or op in _MODRM[table]:
        mod, reg, rm = code[p] >> 6, code[p] >> 3 & 7, code[p] & 7
        p += 1
        sib = mod < 3 and rm == 4
        if sib:
            rm = code[p] & 7
            p += 1
        if mod == 1:
            p += 1
        elif mod == 2 or (mod == 0 and rm == 5):
            if mod == 0 and bits == 64 and not sib:
                q = p
            p += 4
    size, is_relative = _immediate(table, op, reg, bits, short, wide)
    if is_relative:
        q = p
    return p + size - at, q


def partly(code: bytes) -> dict[str, Any]:
    """Return the fields of 7.3 for the first bytes of an instruction; the phase is None if it is complete."""
    names = ("opcode", "map", "modrm", "sib", "prefix", "displacement", "immediate", "phase")
    found: dict[str, Any] = dict.fromkeys(names, 0)
    try:
        _read_partly(iter(code), found)
    except StopIteration:
        return found
    found["phase"] = None
    return found


def _read_partly(code: Iterator[int], found: dict[str, Any]) -> None:
    """Note the fields of an instruction, and what the next byte is before it is read."""

    def read(phase: int) -> int:
        found["phase"] = phase
        return next(code)

    short, count, rex = False, 0, 0
    while ((op := read(0)) in _PREFIXES and count < 4) or 0x40 <= op <= 0x4F:
        found["prefix"], count = op, count + 1
        rex, short = op if op & 0xF0 == 0x40 else 0, short or op == 0x66
        if rex:
            break
    table = 0
    if rex:
        op = read(0)
    has_more = not (op in _PREFIXES or 0x40 <= op <= 0x4F)
    if op == 0x0F:
        found["map"] = table = 1
        op = read(1)
        if op in (0x38, 0x3A):
            found["map"] = table = 2 if op == 0x38 else 3
            op = read(2)
    elif op in (0xC5, 0xC4, 0x62):
        found["prefix"], found["map"] = op, int(op == 0xC5)
        for _ in range({0xC5: 1, 0xC4: 2, 0x62: 3}[op]):
            field = read(3) & 7
            found["map"] = found["map"] or {1: 1, 3: 3}.get(field, 2)
        table, op = found["map"], read(2)
    found["opcode"] = op
    if not has_more:
        return
    reg = 0
    if table > 1 or op in _MODRM[table]:
        found["modrm"] = modrm = read(4)
        mod, reg, rm = modrm >> 6, modrm >> 3 & 7, modrm & 7
        found["displacement"] = {1: 1, 2: 4}.get(mod, 4 if mod == 0 and rm == 5 else 0)
    found["immediate"] = _immediate(table, op, reg, 64, short, bool(rex & 8))[0]
    if found["modrm"] < 0xC0 and found["modrm"] & 7 == 4 and (table > 1 or op in _MODRM[table]):
        found["sib"] = read(5)
        found["displacement"] += 4 * (found["modrm"] < 0x40 and found["sib"] & 7 == 5)
    for name, phase in (("displacement", 6), ("immediate", 7)):
        while found[name]:
            read(phase)
            found[name] -= 1


def _immediate(table: int, op: int, reg: int, bits: int, short: bool, wide: bool) -> tuple[int, bool]:
    """Return the bytes of an immediate, and whether it is a relative operand."""
    full = 2 if short else 4
    if table >= 2:
        return int(table == 3), False
    if (table == 0 and op in (0xE8, 0xE9)) or (table == 1 and 0x80 <= op <= 0x8F):
        return (2, False) if short and bits == 32 else (4, True)
    if op in _BYTE[table]:
        return 1, False
    if table == 1:
        return 0, False
    if op in (0xF6, 0xF7):
        return (1 if op == 0xF6 else full) if reg < 2 else 0, False
    if op in _FULL:
        return full, False
    if op in (0x9A, 0xEA):
        return full + 2 if bits == 32 else 0, False
    sizes = {0xC2: 2, 0xCA: 2, 0xC8: 3}
    sizes |= {0xB8 + i: 8 if wide else full for i in range(8)} | {0xA0 + i: 8 if bits == 64 else 4 for i in range(4)}
    return sizes.get(op, 0), False


def _x86(bits: int) -> Callable[..., None]:
    def undo(code: bytearray, base: int) -> None:
        p = 0
        while p + 24 <= len(code):
            length, q = instruction(code, p, bits)
            p += length
            if q:
                put(code, q, int.from_bytes(code[q : q + 4], "big") - base - p)

    return undo


def _arm64(code: bytearray, base: int) -> None:
    base %= 2**32
    for p in range(0, len(code) - 3, 4):
        w = int.from_bytes(code[p : p + 4], "big")
        if w >> 26 == 0x25:
            w = (w >> 26 << 26) + (w - (base + p >> 2)) % 2**26
        elif w & 0x9F000000 == 0x90000000:
            v = ((w >> 29 & 3) * 2**19 + (w >> 5) % 2**19 - (base + p >> 12)) % 2**21
            w = (w & 0x9F00001F) + (v % 4 << 29) + (v // 4 << 5)
        put(code, p, w)


def _riscv(code: bytearray, base: int) -> None:
    p = 0
    while p + 8 <= len(code):
        w = get(code, p)
        if w & 3 != 3:
            p += 2
            continue
        if w & 127 == 0x6F:
            t = ((w >> 12 & 15) << 16) + (w >> 16 & 255) * 256 + (w >> 24)
            h = (t - (base % 2**32 + p >> 1)) % 2**20
            bits = (h >> 19) << 31 | (h & 1023) << 21 | (h >> 10 & 1) << 20 | (h >> 11 & 255) << 12
            put(code, p, w % 4096 + bits)
        elif w & 127 == 0x17:
            r, k = w >> 7 & 31, w >> 12
            if r and k >> 15 == r and k & 127 in (0x03, 0x07, 0x13, 0x1B, 0x23, 0x27, 0x67):
                d = (int.from_bytes(code[p + 4 : p + 8], "big") - base - p) % 2**32
                n = d % 4096
                put(code, p, w % 4096 + d - n + (4096 if n >= 2048 else 0))
                if k & 127 in (0x23, 0x27):
                    k = (k & 0xFF07F) + ((k >> 7 & 31) << 20) + (n >> 5 << 25) + (n % 32 << 7)
                else:
                    k += n << 20
                put(code, p + 4, k)
                p += 4
        p += 4


def _loop(data: bytearray) -> Iterator[tuple[int, int]]:
    """Yield the places of common information and frames, and their lengths."""
    p = 0
    while p + 16 <= len(data):
        length = get(data, p)
        if length < 4 or length >= 0xFFFFFFF0 or p + 4 + length > len(data):
            return
        yield p, length
        p += 4 + length


def _frames(data: bytearray, base: int, has_addresses: bool = True) -> None:
    expected = expected_data = 0
    for p, length in _loop(data):
        c = get(data, p + 4) - 4
        if c == -4 or length < 12 or not 0 <= c < p:
            continue
        begins, encoding = _encodings(data, c)
        if begins != 0x1B:
            continue
        put(data, p + 4, p + 4 - c)
        if not has_addresses:
            continue
        begin = get(data, p + 8) + expected
        put(data, p + 8, begin - base - p - 8)
        expected = begin + get(data, p + 12)
        if encoding == 0x1B and length >= 17 and data[p + 16] == 4:
            expected_data += get(data, p + 17)
            put(data, p + 17, expected_data - base - p - 17)


def _encodings(data: bytearray, c: int) -> tuple[int, int]:
    end = min(c + 4 + get(data, c), c + 64)
    letters = bytes(data[c + 9 : min(end, c + 25)]).partition(b"\0")[0].decode("latin1")
    p = c + 9 + len(letters)
    found = {"R": 0xFF, "L": 0xFF}
    if end > len(data) or len(letters) < 2 or letters[0] != "z" or p + 5 >= end:
        return 0xFF, 0xFF
    p += 1
    for _ in range(4):
        while p < end - 1 and data[p] >= 128:
            p += 1
        p += 1
    for letter in letters[1:]:
        if p >= end:
            break
        if letter in found:
            found[letter] = data[p]
        p += {"R": 1, "L": 1, "P": 5}.get(letter, 0)
    return found["R"], found["L"]


def _index(data: bytearray, f: int, h: int) -> bytes:
    rows = [(get(data, p + 8) + f + p + 8 - h, f + p - h) for p, _ in _loop(data) if get(data, p + 4)]
    rows = [((begin + 2**31) % 2**32 - 2**31, place) for begin, place in rows[: len(data) // 12]]
    numbers = [f - h - 4, len(rows), *(value for row in sorted(rows, key=lambda row: row[0]) for value in row)]
    return b"".join((number % 2**32).to_bytes(4, "little") for number in numbers)


def _placed(table: bytearray, form: int, expected: list[int]) -> None:
    passed = 0
    for at in range(0, len(table) - 3, form // 2):
        n = get(table, at)
        v = n - 2**31 if n >= 2**31 else expected[passed + n] if passed + n < len(expected) else n
        put(table, at, v)
        passed = sum(place <= v for place in expected)


def _places(table: bytearray, form: int, code: bytearray) -> None:
    expected, p, padded = [], 0, code + bytes(24)
    while p + 24 <= len(padded):
        length, q = instruction(padded, p, 64)
        p += length
        if q and not any(padded[q : q + 4]):
            expected.append(q)
    _placed(table, form, expected[: len(code) // 5 + 1])


def _begins(table: bytearray, form: int, frames: bytearray) -> None:
    expected = []
    for p, length in _loop(frames):
        if get(frames, p + 4):
            expected += [p + 8] + [p + 17] * (length > 17 and frames[p + 16] == 4)
    _placed(table, form, expected)


def _words(code: bytearray, base: int, form: int) -> None:
    machine, is_placed, is_little = form // 4, form // 2 % 2, form % 2
    for p in range(0, len(code) - 3, 4):
        w, t = int.from_bytes(code[p : p + 4], "big"), base % 2**32 + p >> 2
        if is_placed:
            if machine == 2 and w >> 30 == 1:
                w = 2**30 + (w - t) % 2**30
            elif machine == 3 and w & 0xFC000003 == 0x48000001:
                w = (w & 0xFC000003) + ((w >> 2) - t) % 2**24 * 4
            elif machine == 5 and w & 0x0F000000 == 0x0B000000 and w >> 28 < 15:
                w = (w >> 24 << 24) + (w - t) % 2**24
        code[p : p + 4] = w.to_bytes(4, "little" if is_little else "big")


_IN_PLACE: dict[int, Callable[..., None]] = {0: _x86(32), 1: _x86(64), 2: _arm64, 3: _frames, 5: rows, 8: _riscv}
_IN_PLACE |= {10: headers, 13: _words, 14: lambda data, base: _frames(data, base, False)}
_BY_OTHERS: dict[int, Callable[..., None]] = {9: symbols, 11: _places, 12: _begins}
