"""A decoder of blocks with opened wrappers, written from docs/format.md, section 21, one number at a time."""

import base64
import struct
import zlib
from collections.abc import Callable
from typing import Any

from tests.references import (
    naive_base85,
    naive_bzip2,
    naive_class,
    naive_dex,
    naive_escapes,
    naive_fax,
    naive_gif,
    naive_jpeg,
    naive_pickle,
    naive_pyc,
    naive_quick,
    naive_zip,
)
from tests.references.naive_deflate import Closings
from tests.references.naive_program import image
from tests.references.reading import Bytes


def decode(payload: bytes, decode_part: Callable[[int, bytes, int], bytes]) -> bytes:
    """Return the raw bytes of a payload. `decode_part` decodes a block from its kind, payload and raw length."""

    def part() -> bytes:
        kind, raw = file.byte(), file.varint()
        return file.take(raw) if kind == 1 else decode_part(kind, file.take(file.varint()), raw)

    file = Bytes(payload)
    assert file.byte() == 0
    plan = Bytes(part())
    groups = []
    while file.rest:
        groups.append(Bytes(b"".join(part() for _ in range(file.varint()))))
    tree = Bytes(plan.take(plan.varint()))
    opened = b""
    while plan.rest:
        size = plan.varint()
        opened += groups[plan.varint()].take(size)
    root, own = _node(tree), Bytes(opened)
    _take_own(root, own)
    assert tree.rest == own.rest == 0
    return _close(root, Closings())


def _node(tree: Bytes) -> dict[str, Any]:
    node: dict[str, Any] = {"own": tree.varint(), "children": []}
    for _ in range(tree.varint()):
        child = {"gap": tree.varint(), "kind": tree.byte(), "node": _node(tree)}
        child["extra"] = tree.take(tree.varint())
        child["closing"] = tree.take(tree.varint())
        node["children"].append(child)
    return node


def _take_own(node: dict[str, Any], own: Bytes) -> None:
    node["own"] = own.take(node["own"])
    for child in node["children"]:
        _take_own(child["node"], own)


def _close(node: dict[str, Any], closings: Closings) -> bytes:
    own, data, wrappers, contents = Bytes(node["own"]), b"", [], []
    if any(child["kind"] == 0 and child["extra"] and child["extra"][0] & 16 for child in node["children"]):
        return _close_signed(node, closings)
    for child in node["children"]:
        data += own.take(child["gap"])
        content = _close(child["node"], closings)
        if child["kind"] in (22, 23):
            content, child["extra"] = _numbers(content, child["extra"], data)
        flags = child["extra"][0] if child["kind"] == 0 and child["extra"] else 0
        if flags & 8:
            content = naive_zip.record(content, data, [wrapper[:2] for wrapper in wrappers], contents)
        stream = closings.close(content, child["closing"]) if child["kind"] in (0, 1, 2, 3, 16, 23) else b""
        wrapper = _closed(child["kind"], content, child["extra"], stream)
        contents.append(content if child["kind"] == 0 else None)
        fields = struct.pack("<III", zlib.crc32(content), len(stream), len(content))
        wrappers.append((len(data), len(data) + len(wrapper), flags, fields))
        data += wrapper
    return _filled(data + own.take(own.rest), wrappers)


def _close_signed(node: dict[str, Any], closings: Closings) -> bytes:
    own, values, sections, found = Bytes(node["own"]), {}, dict[bytes, bytes](), []
    for child in node["children"]:
        assert child["kind"] not in (22, 23)
        flags = child["extra"][0] if child["kind"] == 0 and child["extra"] else 0
        gap, content = own.take(child["gap"]), _close(child["node"], closings)
        header = max((at for at in range(max(len(gap) - 4096, 0), len(gap) - 29) if _ends(gap, at)), default=-1)
        name = gap[header + 30 :][: gap[header + 26] + 256 * gap[header + 27]] if header >= 0 else b""
        stream = None
        if not flags & 16:
            stream = closings.close(content, child["closing"]) if child["closing"] else b""
            if child["kind"] == 0 and name == naive_zip.MANIFEST:
                sections = naive_zip.sections(content) if len(content) <= 1 << 24 else {}
            elif child["kind"] == 0 and not naive_zip.is_signature(name):
                values[name] = content
        found.append([gap, child, flags, name, content, stream])
    for is_manifest in (True, False):
        for one in found:
            if one[2] & 16 and is_manifest == (one[3] == naive_zip.MANIFEST):
                one[4] = naive_zip.digests(one[4], values if is_manifest else sections)
                sections = naive_zip.sections(one[4]) if is_manifest else sections
                one[5] = closings.close(one[4], one[1]["closing"])
    data, wrappers = b"", []
    for gap, child, flags, _, content, stream in found:
        data += gap
        wrapper = _closed(child["kind"], content, child["extra"], stream)
        fields = struct.pack("<III", zlib.crc32(content), len(stream), len(content))
        wrappers.append((len(data), len(data) + len(wrapper), flags, fields))
        data += wrapper
    return _filled(data + own.take(own.rest), wrappers)


def _ends(gap: bytes, at: int) -> bool:
    sizes = gap[at + 26] + 256 * gap[at + 27] + gap[at + 28] + 256 * gap[at + 29]
    return gap[at : at + 4] == b"PK\3\4" and at + 30 + sizes == len(gap)


def _filled(empty: bytes, wrappers: list[tuple[int, int, int, bytes]]) -> bytes:
    data, known = bytearray(empty), {}

    def u16(at: int) -> int:
        return empty[at] + 256 * empty[at + 1]

    for number, (start, end, flags, fields) in enumerate(wrappers):
        before = wrappers[number - 1][1] if number else 0
        after = wrappers[number + 1][0] if number + 1 < len(wrappers) else len(empty)
        headers = [
            at
            for at in range(max(before, start - 4096), start - 29)
            if empty[at : at + 4] == b"PK\3\4" and at + 30 + u16(at + 26) + u16(at + 28) == start
        ]
        if headers and flags & 1:
            data[headers[-1] + 14 : headers[-1] + 26] = fields
        place = end + 4 if empty[end : end + 4] == b"PK\7\x08" else end
        if headers and flags & 2 and place + 12 <= after:
            data[place : place + 12] = fields
        if headers:
            known[headers[-1]] = fields
    if any(flags & 4 for _, _, flags, _ in wrappers):
        naive_zip.fill_directories(data, [wrapper[:2] for wrapper in wrappers], known)
    return bytes(data)


def _byte_of(char: str, page: str) -> bytes:
    try:
        return char.encode(page)
    except UnicodeEncodeError:
        return char.encode("latin-1")


def differences(content: bytes, extra: bytes) -> bytes:
    file = Bytes(extra)
    width, channels, bits, little = file.varint(), *extra[-3:]
    size, order = bits // 8, "little" if little else "big"
    samples = [int.from_bytes(content[at : at + size], order) for at in range(0, len(content), size)]
    found = []
    for number, sample in enumerate(samples):
        left = samples[number - channels] if number // channels % width else 0
        found.append(((sample - left) % 2**bits).to_bytes(size, order))
    return b"".join(found)


def _numbers(content: bytes, extra: bytes, data: bytes) -> tuple[bytes, bytes]:
    file = Bytes(extra)
    distance, count, row = file.varint(), file.byte() + 1, file.varint()
    begin = len(data) - distance - 3 * count
    colours = [data[at : at + 3] for at in range(begin, begin + 3 * count, 3)]
    order = sorted(range(count), key=lambda k: (299 * colours[k][0] + 587 * colours[k][1] + 114 * colours[k][2], k))
    order += range(count, 256)
    kept = set(range(0, len(content), row)) if row else set[int]()
    found = bytes(byte if at in kept else order[byte] for at, byte in enumerate(content))
    return found, file.take(file.rest)


def planes(content: bytes, extra: bytes) -> bytes:
    file = Bytes(extra)
    width, step, row = file.byte(), file.byte(), file.varint()
    row, found = row or len(content) // width, b""
    for start in range(0, len(content), row * width):
        places = [start + place for place in range(0, row * width, width)]
        written = [content[place + number] for number in range(width) for place in places]
        found += bytes((byte - (written[at - step] if 0 < step <= at else 0)) % 256 for at, byte in enumerate(written))
    return found


def _closed(kind: int, content: bytes, extra: bytes, stream: bytes) -> bytes:
    adler = struct.pack(">I", zlib.adler32(content))
    if kind in (0, 16):
        return stream
    if kind == 1:
        return stream + adler
    if kind == 2:
        return stream + struct.pack("<II", zlib.crc32(content), len(content) % 2**32)
    if kind in (3, 23):
        data, size = extra[:2] + stream + adler, int.from_bytes(extra[2:], "little")
        pieces = [data[at : at + size] for at in range(0, len(data), size)]
        return b"".join(
            struct.pack(">I", len(piece)) + b"IDAT" + piece + struct.pack(">I", zlib.crc32(b"IDAT" + piece))
            for piece in pieces
        )
    if kind == 4:
        return content.decode("utf-8").encode("utf-16-be" if extra[0] else "utf-16-le")
    if kind == 5:
        digits, size = base64.b64encode(content), 4 * int.from_bytes(extra[1:], "little")
        newline = [b"", b"\n", b"\r\n", b"\\n"][extra[0]]
        return newline.join(digits[at : at + size] for at in range(0, len(digits), size)) if newline else digits
    if kind in (11, 12, 13):
        return naive_escapes.close(kind, content, extra)
    if kind in (14, 15):
        return naive_base85.close(kind, content, extra)
    if kind == 17:
        return naive_gif.close_early(content, extra)
    if kind == 10:
        return naive_bzip2.close(content, extra)
    if kind == 8:
        return content.replace(b"\n", b"\r" if extra else b"\r\n")
    if kind == 18:
        return content.decode("utf-8").encode("utf-32-be" if extra[0] else "utf-32-le")
    if kind == 19:
        pages = ("cp1252", "cp1251", "cp1250", "iso8859-2", "koi8-r", "cp1253", "cp866", "cp437", "mac-roman")
        return b"".join(_byte_of(char, pages[extra[0]]) for char in content.decode("utf-8"))
    if kind in (7, 22):
        return naive_gif.close(content, extra)
    if kind == 21:
        return naive_fax.close(content, extra)
    if kind in (24, 25, 26):
        return naive_quick.close(kind, content, extra)
    if kind == 20:
        return differences(content, extra)
    if kind == 27:
        return planes(content, extra)
    if kind == 28:
        return naive_pyc.close(content, extra)
    if kind == 29:
        return naive_class.close(content, extra)
    if kind == 30:
        return naive_pickle.close(content)
    if kind == 31:
        return naive_dex.close(content, extra)
    if kind == 32:
        assert not content and not extra
        return naive_jpeg.srgb_curve()
    if kind == 9:
        return image(content, extra)
    assert kind == 6
    return content.hex().upper().encode() if extra[0] else content.hex().encode()
