"""The registers of strides by section 7.3 of docs/format.md, in Python. It is written from the text alone."""


class Strides:
    def __init__(self):
        self.places, self.zeros = {}, 0
        self.stride = self.trust = self.candidate = self.votes = 0

    def registers(self, c, data):
        """Return the registers after a byte, the last of `data`."""
        q = len(data)
        same = int(q > 4 and data[q - 5] == c)
        self.zeros = (self.zeros << 2 | same << 1 | int(c == 0)) & 0xFFFF
        first, second, third = self.places.get(c, (0, 0, 0))
        self.places[c] = q, first, second
        if third > 0 and 1 < q - first <= 4095 and q - first == first - second == second - third:
            self.vote(q - first)
        near = 0
        if self.stride > 0 and 2 * self.stride <= q:
            above = q - self.stride
            near = data[above] | data[above - self.stride] << 8 | data[above + 1] << 16 | data[above - 1] << 24
            near |= self.stride << 32
        return {"NEAR": near, "ZEROS": self.zeros}

    def vote(self, distance):
        if distance == self.stride:
            self.trust = min(self.trust + 1, 15)
            return
        if distance == self.candidate:
            self.votes += 1
        elif self.votes > 0:
            self.votes -= 1
        else:
            self.candidate, self.votes = distance, 1
        if self.trust > 0:
            self.trust -= 1
        elif self.votes >= 5:
            self.stride, self.trust, self.votes = distance, 5, 0
