"""The registers of records by section 5.13 of docs/format.md, in Python. It is written from the text alone."""

from tests.references.naive_bytewise import U64, mix


class Records:
    def __init__(self, length):
        self.length = length
        self.changed = self.changed_above = self.counter = self.counted = 0

    def registers(self, data):
        """Return the registers after the last byte of `data`."""
        r, q = self.length, len(data)
        i = q - 1

        def at(place):
            return data[place] if place >= 0 else 0

        if i >= r and data[i] != data[i - r]:
            self.changed = mix(self.changed, data[i] | i % r << 8)
            in_turn = i == self.counted + r or i > self.counted + 4 * r
            if in_turn and i >= 2 * r and (2 * data[i - r] - data[i - 2 * r]) % 256 == data[i]:
                self.counter, self.counted = data[i], i
        column = q % r
        if column == 0:
            self.changed, self.changed_above = 0, self.changed
        above, right = at(q - r), at(q - r + 1) if r > 1 and q >= r else 0
        expected = (data[i] + above - at(q - r - 1)) % 256
        linear = (2 * above - at(q - 2 * r)) % 256 | expected << 8 | column << 16
        since = q - self.counted
        count = mix(self.counter, since) if since < 4 * r else mix(linear >> 8, 0)
        return {
            "COUNT": above | right << 8 | count << 16 & U64,
            "CHANGES": mix(mix(self.changed, column), self.changed_above),
            "LINEAR": linear,
            "COLUMN": min(since if since < 4 * r else column, 255),
        }
