"""Directories of zip archives, RECORDs of wheels and digests of archives: docs/format.md, 21.20, 21.21 and 21.23."""

import base64
import hashlib
import zlib
from typing import Any

_ENTRY, _LOCAL, _DESCRIPTOR, _END = b"PK\1\2", b"PK\3\4", b"PK\7\x08", b"PK\5\6"


def fill_directories(data: bytearray, wrappers: list[tuple[int, int]], known: dict[int, bytes]) -> None:
    _Filling(data, known).run(wrappers)


def _gaps(wrappers: list[tuple[int, int]], size: int) -> list[tuple[int, int]]:
    starts, ends = [start for start, _ in wrappers], [end for _, end in wrappers]
    return list(zip([0, *ends], [*starts, size], strict=True))


class _Filling:
    def __init__(self, data: bytearray, known: dict[int, bytes]):
        self.data, self.known = data, known
        self.headers: list[dict[str, Any]] = []
        self.stored: list[tuple[int, int, int, dict[str, Any]]] = []
        self.first: int | None = None
        self.left = 4 * len(data)

    def number(self, place: int, size: int) -> int:
        return int.from_bytes(self.data[place : place + size], "little")

    def swap(self, place: int, expected: bytes) -> bytes:
        for at, byte in enumerate(expected, place):
            self.data[at] ^= byte
        return bytes(self.data[place : place + len(expected)])

    def run(self, wrappers: list[tuple[int, int]]) -> None:
        for begin, end in _gaps(wrappers, len(self.data)):
            place = begin
            while True:
                marks = (self.data.find(mark, place, end) for mark in (_ENTRY, _LOCAL, _DESCRIPTOR))
                places = [at for at in marks if at >= 0]
                if not places:
                    break
                place = min(places)
                self.sum_up(place)
                mark = bytes(self.data[place : place + 4])
                if mark == _LOCAL:
                    place = self.header(place, end)
                elif mark == _ENTRY:
                    place = self.directory(place, end)
                else:
                    self.descriptor(place, end)
                    place += 4
        self.sum_up(len(self.data))

    def header(self, p: int, end: int) -> int:
        name, extra = self.number(p + 26, 2), self.number(p + 28, 2)
        stop = p + 30 + name + extra
        if p + 30 > end or stop > end:
            return p + 4
        h: dict[str, Any] = {"place": p, "stop": stop, "fields": bytearray(self.data[p + 4 : p + 28])}
        h["name"] = bytes(self.data[p + 30 : p + 30 + name])
        h["extra"] = bytes(self.data[p + 30 + name : stop]) if extra <= 256 else b""
        if p in self.known:
            h["fields"][10:22] = self.known[p]
        elif h["fields"][2] & 8 == 0 and h["fields"][4:6] == bytes(2):
            size = self.number(p + 18, 4)
            if stop + size <= len(self.data) and size <= self.left:
                self.left -= size
                self.stored.append((stop + size, stop, p, h))
        self.headers.append(h)
        if self.first is None and (not self.stored or min(self.stored)[3] is h):
            self.first = p
        return stop

    def descriptor(self, p: int, end: int) -> None:
        if self.headers and p + 16 <= end:
            h = self.headers[-1]
            if h["fields"][2] & 8 and h["place"] not in self.known and self.number(p + 8, 4) == p - h["stop"]:
                h["fields"][10:22] = self.data[p + 4 : p + 16]

    def sum_up(self, p: int) -> None:
        while self.stored and min(self.stored)[0] <= p:
            least = min(self.stored)
            self.stored.remove(least)
            end, begin, place, h = least
            h["fields"][10:14] = self.swap(place + 14, zlib.crc32(self.data[begin:end]).to_bytes(4, "little"))

    def directory(self, p: int, end: int) -> int:
        if p + 46 > end:
            return p + 4
        start, count, own, lengths = p, 0, bytes(12), None
        base = min(self.stored)[1] if self.stored else p if self.first is None else self.first
        n = sum(h["place"] < base for h in self.headers)
        while True:
            guess = self.headers[n]["place"] - base if n < len(self.headers) else 0
            offset = int.from_bytes(self.swap(p + 42, (guess % 2**32).to_bytes(4, "little")), "little")
            by_place = {h["place"]: number for number, h in enumerate(self.headers)}
            if base + offset not in by_place and offset in by_place:
                base = 0
            number = by_place.get(base + offset)
            h = {"fields": bytes(24), "name": b"", "extra": b""} if number is None else self.headers[number]
            extra = _expected(h["extra"], lengths)
            self.swap(p + 4, own[:2] + bytes(h["fields"]) + len(extra).to_bytes(2, "little") + own[2:])
            a, b = self.number(p + 28, 2), self.number(p + 30, 2)
            stop = p + 46 + a + b + self.number(p + 32, 2)
            if stop > end:
                return p + 46
            self.swap(p + 46, h["name"][:a])
            self.swap(p + 46 + a, extra[:b])
            own = bytes(self.data[p + 4 : p + 6] + self.data[p + 32 : p + 42])
            if b <= 256:
                written = bytes(self.data[p + 46 + a : p + 46 + a + b])
                lengths = {number: len(value) for number, value in _fields(written)}
            n = n if number is None else number + 1
            p, count = stop, count + 1
            if p + 46 > end or any(self.data[p : p + 4]):
                break
            self.swap(p, _ENTRY)
        if self.data[p : p + 4] == _END and p + 22 <= end:
            numbers = (min(count, 65535), 2), (min(count, 65535), 2), (p - start, 4), ((start - base) % 2**32, 4)
            self.swap(p + 8, b"".join(number.to_bytes(size, "little") for number, size in numbers))
            p += 22
            self.first = self.first if self.stored else None
        return p


def _fields(extra: bytes) -> list[tuple[bytes, bytes]]:
    found = []
    while len(extra) >= 4:
        size = int.from_bytes(extra[2:4], "little")
        found.append((extra[:2], extra[4 : 4 + size]))
        extra = extra[4 + size :]
    return found


def _expected(extra: bytes, lengths: dict[bytes, int] | None) -> bytes:
    if lengths is None:
        return extra
    found = b""
    for number, value in _fields(extra):
        if number in lengths:
            kept = value[: lengths[number]]
            found += number + len(kept).to_bytes(2, "little") + kept
    return found


MANIFEST = b"META-INF/MANIFEST.MF"


def is_signature(name: bytes) -> bool:
    return name[:9] == b"META-INF/" and name[-3:] == b".SF"


def digests(remains: bytes, values: dict[bytes, bytes]) -> bytes:
    hashes = {b"SHA-256-Digest: ": "sha256", b"SHA1-Digest: ": "sha1", b"SHA-1-Digest: ": "sha1"}
    lines = []
    for line, name in _named_lines(remains):
        text = line[:-1] if line.endswith(b"\r") else line
        if text in hashes and name and name in values:
            lines.append(text + base64.b64encode(hashlib.new(hashes[text], values[name]).digest()) + line[len(text) :])
        else:
            lines.append(line)
    return b"\n".join(lines)


def sections(manifest: bytes) -> dict[bytes, bytes]:
    found, begin, at = {}, None, 0
    for line, name in _named_lines(manifest):
        if line.startswith(b"Name: "):
            begin = at
        at += len(line) + 1
        if line in (b"", b"\r") and begin is not None:
            found[name], begin = manifest[begin:at], None
    return found


def _named_lines(content: bytes) -> list[tuple[bytes, bytes]]:
    found, name, new = [], b"", None
    for line in content.split(b"\n"):
        text = line[:-1] if line.endswith(b"\r") else line
        if text.startswith(b"Name: "):
            new = text[6:]
        elif new is not None and text.startswith(b" "):
            new += text[1:]
        elif new is not None:
            name, new = new, None
        found.append((line, name))
        if not text:
            name = b""
    return found


def record(remains: bytes, data: bytes, wrappers: list[tuple[int, int]], contents: list[bytes | None]) -> bytes:
    members, names = _members(data, wrappers, contents), {}
    for number, (name, _) in enumerate(members):
        names[name] = number
    lines, n = [], 0
    for line in remains.split(b"\n"):
        number = names.get(line[:-1]) if line.endswith(b"*") else n if not line else None
        if line and not line.endswith(b"*"):
            lines.append(line)
        elif number is None or number >= len(members):
            lines.append(b"")
        else:
            name, content = members[number]
            lines.append(name + b",,")
            if content is not None:
                digest = base64.b64encode(hashlib.sha256(content).digest(), b"-_").rstrip(b"=")
                lines[-1] = name + b",sha256=" + digest + b"," + str(len(content)).encode()
            n = number + 1
    return b"".join(line + b"\n" for line in lines)


def _members(
    data: bytes, wrappers: list[tuple[int, int]], contents: list[bytes | None]
) -> list[tuple[bytes, bytes | None]]:
    found, left = list[tuple[bytes, bytes | None]](), 65536 + 2 * len(data)

    def u16(at: int) -> int:
        return int.from_bytes(data[at : at + 2], "little")

    for (begin, end), inside in zip(_gaps(wrappers, len(data)), [*contents, None], strict=True):
        p = begin
        while (p := data.find(_LOCAL, p, end)) >= 0 and p + 30 <= end:
            stop, content = p + 30 + u16(p + 26) + u16(p + 28), None
            if stop > end:
                p += 4
                continue
            name, size = data[p + 30 : p + 30 + u16(p + 26)], u16(p + 22) + 65536 * u16(p + 24)
            coded, method = u16(p + 18) + 65536 * u16(p + 20), u16(p + 8)
            if stop == end:
                content = inside
            elif not u16(p + 6) & 8 and stop + coded <= end:
                if method == 0 and coded <= left:
                    left, content = left - coded, data[stop : stop + coded]
                elif method == 8 and size <= 65536 and coded <= 2 * size + 64 and 512 + size + 4 * coded <= left:
                    left, content = left - (512 + size + 4 * coded), _inflated(data[stop : stop + coded], size)
            if not name.endswith(b"/"):
                found.append((name, content))
            p = stop
    return found


def _inflated(coded: bytes, size: int) -> bytes | None:
    inflating = zlib.decompressobj(-15)
    try:
        content = inflating.decompress(coded, size + 1)
    except zlib.error:
        return None
    return content if inflating.eof and not inflating.unused_data and len(content) == size else None
