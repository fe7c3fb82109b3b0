"""Images of programs in ELF, PE and Mach-O, with sections as linkers make them, from a seed."""

import struct
from dataclasses import dataclass, field

import numpy as np

from tests.makers import inputs

_NAMES = tuple(
    f"{verb}_{noun}"
    for verb in ("read", "write", "open", "hash", "close")
    for noun in inputs.PROSE.decode().split()[:40]
)
_TEMPLATES = (
    "554889e5 4883ec20 31c0 c3 5d 488b4508 89d1 4885c0 0fb6c0 f30f6f07 c5fd6f06 62f17c48104601 66c7070100"
    " 48b80807060504030201 8d0480 a801 f6c101 41f7c200010000 0f3a0fc108"
)


@dataclass
class _Layout:
    """Sections that are put together, each with its name, header fields and place."""

    data: bytearray
    sections: list[tuple[str, int, int, int, int, int, int, int]] = field(default_factory=list)

    def add(self, name: str, kind: int, flags: int, content: bytes, row: int = 0, link: int = 0, shift: int = 0) -> int:
        """Add a section; return its place. Its address is that plus `shift`."""
        self.data += bytes(-len(self.data) % 16)
        place = len(self.data)
        self.sections.append((name, kind, flags, place + shift if flags else 0, place, len(content), row, link))
        self.data += content
        return place


def x86_code(size: int, address: int, seed: int = 3, long_mode: bool = True) -> bytes:
    """Return machine code of about `size` bytes with calls, jumps and data relative to the instruction pointer."""
    chance, code = np.random.default_rng(seed), bytearray()
    plain = [bytes.fromhex(text) for text in _TEMPLATES.split()[: None if long_mode else 5]]
    while len(code) < size:
        choice, target = chance.integers(12), int(chance.integers(12)) * 96
        if choice == 0:
            code += _relative(b"\xe8", address + len(code), address + target)
        elif choice == 1:
            code += _relative(
                bytes([0x0F, 0x80 + int(chance.integers(16))]), address + len(code), address + len(code) + 300
            )
        elif choice < 4 and long_mode:
            code += _relative(b"\x48\x8b\x05", address + len(code), (address >> 20 << 20) + 0x9000 + target)
        else:
            code += plain[int(chance.integers(len(plain)))]
    return bytes(code)


def _relative(opcode: bytes, here: int, target: int) -> bytes:
    return opcode + struct.pack("<i", target - here - len(opcode) - 4)


def arm64_code(size: int, address: int, seed: int = 3) -> bytes:
    """Return AArch64 code with calls and addresses of pages."""
    chance, words = np.random.default_rng(seed), list[int]()
    while 4 * len(words) < size:
        here, choice = address + 4 * len(words), chance.integers(5)
        if choice == 0:
            words.append(0x94000000 | (int(chance.integers(8)) * 24 - 4 * len(words)) // 4 % 2**26)
        elif choice == 1:
            pages = ((address >> 20 << 20) + 0x9000 + 4096 * int(chance.integers(3)) >> 12) - (here >> 12)
            words += [0x90000000 | (pages & 3) << 29 | (pages >> 2 & 0x7FFFF) << 5 | 3, 0x91004063]
        else:
            words.append((0xAA0103E0, 0xD65F03C0, 0xF9400C01, 0xB4000061)[int(chance.integers(4))])
    return struct.pack(f"<{len(words)}I", *words)


def riscv_code(size: int, address: int, seed: int = 3) -> bytes:
    """Return RISC-V code with short instructions, jumps, and addresses in two instructions."""
    chance, code = np.random.default_rng(seed), bytearray()
    seconds = (0x00013003, 0x00010007, 0x00010113, 0x00E13023, 0x000100E7, 0x0001011B, 0x00813027)
    while len(code) < size:
        choice, here = chance.integers(6), address + len(code)
        if choice == 0:
            halves = (address + 2 * int(chance.integers(9)) * 48 - here) // 2 % 2**20
            high = (halves >> 19) << 31 | (halves & 1023) << 21 | (halves >> 10 & 1) << 20 | (halves >> 11 & 255) << 12
            code += struct.pack("<I", high | 0xEF)
        elif choice == 1:
            second = seconds[int(chance.integers(len(seconds)))]
            away = ((address >> 20 << 20) + 0x9000 + 8 * int(chance.integers(300)) - here) % 2**32
            low = away % 4096
            code += struct.pack("<I", 0x117 | (away - low + (4096 if low >= 2048 else 0)) % 2**32)
            is_store = second & 0x7F in (0x23, 0x27)
            code += struct.pack("<I", second | ((low >> 5 << 25 | low % 32 << 7) if is_store else low << 20))
        elif choice == 2:
            code += struct.pack("<I", (0x00008067, 0x00B50533, 0x00000517)[int(chance.integers(3))])
        else:
            code += struct.pack("<H", (0x8082, 0x1141, 0xE406, 0x4501)[int(chance.integers(4))])
    return bytes(code)


def _hash(name: str) -> int:
    value = 5381
    for letter in name.encode():
        value = (33 * value + letter) % 2**32
    return value


def _symbols(names: list[str], buckets: int, is_wide: bool) -> tuple[bytes, bytes, bytes]:
    """Return `.dynsym`, `.dynstr` and `.gnu.hash` of names."""
    names = sorted(names, key=lambda name: _hash(name) % buckets)
    strings, symbols, words = b"\0", bytes(24 if is_wide else 16), 4
    bits, width = [0] * words, 64 if is_wide else 32
    bucket, chain = [0] * buckets, list[int]()
    for number, name in enumerate(names, 1):
        value = 0x4000 + 48 * number
        row = (len(strings), 18, 0, 12, value, 40) if is_wide else (len(strings), value, 40, 18, 0, 12)
        symbols += struct.pack("<IBBHQQ" if is_wide else "<IIIBBH", *row)
        strings += name.encode() + b"\0"
        code = _hash(name)
        bits[code // width % words] |= 1 << code % width | 1 << (code >> 6) % width
        bucket[code % buckets] = bucket[code % buckets] or number
        is_last = number == len(names) or _hash(names[number]) % buckets != code % buckets
        chain.append(code & ~1 | is_last)
    table = struct.pack("<4I", buckets, 1, words, 6) + struct.pack(f"<{words}{'Q' if is_wide else 'I'}", *bits)
    return symbols, strings, table + struct.pack(f"<{buckets + len(chain)}I", *bucket, *chain)


def _frames(place: int, begin: int, count: int) -> bytes:
    """Return `.eh_frame` at an address, with frames of functions one after the other."""
    common = bytes.fromhex("0000000001") + b"zPLR\0" + bytes.fromhex("017810 07 9b 00100000 1b1b 0c0708900100")
    common += bytes(-len(common) % 4)
    frames = struct.pack("<I", len(common)) + common
    for number in range(count):
        here, size = len(frames), 40 + 16 * (number % 3)
        body = struct.pack("<Iii", here + 4, begin - (place + here + 8), size - 3)
        body += (
            b"\4"
            + struct.pack("<i", (place >> 20 << 20) + 0x9800 + 12 * number - (place + here + 17))
            + b"\x41\x0e\x10\x86\x02\x43\x0d"
        )
        begin += size
        frames += struct.pack("<I", len(body)) + body
    return frames + bytes(4)


def _index(frames: bytes, place: int, here: int) -> bytes:
    rows, at = list[tuple[int, int]](), 0
    while size := int.from_bytes(frames[at : at + 4], "little"):
        if any(frames[at + 4 : at + 8]):
            begin = struct.unpack_from("<i", frames, at + 8)[0] + place + at + 8
            rows.append((begin - here, place + at - here))
        at += 4 + size
    head = bytes([1, 0x1B, 3, 0x3B]) + struct.pack("<ii", place - here - 4, len(rows))
    return head + b"".join(struct.pack("<ii", *row) for row in sorted(rows))


def elf(machine: int = 62, functions: int = 120, seed: int = 3, kind: int = 3, constants: bytes = b"") -> bytes:
    """Return an image for x86-64 (machine 62), x86 (3), AArch64 (183) or RISC-V (243), with a section of constants."""
    is_wide = machine != 3
    layout = _Layout(bytearray(64 + 2 * 56 if is_wide else 52 + 2 * 32))
    symbols, strings, table = _symbols(list(_NAMES[:functions]), 37, is_wide)
    layout.add(".gnu.hash", 0x6FFFFFF6, 2, table, 0, 2)
    layout.add(".dynsym", 11, 2, symbols, 24 if is_wide else 16, 3)
    layout.add(".dynstr", 3, 2, strings)
    reserved = 24 * functions
    relocated = layout.add(".rela.dyn", 4, 2, bytes(reserved), 24, 2)
    place = len(layout.data) + -len(layout.data) % 16
    makers = {183: arm64_code, 243: riscv_code}
    make = makers[machine](6_000, place, seed) if machine in makers else x86_code(6_000, place, seed, is_wide)
    layout.add(".text", 1, 6, make)
    layout.add(".rodata", 1, 2, constants)
    room = 12 + 8 * functions
    index = layout.add(".eh_frame_hdr", 1, 2, bytes(room))
    place = len(layout.data) + -len(layout.data) % 16
    frames = _frames(place, layout.sections[4][4], functions)
    layout.add(".eh_frame", 1, 2, frames)
    layout.data[index : index + room] = _index(frames, place, index)
    pointers = [0x4000 + 7 * (number * number % 89) for number in range(functions)]
    data = layout.add(".data", 1, 3, struct.pack(f"<{functions}Q", *pointers), 0, 0, 0x1000)
    rows = (struct.pack("<QQq", data + 0x1000 + 8 * i, 8, pointers[i]) for i in range(functions))
    layout.data[relocated : relocated + reserved] = b"".join(rows)
    return _finished(layout, machine, kind, data)


def _finished(layout: _Layout, machine: int, kind: int, data: int) -> bytes:
    """Return an image with the names of its sections, and headers."""
    is_wide, names = machine != 3, b"\0"
    places = list[int]()
    for section in [*layout.sections, (".shstrtab",)]:
        places.append(len(names))
        names += section[0].encode() + b"\0"
    layout.add(".shstrtab", 3, 0, names)
    layout.data += bytes(-len(layout.data) % 8)
    start, form = len(layout.data), "<IIQQQQIIQQ" if is_wide else "<IIIIIIIIII"
    rows = [(0,) * 10]
    for place, (_, type_, flags, address, at, size, row, link) in zip(places, layout.sections, strict=True):
        rows.append((place, type_, flags, address, at, size, link, 0, 8, row))
    for row in rows:
        layout.data += struct.pack(form, *row)
    head = 64 if is_wide else 52
    loads = [(5, 0, 0, data), (6, data, data + 0x1000, layout.sections[-2][4] + layout.sections[-2][5] - data)]
    for number, (flags, at, address, size) in enumerate(loads):
        fields = (
            (1, flags, at, address, address, size, size, 4096)
            if is_wide
            else (1, at, address, address, size, size, flags, 4096)
        )
        form = "<IIQQQQQQ" if is_wide else "<8I"
        struct.pack_into(form, layout.data, head + number * (56 if is_wide else 32), *fields)
    ident = b"\x7fELF" + bytes([1 + is_wide, 1, 1]) + bytes(9)
    sizes = (head, 56 if is_wide else 32, 2, 64 if is_wide else 40, len(rows), len(rows) - 1)
    form = "<HHIQQQIHHHHHH" if is_wide else "<HHIIIIIHHHHHH"
    layout.data[16:head] = struct.pack(form, kind, machine, 1, 0, head, start, 0, *sizes)
    layout.data[:16] = ident
    return bytes(layout.data)


def pe(machine: int = 0x8664, seed: int = 4) -> bytes:
    """Return an image of Windows with code, ranges of functions and data."""
    code = arm64_code(5_000, 0x1000, seed) if machine == 0xAA64 else x86_code(5_000, 0x1000, seed, machine == 0x8664)
    ranges = b"".join(
        struct.pack("<III", 0x1000 + 48 * i, 0x1000 + 48 * i + 40, 0x9000 + 8 * (i % 5)) for i in range(100)
    )
    contents = [
        (b".text", 0x60000020, code),
        (b".pdata", 0x40000040, ranges),
        (b".data", 0xC0000040, inputs.records(40)),
    ]
    data = bytearray(b"MZ" + bytes(58) + struct.pack("<I", 128) + inputs.PROSE[:64])
    data += b"PE\0\0" + struct.pack("<HHIIIHH", machine, len(contents), 0, 0, 0, 112, 0x22) + bytes(112)
    start, address, headers, body = 1024, 0x1000, b"", b""
    for name, flags, content in contents:
        padded = content + bytes(-len(content) % 512)
        headers += struct.pack("<8sIIIIIIHHI", name, len(content), address, len(padded), start, 0, 0, 0, 0, flags)
        start, address, body = start + len(padded), address + 0x4000, body + padded
    data += headers
    return bytes(data) + bytes(1024 - len(data)) + body


def macho(machine: int = 0x01000007, seed: int = 5) -> bytes:
    """Return an image of macOS with code, strings, frames and symbols."""
    base, start = 0x100000000, 0x400
    code = arm64_code(5_000, base + start, seed) if machine == 0x0100000C else x86_code(5_000, base + start, seed)
    code += bytes(-len(code) % 16)
    strings = b"\0".join(name.encode() for name in _NAMES[:60]) + b"\0"
    place = start + len(code) + len(strings)
    frames = _frames(base + place, base + start, 50)
    end = place + len(frames)
    symbols = b"".join(struct.pack("<IBBHQ", 11 * i, 15, 1, 0, base + start + 32 * i) for i in range(60))
    parts = [("__text", 0x80000400, start, len(code)), ("__cstring", 2, start + len(code), len(strings))]
    parts.append(("__eh_frame", 0, place, len(frames)))
    command = struct.pack("<II16sQQQQIIII", 0x19, 72 + 80 * 3, b"__TEXT", base, end, 0, end, 5, 5, 3, 0)
    for name, flags, at, size in parts:
        command += struct.pack("<16s16sQQ8I", name.encode(), b"__TEXT", base + at, size, at, 4, 0, 0, flags, 0, 0, 0)
    command += struct.pack("<6I", 2, 24, end, 60, end + len(symbols), len(strings))
    head = struct.pack("<8I", 0xFEEDFACF, machine, 0, 2, 2, len(command), 0, 0) + command
    return head + bytes(start - len(head)) + code + strings + frames + symbols + strings


def images() -> dict[str, bytes]:
    """Return images by name."""
    return {
        "ELF x86-64": elf(),
        "ELF x86": elf(3),
        "ELF AArch64": elf(183),
        "ELF RISC-V": elf(243),
        "PE x86-64": pe(),
        "PE x86": pe(0x14C),
        "PE AArch64": pe(0xAA64),
        "Mach-O x86-64": macho(),
        "Mach-O AArch64": macho(0x0100000C),
    }
