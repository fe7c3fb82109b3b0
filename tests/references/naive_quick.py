"""Blocks of Snappy and LZ4, written from docs/format.md, section 21.16, one number at a time."""

import struct

import xxhash

from tests.references.naive_deflate import Decoder

Token = tuple[int, int, int]  # literals, the bytes of a match, and its distance


def crc32c(data: bytes, register: int) -> int:
    for byte in data:
        register ^= byte
        for _ in range(8):
            register = register >> 1 ^ (0x82F63B78 if register & 1 else 0)
    return register


def u32(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 4], "little")


class Predictor:
    def __init__(self, content: bytes, is_lz4: bool, encoder: int, linked: bool):
        self.content, self.is_lz4, self.encoder, self.linked = content, is_lz4, encoder, linked
        self.table: dict[int, int] = {}

    def start(self, begin: int, end: int) -> None:
        self.begin, self.end = begin, end
        self.bits = 8
        while self.bits < (14 if self.encoder in (0, 1, 3) else 15) and 2**self.bits < end - begin:
            self.bits += 1
        if not self.linked:
            self.table = {}

    def hash(self, at: int) -> int:
        word = u32(self.content, at)
        if self.is_lz4 and not self.linked and self.end - self.begin < 65_547:
            return word * 2654435761 % 2**32 >> 19
        if self.is_lz4:
            five = int.from_bytes(self.content[at : at + 5], "little")
            return five * 2**24 * 889523592379 % 2**64 >> 52
        product = word * 0x1E35A7BD % 2**32
        if self.encoder == 0:
            return product >> 32 - self.bits
        if self.encoder < 3:
            return (product >> (18 if self.encoder == 1 else 17)) % 2**self.bits
        return (crc32c((word ^ 2 ** (self.bits + 1) - 2).to_bytes(4, "little"), 0) >> 1) % 2**self.bits

    def look(self, at: int) -> int:
        before = self.table.get(self.hash(at), 0 if self.linked else self.begin)
        self.table[self.hash(at)] = at
        fits = 1 <= at - before <= 65535 and self.content[before : before + 4] == self.content[at : at + 4]
        return at - before if fits else 0

    def predict(self, p: int) -> Token:
        last = self.end - (11 if self.is_lz4 else 15)
        if p > self.begin:
            if p >= last:
                return self.end - p, 0, 0
            back = p - (2 if self.is_lz4 else 1)
            self.table[self.hash(back)] = back
            if distance := self.look(p):
                return self.token(p, p, distance)
        elif self.is_lz4 and self.end - self.begin >= 13:
            self.table[self.hash(p)] = p
        q, step, looks = p + 1, 1, 64 if self.is_lz4 else 32
        while q + step <= last:
            if distance := self.look(q):
                return self.token(p, q, distance)
            q += step
            if self.is_lz4:
                step, looks = looks >> 6, looks + 1
            else:
                looks += step
                step = looks >> 5
        return self.end - p, 0, 0

    def token(self, p: int, q: int, distance: int) -> Token:
        content, low = self.content, 0 if self.linked else self.begin
        while self.is_lz4 and q > p and q - distance > low and content[q - 1] == content[q - 1 - distance]:
            q -= 1
        length = 4
        while q + length < self.end - 5 * self.is_lz4 and content[q + length] == content[q + length - distance]:
            length += 1
        return q - p, length, distance


def written(size: int, literals: int, length: int, most: int) -> int:
    if length == 0:
        return size + literals + 1 + (literals + 240) // 255
    size += 1
    if size + literals + 8 + literals // 255 > most:
        return most + 1
    size += literals + 2 + (1 + (literals - 15) // 255 if literals >= 15 else 0)
    rest = length - 4
    if size + 6 + (rest + 240) // 255 > most:
        return most + 1
    return size + (1 + (rest - 15) // 255 if rest >= 15 else 0)


def tokens(predictor: Predictor, part: int, framed: bool, code: bytes) -> list[tuple[int, int, list[Token] | None]]:
    """Return the begin, the end and the tokens of each part, or None if it is not compressed."""
    decoder, past, parts = Decoder(code, {}), 0, []
    for begin in range(0, len(predictor.content), part):
        end = min(begin + part, len(predictor.content))
        compressed = decoder.bit("shrinks") if framed else 1
        predictor.start(begin, end)
        p, size, found = begin, 0, []
        while p < end and (compressed or (predictor.linked and size < end - begin)):
            literals, length, distance = predictor.predict(p)
            if compressed:
                same = decoder.bit("same", past, length > 0)
                past = (2 * past + 1 - same) % 8
                if not same:
                    literals, length, distance = decoder.number("numbers 0"), 0, 0
                    if literals < end - p:
                        length, distance = 4 + decoder.number("numbers 1"), 1 + decoder.number("numbers 2")
                found.append((literals, length, distance))
            p += literals + length
            size = written(size, literals, length, end - begin - 1)
        parts.append((begin, end, found if compressed else None))
    return parts


def varint(value: int) -> bytes:
    return bytes([value & 127 | 128]) + varint(value >> 7) if value >= 128 else bytes([value])


def snappy(content: bytes, begin: int, size: int, found: list[Token]) -> bytes:
    block, p = varint(size), begin
    for literals, length, distance in found:
        if literals:
            extra = b"" if literals <= 60 else (literals - 1).to_bytes(-(-(literals - 1).bit_length() // 8), "little")
            block += bytes([(59 + len(extra) if extra else literals - 1) << 2]) + extra + content[p : p + literals]
        p += literals + length
        whole = (length - 4) // 64 if length >= 68 else 0
        rest = length - 64 * whole
        pieces = [64] * whole + ([60, rest - 60] if rest > 64 else [rest] if rest else [])
        for piece in pieces:
            if piece < 12 and distance < 2048:
                block += bytes([1 | piece - 4 << 2 | distance >> 8 << 5, distance & 255])
            else:
                block += bytes([2 | piece - 1 << 2]) + distance.to_bytes(2, "little")
    return block


def lz4(content: bytes, p: int, found: list[Token]) -> bytes:
    def rest(number: int) -> bytes:
        return b"" if number < 15 else b"\xff" * ((number - 15) // 255) + bytes([(number - 15) % 255])

    block = b""
    for literals, length, distance in found:
        more = length - 4 if length else 0
        block += bytes([min(literals, 15) << 4 | min(more, 15)]) + rest(literals) + content[p : p + literals]
        block += distance.to_bytes(2, "little") + rest(more) if length else b""
        p += literals + length
    return block


def close(kind: int, content: bytes, extra: bytes) -> bytes:
    if kind == 25:
        return frame(content, extra[0], extra[1], extra[2:])
    encoder = extra[0]
    predictor = Predictor(content, encoder > 4, encoder, encoder == 6)
    parts = tokens(predictor, len(content) if encoder > 4 else 65_536, kind == 26, extra[1:])
    if kind == 24 and encoder > 4:
        return lz4(content, 0, parts[0][2] or [])
    if kind == 24:
        return snappy(content, 0, len(content), [token for _, _, found in parts for token in found or []])
    made = b""
    for begin, end, found in parts:
        block = content[begin:end] if found is None else snappy(content, begin, end - begin, found)
        state = crc32c(content[begin:end], 2**32 - 1) ^ 2**32 - 1
        masked = ((state >> 15 | state << 17) + 0xA282EAD8) % 2**32
        made += bytes([found is None]) + (len(block) + 4).to_bytes(3, "little") + struct.pack("<I", masked) + block
    return made


def frame(content: bytes, flags: int, number: int, code: bytes) -> bytes:
    predictor, made = Predictor(content, True, 5, not flags & 32), b""
    for begin, end, found in tokens(predictor, 2 ** (8 + 2 * number), True, code):
        block = content[begin:end] if found is None else lz4(content, begin, found)
        made += struct.pack("<I", len(block) | (1 << 31 if found is None else 0)) + block
        made += struct.pack("<I", xxhash.xxh32_intdigest(block)) if flags & 16 else b""
    return made + bytes(4) + (struct.pack("<I", xxhash.xxh32_intdigest(content)) if flags & 4 else b"")
