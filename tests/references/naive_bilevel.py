"""The model of images of two values, written from docs/format.md, section 22.6, one pixel at a time."""

from tests.references.naive_bytewise import STRETCH, learn_map
from tests.references.naive_image_model import Image
from tests.references.naive_mixing import Mixer

ROWS = (
    *("4; 2, 2; 1, 1", "4; 4, 4; 3, 3; 1, 1", "5; 5, 5; 4, 4; 3, 3", "8; 7, 7; 7, 6; 6, 5; 4, 4; 2, 2"),
    *("8; 7, 7; 6, 6; 5, 5; 4, 4; 3, 3", "1; 1, 1; 1, 1; 1, 1; 1, 1; 1, 1; 1, 1", "16; 0, 0"),
    *("6; 6, 6; 5, 5; 4, 4; 3, 3", "12; 3, 7", "0; 2, 2; 2, 2; 2, 2", "4; 2, 2; 2, 2; 2, 2; 2, 2; 2, 2; 2, 2"),
    *("15; 12, 7; 4, 4", "3; 3, 3; 3, 3; 3, 3; 3, 3", "2; 1, 1"),
)
TEMPLATES = [[[int(n) for n in row.split(",")] for row in one.split(";")] for one in ROWS]
GOLDEN, U64 = 0x9E3779B97F4A7C15, 2**64 - 1


class TwoValues(Image):
    """An image whose rows are of pixels of two values."""

    def __init__(self, full: int, bits: int, stride: int, size: int, values: tuple[int, int]):
        super().__init__(full, 1, 1, stride, size, True)
        self.values, self.bits = values, bits
        n = size + 3 * max(stride, 4) + 8
        self.map_bits = min(max(n.bit_length() - 1, 10), 20 if full else 18)
        self.maps_of: dict[tuple[int, int], list[int]] = {}
        self.mixer = Mixer(14, wraps=True)
        self.start_pass()
        self.flats = 0

    def start_pass(self) -> None:
        self.lines: list[list[int]] = []
        self.numbers: list[int] = []  # of the pixels of each line, the last of which is its lowest bit

    def row(self, size: int) -> bytes:
        zero, one = self.values
        count = size if self.bits == 8 else 8 * size
        self.line: list[int] = []
        self.lines.append(self.line)
        self.numbers.append(0)
        self.left = self.run_of = 0
        while len(self.line) < count:
            whole = count - len(self.line) >= 8
            if not (whole and self._is_flat() and self._same_group()):
                for j in range(min(8, count - len(self.line))):
                    self._pixel(j)
        if self.bits == 8:
            return bytes(one if pixel else zero for pixel in self.line)
        packed = (int("".join(map(str, self.line[at : at + 8])), 2) for at in range(0, count, 8))
        return bytes(byte ^ zero for byte in packed)

    def _up(self, y: int, first: int, last: int) -> int:
        """Return the pixels of columns from `first` to `last` of the row `y` rows up; there are zeros around it."""
        if y >= len(self.lines):
            return 0
        right, row = len(self.lines[-1 - y]) - 1 - last, self.numbers[-1 - y]
        return (row >> right if right > 0 else row << -right) & (1 << last + 1 - first) - 1

    def _group(self, y: int) -> int:
        x = len(self.line)
        return self._up(y, x - 16, x + 15)

    def _is_flat(self) -> bool:
        around = [self._group(1) & 0x3FFE0, self._group(2) & 0x3FFE0]
        before = self.left & 255
        return (before == 0 and around == [0, 0]) or (before == 255 and around == [0x3FFE0] * 2)

    def _same_group(self) -> bool:
        color = self.left & 1

        def eq(v: int, mask: int) -> int:
            return int(v & mask == color * mask)

        entry = 8 * min(self.flats.bit_length(), 15) + 4 * eq(self._group(1), 0x1F)
        entry += 2 * eq(self._group(3), 0x3FFE0) + eq(self.left >> 8, 0xFF)
        if not self._bit("flat", entry):
            self.flats = 0
            return False
        self.flats += 1
        self.run_of = min(self.run_of + 8, 2048)
        self.line += [color] * 8
        self.numbers[-1] = self.numbers[-1] << 8 | 255 * color
        self.left = (self.left << 8 | 255 * color) % 2**32
        return True

    def _contexts_of(self, j: int) -> list[int]:
        x, found = len(self.line), []
        for template in TEMPLATES:
            number = place = 0
            for y, (left, *right) in enumerate(template):
                end = x + right[0] if y else x - 1
                number |= self._up(y, x - left, end) << place
                place += end - (x - left) + 1
            found.append(number)
        found.append(512 * (len(self.lines) - 1 & 7) + 64 * j + 8 * self._up(1, x - 1, x + 1) + (self.left & 7))
        return found if self.full else found[:7]

    def _pixel(self, j: int) -> None:
        x, places, inputs, known = len(self.line), [], [], 0
        for k, context in enumerate(self._contexts_of(j)):
            h = (context + 1) * GOLDEN & U64
            h = (h ^ h >> 29) * GOLDEN & U64
            entry = self.maps_of.setdefault((k, h >> (64 - self.map_bits)), [2**31])
            places.append(entry)
            count = entry[0] & 1023
            known += (count > 0) + (count > 2)
            inputs.append(STRETCH[entry[0] >> 20] if count else 0)
        inputs.append(1024)
        rows = [
            256 * self._up(2, x - 1, x + 1) + 8 * self._up(1, x - 2, x + 2) + (self.left & 7),
            2 * self._up(1, x - 4, x + 4) + (self.left & 1),
            8 * min(self.run_of.bit_length(), 15) + self._up(1, x - 1, x + 1),
            known,
        ]
        keys = (0, rows[0]), (1, rows[2])
        bit = self.mixer.decode(self.coder, inputs, rows, [16384] * len(inputs), rows[0] & 255, keys)
        for entry in places:
            learn_map(entry, 0, bit, 255)
        self.run_of = min(self.run_of + 1, 2048) if self.left & 1 == bit else 1
        self.left = (self.left << 1 | bit) % 2**32
        self.line.append(bit)
        self.numbers[-1] = self.numbers[-1] << 1 | bit
