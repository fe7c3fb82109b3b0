"""The registers of repeated cells by section 5.12 of docs/format.md, in Python. It is written from the text alone."""

from tests.references.naive_bytewise import mix
from tests.references.naive_fields import ENDS


class Copied:
    def __init__(self):
        self.hash = self.begin = self.key = 0
        self.latest = []  # hash and begin of the latest cells, the last one first
        self.distances = [{}, {}]
        self.rows, self.places = [0, 0], [0, 0]

    def registers(self, c, data, fields):
        """Return the registers after a byte, the last of `data`, and after those of `fields`."""
        q = len(data)
        if c in ENDS:
            if q - 1 > self.begin:
                self.end_cell()
            self.hash, self.begin = 0, q
            self.rows = [mix(fields.shape, fields.key) >> 52, mix(fields.cells, self.key) >> 52]
            for k in range(2):
                back, _ = self.distances[k].get(self.rows[k], (0, 0))
                self.places[k] = self.latest[back - 1][1] if 0 < back <= len(self.latest) else 0
        else:
            self.hash = mix(self.hash, c)
            self.places = [at + 1 if at and data[at] == c else 0 for at in self.places]
        return {"BY_FORM": self.shown(0, data), "BY_PLACE": self.shown(1, data)}

    def shown(self, k, data):
        if not self.places[k]:
            return 0
        right = self.distances[k][self.rows[k]][1]
        return data[self.places[k]] | min(len(data) - self.begin, 15) << 8 | right << 12 | 1 << 16

    def end_cell(self):
        hashes = [h for h, _ in self.latest]
        found = hashes.index(self.hash) + 1 if self.hash in hashes else 0
        for k in range(2):
            back, right = self.distances[k].get(self.rows[k], (0, 0))
            if 0 < back <= len(hashes) and hashes[back - 1] == self.hash:
                right, found = min(right + 1, 15), back
            elif found:
                back, right = found, 0
            else:
                right >>= 1
            self.distances[k][self.rows[k]] = back, right
        self.key = found or self.hash
        self.latest = [(self.hash, self.begin), *self.latest][:32]
