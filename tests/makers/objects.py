"""Object files in ELF as assemblers make them: code with zeros for operands, relocations, symbols, section headers."""

import struct
from itertools import accumulate

import numpy as np

_PLAIN = tuple(map(bytes.fromhex, ("554889e5", "4883ec20", "31c0", "c3", "488b4508", "89d1", "0fb6c0", "c7070100ff00")))
_KINDS = {".text": (1, 6), ".eh_frame": (1, 2), ".symtab": (2, 0), ".strtab": (3, 0), ".shstrtab": (3, 0)}


def object_file(machine: int = 62, is_big: bool = False, is_wide: bool = True, functions: int = 24) -> bytes:
    """Return an object file for x86-64 (machine 62) or for a machine with instructions of 4 bytes.

    Args:
        machine: number of ELF
        is_big: whether the highest byte of numbers comes first
        is_wide: whether it has 64 bits
        functions: their number
    """
    order, chance = "<>"[is_big], np.random.default_rng(machine)
    code, places = _x86(functions, chance) if machine == 62 else _words(functions, chance, order)
    frames, begins = _frames(functions, order)
    names = [f"{verb}_{noun}".encode() for verb in ("read", "close") for noun in ("file", "line", "page", "tree")]
    names = [name + b"%d" % number for number in range(functions // 8) for name in names]
    starts = [1, *accumulate((len(name) + 1 for name in names), initial=1)][1:-1]
    contents = {
        ".text": code,
        ".eh_frame": frames,
        ".symtab": _symbols(starts, order, is_wide),
        ".strtab": b"\0" + b"".join(name + b"\0" for name in names),
        ".rela.text": _relocations(places, order, is_wide),
        ".rela.eh_frame": _relocations(begins, order, is_wide),
    }
    return _finished(contents, machine, order, is_wide)


def _x86(functions: int, chance: np.random.Generator) -> tuple[bytes, list[int]]:
    """Return code, and the places of operands that are not known."""
    code, places = bytearray(), list[int]()
    while len(code) < 90 * functions:
        choice = chance.integers(8)
        if choice < 2:
            opcode = (b"\xe8", b"\x48\x8d\x3d")[choice]
            places += [len(code) + len(opcode)] * bool(chance.integers(9))
            code += opcode + bytes(4)
        else:
            code += _PLAIN[int(chance.integers(len(_PLAIN)))]
    places[3:5] = places[4:2:-1]  # some assemblers do not sort them
    return bytes(code), places


def _words(functions: int, chance: np.random.Generator, order: str) -> tuple[bytes, list[int]]:
    words = chance.choice([0x40000000, 0x48000001, 0xEB000000, 0x9DE3BFA0, 0x7C0802A6, 0x27BDFFE0], 22 * functions)
    places = [4 * at for at in range(words.size) if words[at] < 0x48000002]
    return struct.pack(f"{order}{words.size}I", *words.tolist()), places


def _frames(functions: int, order: str) -> tuple[bytes, list[int]]:
    """Return `.eh_frame`, and the places of begins."""
    common = bytes.fromhex("0000000001") + b"zR\0" + bytes.fromhex("0178100 11b0c0708900100".replace(" ", ""))
    common += bytes(-len(common) % 4)
    frames, places = struct.pack(order + "I", len(common)) + common, list[int]()
    for number in range(functions):
        places.append(len(frames) + 8)
        body = struct.pack(order + "III", len(frames) + 4, 0, 60 + number % 5) + b"\0\x41\x0e\x10\x86\x02\x43\x0d"
        frames += struct.pack(order + "I", len(body)) + body
    return frames + bytes(4), places


def _symbols(starts: list[int], order: str, is_wide: bool) -> bytes:
    rows = [(0, 0, 0, 0, 0, 0), (0, 3, 0, 1, 0, 0), *((start, 18, 0, 1, 90 * i, 60) for i, start in enumerate(starts))]
    if is_wide:
        return b"".join(struct.pack(order + "IBBHQQ", *row) for row in rows)
    return b"".join(struct.pack(order + "IIIBBH", name, *row, info, other, of) for name, info, other, of, *row in rows)


def _relocations(places: list[int], order: str, is_wide: bool) -> bytes:
    form = order + ("QQq" if is_wide else "IIi")
    shift = 32 if is_wide else 8
    return b"".join(struct.pack(form, place, (3 + i % 5) << shift | 2, -4) for i, place in enumerate(places))


def _finished(contents: dict[str, bytes], machine: int, order: str, is_wide: bool) -> bytes:
    """Return a file with headers."""
    contents[".shstrtab"] = b"\0" + b"".join(name.encode() + b"\0" for name in (*contents, ".shstrtab"))
    head, row = (64, 64) if is_wide else (52, 40)
    data, rows, names = bytearray(head), [(0,) * 10], list(contents)
    for name, content in contents.items():
        data += bytes(-len(data) % 8)
        kind, flags = _KINDS.get(name, (4, 64))
        of = names.index(name.removeprefix(".rela")) + 1 if kind == 4 else 0
        link = {4: 3, 2: 4}.get(kind, 0)
        size = {4: 24 if is_wide else 12, 2: 24 if is_wide else 16}.get(kind, 0)
        place = contents[".shstrtab"].index(name.encode() + b"\0")
        rows.append((place, kind, flags, 0, len(data), len(content), link, of, 8, size))
        data += content
    data += bytes(-len(data) % 8)
    start = len(data)
    for fields in rows:
        data += struct.pack(order + ("IIQQQQIIQQ" if is_wide else "10I"), *fields)
    data[:16] = b"\x7fELF" + bytes([1 + is_wide, 1 + (order == ">"), 1]) + bytes(9)
    form = order + ("HHIQQQIHHHHHH" if is_wide else "HHIIIIIHHHHHH")
    data[16:head] = struct.pack(form, 1, machine, 1, 0, 0, start, 0, head, 0, 0, row, len(rows), len(rows) - 1)
    return bytes(data)


def object_files() -> dict[str, bytes]:
    """Return object files by the name of their program."""
    return {
        "ELF x86-64": object_file(),
        "ELF AArch64": object_file(183),
        "ELF ARM": object_file(40, is_wide=False),
        "ELF MIPS": object_file(8, True, False),
        "ELF PowerPC": object_file(21, True),
        "ELF SPARC": object_file(2, True, False),
        "ELF z/Architecture": object_file(22, True),
    }
