"""Closing deflate streams, written from docs/format.md, sections 21.3, 21.4, 21.6 and 21.13, one number at a time."""

from typing import Any

from tests.references.naive_cheapest import DISTANCE_BITS, DISTANCES, FIXED, LENGTH_BITS, LENGTHS, NEVER, Cheapest
from tests.references.naive_huffman import ORDER, canonical, last, repeat, used, zlib_lengths
from tests.references.naive_matches import Matcher
from tests.references.reading import Bytes


class Decoder:
    """The arithmetic decoder of section 4, and entries that stay from stream to stream."""

    def __init__(self, code: bytes, entries: dict[Any, int]):
        self.bytes, self.entries = iter(code), entries
        self.code, self.width = 0, 2**64 - 1
        for _ in range(8):
            self.code = self.code * 256 + next(self.bytes, 0)

    def decode(self, probability: int) -> int:
        ones = (self.width >> 32) * probability
        bit = int(self.code < ones)
        if bit:
            self.width = ones
        else:
            self.width, self.code = self.width - ones, self.code - ones
        while self.width < 2**56:
            self.code, self.width = self.code * 256 + next(self.bytes, 0), self.width * 256
        return bit

    def bit(self, *entry: Any) -> int:
        value = self.entries.get(entry, 2**31)
        bit = self.decode(max(value >> 10, 1) << 10)
        count, probability = value & 1023, value >> 10
        probability += (((2**22 - 1 if bit else 0) - probability) * (65536 * 10 // (10 * count + 16))) >> 16
        self.entries[entry] = probability << 10 | count + (count < 250)
        return bit

    def tree(self, bits: int, *array: Any) -> int:
        node = 1
        for _ in range(bits):
            node = 2 * node + self.bit(*array, node)
        return node - 2**bits

    def digits(self, bits: int) -> int:
        value = 0
        for _ in range(bits):
            value = 2 * value + self.decode(2**31)
        return value

    def number(self, array: str) -> int:
        count = 0
        while count < 32 and self.bit(array, count):
            count += 1
        return 2 ** (count - 1) + self.digits(count - 1) if count else 0


class Closings:
    """Closings of several streams, which learn from those before them."""

    def __init__(self) -> None:
        self.entries: dict[Any, int] = {}
        self.settings = (6, 0, 0, 8, 15, 16383)

    def close(self, content: bytes, closing: bytes) -> bytes:
        file = Bytes(closing)
        if file.byte():
            flags, sizes = file.byte(), file.byte()
            self.settings = (flags & 63, flags >> 6 & 1, flags >> 7, sizes >> 4, sizes & 15, file.varint())
        return Stream(content, Decoder(file.take(file.rest), self.entries), self.settings).bits()


class Stream(Matcher):
    """A stream that is decoded block by block, and written as bits."""

    def __init__(self, content: bytes, decoder: Decoder, settings: tuple[int, ...]):
        super().__init__(content, settings)
        self.joined, self.block, self.d = settings[2], settings[5], decoder
        self.history = self.out = self.place = 0
        self.cheapest = Cheapest(content, self.level, self.window) if 16 <= self.level < 22 else None

    def bits(self) -> bytes:
        stored = final = 0
        while not final:
            stored, begin = self.d.bit("is_stored", stored), self.p
            if stored:
                size = 256 * self.d.tree(8, "size_high") + self.d.tree(8, "size_low")
                padding = self.d.tree(7, "padding_bits") if self.d.bit("is_padded", 0) else 0
                self._pass_over(size)
            elif self.cheapest:
                tokens, codes = self._cheapest_tokens(self.cheapest)
            else:
                tokens = self._tokens()
                codes = self._header(*self._expected_codes(tokens, begin))
            final = self.d.bit("is_final", self.p == len(self.content))
            self._put(final, 1)
            if stored:
                self._put(0, 2)
                self._put(padding, -self.place % 8)
                self._put(size, 16)
                self._put(size ^ 0xFFFF, 16)
                for byte in self.content[begin : begin + size]:
                    self._put(byte, 8)
            else:
                self._write(tokens, codes, begin)
        rest = self.d.tree(7, "padding_bits") if self.d.bit("is_padded", 1) else 0
        self._put(rest, -self.place % 8)
        return self.out.to_bytes((self.place + 7) // 8, "little")

    def _put(self, value: int, count: int) -> None:
        self.out |= value << self.place
        self.place += count

    # 21.4

    def _tokens(self) -> list[tuple[int, int]]:
        ends = self.d.bit("ends")
        count = self.block if ends else self.d.number("ntokens")
        tokens: list[tuple[int, int]] = []
        while len(tokens) < count and not (ends and self.p == len(self.content)):
            tokens.append(self._token())
            self.advance(tokens[-1][0])
        return tokens

    def _token(self) -> tuple[int, int]:
        kind, length, distance = self.predict(self.p)
        b = 0 if length < 3 else length - 2 if length < 7 else 5 if length < 11 else 6 if length < 33 else 7
        match, same = self.d.bit("is_match", kind, b, self.history), 0
        if match and kind:
            same = self.d.bit("is_same", kind, b, self.history)
        if match and not same:
            length, rank = 3 + self.d.tree(8, "length_of", b), 0
            while rank < 16 and self.d.bit("rank", b, rank):
                rank += 1
            if rank < 16:
                places = (q for q in self.chain(self.p, self.window) if self.same(q, self.p, length) == length)
                distance = self.p - [q for q, _ in zip(places, range(rank + 1), strict=False)][-1]
            else:
                symbol = self.d.tree(5, "far")
                distance = DISTANCES[symbol] + self.d.digits(DISTANCE_BITS[symbol])
        right = same if kind == 2 else not match
        self.history = (2 * self.history + (not right)) % 16
        return (length, distance) if match else (0, 0)

    # 21.5

    def _pass_over(self, size: int) -> None:
        end = self.p + size
        while self.p < end:
            if self.level == 0 or self.cheapest:
                self.p = end
                break
            kind, length, _ = self.predict(self.p)
            self.advance(min(length, end - self.p) if kind == 2 else 0)

    # 21.13

    def _cheapest_tokens(self, c: Cheapest) -> tuple[list[tuple[int, int]], dict[str, Any]]:
        size = len(self.content) - self.p if self.d.bit("ends") else self.d.number("ntokens")
        end, tokens = self.p + size, list[tuple[int, int]]()
        c.look(self.p, end)
        for _ in range(2):
            c.measure(self.p)
            literals, distances, _ = self._counts(c.expected(self.p), self.p)
            lit, dist = zlib_lengths(literals[:286], 15), zlib_lengths(distances, 15)
            c.set_costs([*lit, 0, 0], dist, 13)
        codes = self._header(lit, dist, 0)
        c.set_costs(codes["literals"], codes["distances"], NEVER)
        c.measure(self.p)
        while self.p < end:
            if self.p >= c.stop:
                c.look(self.p, end)
                c.measure(self.p)
            tokens.append(c.token(self.d, self.p))
            self.p += max(tokens[-1][0], 1)
        c.set_costs(codes["literals"], codes["distances"], 13)
        return tokens, codes

    # 21.6

    def _counts(self, tokens: list[tuple[int, int]], place: int) -> tuple[list[int], list[int], int]:
        literals, distances, extra = [0] * 288, [0] * 30, 0
        literals[256] = 1
        for length, distance in tokens:
            if length:
                one = max(k for k in range(29) if LENGTHS[k] <= length)
                other = max(k for k in range(30) if DISTANCES[k] <= distance)
                literals[257 + one] += 1
                distances[other] += 1
                extra += LENGTH_BITS[one] + DISTANCE_BITS[other]
            else:
                literals[self.content[place]] += 1
            place += max(length, 1)
        return literals, distances, extra

    def _expected_codes(self, tokens: list[tuple[int, int]], place: int) -> tuple[list[int], list[int], int]:
        literals, distances, extra = self._counts(tokens, place)
        lit, dist = zlib_lengths(literals[:286], 15), zlib_lengths(distances, 15)
        repeats = self._predicted_repeats(lit, dist)
        counts = [0] * 19
        for symbol, _ in repeats:
            counts[symbol] += 1
        head = zlib_lengths(counts, 7)
        bits = 14 + 3 * used(head) + extra + sum({16: 2, 17: 3, 18: 7}.get(symbol, 0) for symbol, _ in repeats)
        for numbers, lengths in ((literals, lit), (distances, dist), (counts, head)):
            bits += sum(a * b for a, b in zip(numbers, lengths, strict=False))
        fixed = extra + 5 * sum(distances) + sum(a * b for a, b in zip(literals, FIXED, strict=True))
        return lit, dist, (fixed + 10) // 8 <= (bits + 10) // 8

    def _header(self, lit: list[int], dist: list[int], guess: int) -> dict[str, Any]:
        if self.d.bit("is_fixed", guess):
            return {"fixed": True, "literals": FIXED, "distances": [5] * 30}
        lit = self._lengths(lit, "are_zlibs", 0, False)
        dist = self._lengths(dist, "are_zlibs", 1, False)
        nliterals = self._count(0, max(last(lit), 257), 257, 5)
        ndistances = self._count(1, max(last(dist), 1), 1, 5)
        lit += [0] * (288 - len(lit))
        repeats = self._repeats(lit[:nliterals], dist[:ndistances])
        counts = [0] * 19
        for symbol, _ in repeats:
            counts[symbol] += 1
        head = self._lengths(zlib_lengths(counts, 7), "are_zlibs", 2, True)
        nrepeat = self._count(2, used(head), 4, 4)
        return {
            **{"fixed": False, "literals": lit, "distances": dist, "head": head, "repeats": repeats},
            "counts": (nliterals, ndistances, nrepeat),
        }

    def _predicted_repeats(self, lit: list[int], dist: list[int]) -> list[tuple[int, int]]:
        found = []
        for lengths in (lit[: last(lit)], dist[: last(dist)]):
            place, before = 0, -1
            while place < len(lengths):
                symbol, extra, run = repeat(lengths, place, before)
                found.append((symbol, extra))
                before, place = lengths[place], place + run
        return found

    def _repeats(self, lit: list[int], dist: list[int]) -> list[tuple[int, int]]:
        found, line, place, before = [], lit + dist, 0, -1
        while place < len(line):
            if place == len(lit) and not self.joined:
                before = -1
            end = len(lit) if place < len(lit) and not self.joined else len(line)
            symbol, extra, run = repeat(line[:end], place, before)
            k = max(symbol - 15, 0)
            if not self.d.bit("is_repeat", k):
                c = self.d.tree(2, "repeat", k)
                symbol, extra, run = line[place], 0, 1
                if c:
                    extra = self.d.tree(7, "extra", c)
                    symbol, run = 15 + c, extra + (11 if c == 3 else 3)
            found.append((symbol, extra))
            before, place = line[place], place + run
        return found

    def _lengths(self, guesses: list[int], name: str, which: int, repeats: bool) -> list[int]:
        same, found = self.d.bit(name, which), []
        for guess in guesses:
            if same or self.d.bit("is_length", repeats, guess):
                found.append(guess)
            elif repeats:
                found.append(self.d.tree(3, "repeat_length", guess))
            else:
                found.append(self.d.tree(4, "length_bits", guess))
        return found

    def _count(self, which: int, guess: int, least: int, bits: int) -> int:
        return guess if self.d.bit("counts", which, "same") else least + self.d.tree(bits, "counts", which)

    # RFC 1951

    def _write(self, tokens: list[tuple[int, int]], codes: dict[str, Any], place: int) -> None:
        self._put(1 if codes["fixed"] else 2, 2)
        if not codes["fixed"]:
            for count, least, bits in zip(codes["counts"], (257, 1, 4), (5, 5, 4), strict=True):
                self._put(count - least, bits)
            for symbol in ORDER[: codes["counts"][2]]:
                self._put(codes["head"][symbol], 3)
            table = canonical(codes["head"])
            for symbol, extra in codes["repeats"]:
                self._put(*table[symbol])
                self._put(extra, {16: 2, 17: 3, 18: 7}.get(symbol, 0))
        literals, distances = canonical(codes["literals"]), canonical(codes["distances"])
        for length, distance in tokens:
            if length:
                one = max(k for k in range(29) if LENGTHS[k] <= length)
                other = max(k for k in range(30) if DISTANCES[k] <= distance)
                self._put(*literals[257 + one])
                self._put(length - LENGTHS[one], LENGTH_BITS[one])
                self._put(*distances[other])
                self._put(distance - DISTANCES[other], DISTANCE_BITS[other])
            else:
                self._put(*literals[self.content[place]])
            place += max(length, 1)
        self._put(*literals[256])
