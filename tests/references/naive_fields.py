"""The registers of lines by section 5.12 of docs/format.md, in Python. It is written from the text alone."""

from tests.references.naive_bytewise import U64, mix

ENDS = b'\n\t ",;|'


def is_word(c):
    return 48 <= c <= 57 or 65 <= c <= 90 or c == 95 or 97 <= c <= 122 or c >= 128


class Fields:
    def __init__(self):
        self.start = self.over = self.like = self.shape = self.word = self.in_word = 0
        self.agreed = self.alike = self.count = self.mark = 0
        self.cell = self.length = self.cells = self.value = self.digits = self.row = 0
        self.places, self.numbers = {}, {}
        self.marks = self.key = self.up = 0
        self.quoted = self.before = self.depth = 0
        self.keys, self.own, self.over_cells = [0] * 16, [0] * 16, [0] * 16

    def registers(self, c, data):
        """Return the registers after a byte, the last of `data`."""
        q = len(data)
        self.agreed = min(self.agreed + 1, 255) if self.over < self.start and data[self.over] == c else 0
        self.alike = min(self.alike + 1, 255) if self.like > 0 and data[self.like] == c else 0
        self.move(c, data, q)
        first, second = (data[at] if at < self.start else 10 for at in (self.over, self.over + 1))
        above = first | second << 8 | self.agreed << 16 | self.count << 24
        alike = self.alike << 16 | self.mark << 24
        if self.like > 0:
            alike |= data[self.like] | data[min(self.like + 1, q - 1)] << 8
        self.before = c
        self.update_cell(c)
        return {
            **{"ABOVE": above, "ALIKE": alike, "MARKS": self.marks, "KEY": self.key, "UP": self.up},
            **{"CELL_KEY": mix(self.cell, self.key), "CELL_PLACE": mix(self.cell, self.cells)},
            "NUMBER": self.number(c),
        }

    def move(self, c, data, q):
        if is_word(c):
            if self.over < self.start and is_word(data[self.over]):
                self.over += 1
            if not self.in_word:
                self.word, self.shape = 0, mix(self.shape, 256)
                self.look_up(q)
            elif self.like > 0 and is_word(data[self.like]):
                self.like += 1
            self.word, self.in_word = mix(self.word, c), 1
            return
        self.in_word, self.mark = 0, c
        if c == 10:
            self.over, self.start, self.count, self.shape, self.quoted = self.start, q, 0, 0, 0
        else:
            reach = range(self.over, min(self.start, self.over + 256))
            self.over = next((at + 1 for at in reach if data[at] == c), self.over)
            self.count = min(self.count + 1, 255)
            self.marks = (self.marks << 8 | c) & U64
            self.shape = mix(self.shape, c)
            if c == ord('"'):
                self.quoted ^= self.before != ord("\\")
            elif not self.quoted:
                self.update_key(c)
        self.look_up(q)

    def update_key(self, c):
        if c in b":=":
            self.key = self.word
        elif c in b"[{":
            if self.depth < 16:
                self.keys[self.depth], self.key = self.key, 0
            self.depth += 1
        elif c in b"]}" and self.depth > 0:
            self.depth -= 1
            if self.depth < 16:
                self.key = self.keys[self.depth]

    def look_up(self, q):
        self.like = self.places.get(self.shape >> 48, 0)
        self.places[self.shape >> 48] = q

    def update_cell(self, c):
        if c in ENDS:
            if self.length > 0:
                if self.cells < 16:
                    self.own[self.cells] = self.cell
                self.cells += 1
            if c == 10:
                self.over_cells, self.own, self.cells = self.own, [0] * 16, 0
            self.up = self.over_cells[self.cells] if self.cells < 16 else 0
            self.length, self.cell = 0, c
        else:
            self.length, self.cell = self.length + 1, mix(self.cell, c)

    def number(self, c):
        if 48 <= c <= 57:
            if self.digits < 18:
                self.value, self.digits = 10 * self.value + c - 48, self.digits + 1
        else:
            if self.digits > 0:
                last, _, width = self.numbers.get(self.row, (0, 0, 0))
                self.numbers[self.row] = self.value, self.value - last if width else 0, self.digits
            self.value = self.digits = 0
            self.row = mix(self.shape, self.key) >> 52
        last, step, width = self.numbers.get(self.row, (0, 0, 0))
        if width == 0:
            return 0
        guess, d = max(last + step, 0), self.digits
        wide = width + (guess >= 10**width and width < 18)
        head = lambda v, w, n: v // 10 ** max(w - n, 0)  # noqa: E731
        shown = [48 + head(v, w, d + 1) % 10 if d < w else 58 for v, w in ((guess, wide), (last, width))]
        agree = (head(guess, wide, d) == self.value) + 2 * (head(last, width, d) == self.value) if d else 3
        return shown[0] | shown[1] << 8 | agree << 16 | min(d, 15) << 20
