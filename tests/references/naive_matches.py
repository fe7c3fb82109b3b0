"""The matches that encoders of deflate find, written from docs/format.md, section 21.5, one number at a time."""

from collections.abc import Iterator

_LEVELS = {
    1: ("greedy", 4, 4, 8, 4),
    2: ("greedy", 4, 5, 16, 8),
    3: ("greedy", 4, 6, 32, 32),
    4: ("lazy", 4, 4, 16, 16),
    5: ("lazy", 8, 16, 32, 32),
    6: ("lazy", 8, 16, 128, 128),
    7: ("lazy", 8, 32, 128, 256),
    8: ("lazy", 32, 128, 258, 1024),
    9: ("lazy", 32, 258, 258, 4096),
    10: ("lazy", 259, 258, 258, 4096),
    11: ("runs", 0, 0, 0, 0),
    12: ("greedy", 4, 0, 258, 1),
    13: ("greedy", 4, 4, 8, 4),
    14: ("greedy", 259, 258, 32, 2),
    15: ("greedy", 4, 0, 258, 1),
    22: ("greedy", 4, 96, 16, 6),
    23: ("greedy", 4, 192, 32, 24),
    24: ("medium", 8, 256, 32, 32),
    25: ("medium", 8, 256, 128, 128),
    26: ("lazy", 259, 258, 258, 1),
}
_HASHES = {**dict.fromkeys((12, 13, 14, 22, 23, 24, 25), "b"), 15: "c", 26: "d"}
_HEADS, _TAILS = {15: 3}, dict.fromkeys((13, 22, 23, 24, 25), 1)
_FREE = (10, 14, 15, *range(16, 22), 26)


class Matcher:
    """A position in a content, the chains of places with the same hash, and the match that an encoder predicts."""

    def __init__(self, content: bytes, settings: tuple[int, ...]):
        self.level, self.filtered, _, self.memory, window, _ = settings
        self.content, self.window = content, 2**window
        self.reach = self.window if self.level in _FREE else self.window - 262
        self.hash = _HASHES.get(self.level, "a")
        self.hashed = 3 if self.hash == "a" else 4
        self.p = self.next = 0
        self.put_off: tuple[int, int, int] | None = None
        self.chains: dict[int, list[int]] = {}
        self.in_chains: set[int] = set()

    def _hash(self, p: int) -> int:
        bits = self.memory + 7
        if self.hash == "b":
            return 2654435761 * int.from_bytes(self.content[p : p + 4], "little") % 2**32 >> 16
        if self.hash == "c":
            rest = 0
            for byte in self.content[p : p + 4]:
                rest ^= byte
                for _ in range(8):
                    rest = rest >> 1 ^ (0x82F63B78 if rest & 1 else 0)
            return rest % 2**bits
        if self.hash == "d":
            value = int.from_bytes(self.content[p : p + 4], "little")
            for _ in range(2):
                low, high = (half - 2**16 * (half >= 2**15) for half in (value % 2**16, value >> 16))
                value = (-6069 * low - 26703 * high) % 2**32
            return value % 2**bits
        shift = (bits + 2) // 3
        x, y, z = self.content[p : p + 3]
        return (x << 2 * shift ^ y << shift ^ z) % 2**bits

    def join(self, end: int) -> None:
        for p in range(self.next, min(end, len(self.content) - self.hashed + 1)):
            self.chains.setdefault(self._hash(p), []).append(p)
            self.in_chains.add(p)
        self.next = max(self.next, end)

    def chain(self, p: int, reach: int) -> Iterator[int]:
        if p not in self.in_chains:
            return
        for q in reversed(self.chains.get(self._hash(p), [])):
            if q < p:
                if p - q > reach:
                    return
                yield q

    def same(self, q: int, p: int, most: int) -> int:
        k = 0
        while k < most and p + k < len(self.content) and self.content[q + k] == self.content[p + k]:
            k += 1
        return k

    def _longest(self, p: int, least: int) -> tuple[int, int]:
        _, good, _, nice, chain = _LEVELS[self.level]
        most, best, distance = min(258, len(self.content) - p), least, 0
        if most < self.hashed:
            return best, 0
        steps = chain // 4 if least >= good else chain
        for number, q in enumerate(self.chain(p, self.reach)):
            if number == steps or (q == 0 and self.level not in _FREE) or (p - q == self.reach and number):
                break
            if (same := self.same(q, p, most)) > best:
                best, distance = same, p - q
                if same >= min(nice, most):
                    break
        return best, distance

    def _is_worth(self, length: int, distance: int) -> bool:
        too_far = length == 3 and distance > 4096
        return distance > 0 and (self.level in (10, 26) or not (too_far or (self.filtered and length <= 5)))

    def predict(self, p: int) -> tuple[int, int, int]:
        if self.level == 0:
            return 0, 0, 0
        matching, _, laziest, _, _ = _LEVELS[self.level]
        self.join(p + 1)
        if matching == "runs":
            length = self.same(p - 1, p, 258) if p else 0
            return (2, length, 1) if length > 2 else (0, 0, 0)
        if matching == "medium":
            return self._medium(p)
        if matching == "greedy":
            length, distance = self._longest(p, self.hashed - 1)
            return (2, length, distance) if distance else (0, 0, 0)
        if self.put_off and self.put_off[0] == p:
            _, length, distance = self.put_off
        else:
            length, distance = self._longest(p, self.hashed - 1)
            if not self._is_worth(length, distance):
                return 0, 0, 0
        if length < laziest:
            self.join(p + 2)
            longer, further = self._longest(p + 1, length)
            if longer > length and self._is_worth(longer, further):
                self.put_off = (p + 1, longer, further)
                return 1, length, distance
        return 2, length, distance

    def _medium(self, p: int) -> tuple[int, int, int]:
        if self.put_off and self.put_off[0] == p:
            _, length, distance = self.put_off
        else:
            length, distance = self._longest(p, 3)
        if not distance:
            return 0, 0, 0
        self._join_match(p, length)
        q = p + length
        if len(self.content) - p <= 262:
            return 2, length, distance
        self.join(q + 1)
        longer, further = self._longest(q, 3)
        most = min(length, max(256 - longer, 0), q - further - 1) if further else 0
        moved = next((k for k in range(most) if self.content[q - 1 - k] != self.content[q - 1 - k - further]), most)
        moved = moved if moved >= length - 1 else 0
        self.put_off = (q - moved, longer + moved, further)
        if moved == length:
            return 2, longer + moved, further
        return (1 if moved else 2), length, distance

    def _join_match(self, p: int, length: int) -> None:
        if length > _LEVELS[self.level][2]:
            self.join(p + 1 + min(_HEADS.get(self.level, 0), length - 1))
            self.next = max(self.next, p + length - _TAILS.get(self.level, 0))
        self.join(p + length)

    def advance(self, length: int) -> None:
        if self.level and _LEVELS[self.level][0] in ("greedy", "medium") and length:
            self._join_match(self.p, length)
        elif self.level:
            self.join(self.p + max(length, 1))
        self.p += max(length, 1)
