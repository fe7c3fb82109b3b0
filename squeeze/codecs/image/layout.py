"""The layout of an image: what a row of it has, and how a payload says so."""

import io
from typing import NamedTuple

from squeeze.errors import DamagedError
from squeeze.system.binary import read_exactly, read_varint, varint

__all__ = ["LEAST_SIDE", "LIGHT_MARK", "MOST_ROW", "OF_TWO_VALUES", "Layout", "from_header"]

MOST_ROW = 1 << 20  # bytes of a row
LEAST_SIDE = 16  # pixels across and down of an image that has blocks, so that these are not many more than its pixels
OF_TWO_VALUES = 2  # what the first byte of payloads has more if they are of images of two values
LIGHT_MARK = 4  # first byte of payloads of large images at level 1
_FILTERED, _INDEXED, _LITTLE, _INTERLACED = 1, 2, 4, 8
_CHANNELS_AT, _COLOURS_AT = 4, 6  # places of numbers of two bits in the flags
_BITS = (1, 2, 4, 8, 16)
_BLOCKS = 8  # a flag in the byte of the bits
# The passes of Adam7: first column, columns from one to the next, first row, rows from one to the next.
_PASSES = ((0, 8, 0, 8), (4, 8, 0, 8), (0, 4, 4, 8), (2, 4, 0, 4), (0, 2, 2, 4), (1, 2, 0, 2), (0, 1, 1, 2))
_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # of the colour types of PNG


class Layout(NamedTuple):
    """The layout of an image in bytes that it covers wholly, but for a prefix.

    Attributes:
        width: Pixels of a row.
        bits: Bits of a sample: 1, 2, 4, 8 or 16.
        channels: Samples of a pixel, 1 to 4.
        indexed: 1 if samples are numbers of a palette.
        filtered: 1 if a byte of PNG comes before each row and says how it is filtered.
        little: 1 if the low byte of a sample of 16 bits comes first.
        height: Rows of an interlaced image, or 0.
        padding: Bytes after each row.
        prefix: Bytes before the first row.
        colours: 1 if pixels are converted (colours.py), 2 if their bytes are from blue to red, else 0.
        blocks: 1 if rows are differences from the blocks that a JPEG decoder made the image from (blocks.py), else 0.
    """

    width: int
    bits: int
    channels: int
    indexed: int = 0
    filtered: int = 0
    little: int = 0
    height: int = 0
    padding: int = 0
    prefix: int = 0
    colours: int = 0
    blocks: int = 0

    @property
    def row(self) -> int:
        """The bytes of a row without padding and filter."""
        return self._row(self.width)

    @property
    def stride(self) -> int:
        """The bytes of a row without its filter."""
        return self.row + self.padding

    @property
    def sample(self) -> int:
        """The bytes of a sample, at least 1."""
        return max(self.bits // 8, 1)

    @property
    def pixel(self) -> int:
        """The bytes of a pixel, at least 1."""
        return max(self.bits * self.channels // 8, 1)

    @property
    def is_exact(self) -> bool:
        """True if near values of bytes do not mean near colours."""
        return bool(self.indexed) or self.bits < 8

    @property
    def may_be_converted(self) -> bool:
        """True if a JPEG decoder writes such pixels."""
        return self.bits == 8 and self.channels >= 3 and not self.indexed

    @property
    def may_have_blocks(self) -> bool:
        """True if the image may be differences from blocks: it was converted, or is grey, and is not interlaced."""
        is_grey = self.bits == 8 and self.channels == 1 and not self.indexed
        return bool(self.colours or is_grey) and not self.height and self.width >= LEAST_SIDE

    def row_of(self, stride: int) -> int:
        """Return the bytes of a row without padding, of the image or of a pass."""
        return stride - self.padding

    def _row(self, width: int) -> int:
        return (width * self.bits * self.channels + 7) // 8

    def sections(self, size: int) -> list[tuple[int, int]] | None:
        """Return the bytes and the stride of the passes, or of the whole image, both without filters.

        Args:
            size: bytes of the image, with its filters and without its prefix.

        Returns:
            None if an interlaced image has another number of bytes.
        """
        if not self.height:
            rows = -(-size // (self.stride + self.filtered))
            return [(size - rows * self.filtered, self.stride)]
        found = []
        for first, step, top, down in _PASSES:
            width, rows = -(-max(self.width - first, 0) // step), -(-max(self.height - top, 0) // down)
            if width and rows:
                found.append((rows * self._row(width), self._row(width)))
                size -= rows * (self._row(width) + self.filtered)
        return found if size == 0 else None

    def rows_of_blocks(self, length: int) -> int:
        """Return the rows of an image of `length` bytes with its prefix, or 0 if one is cut off."""
        rows, rest = divmod(length - self.prefix, self.stride + self.filtered)
        return 0 if rest else rows

    def to_bytes(self) -> bytes:
        """Return what `read` reads."""
        flags = _FILTERED * self.filtered | _INDEXED * self.indexed | _LITTLE * self.little
        flags |= _INTERLACED * (self.height > 0) | (self.channels - 1) << _CHANNELS_AT | self.colours << _COLOURS_AT
        numbers = [self.width, self.padding, self.prefix] + [self.height] * (self.height > 0)
        return bytes([flags, _BITS.index(self.bits) | _BLOCKS * self.blocks]) + b"".join(map(varint, numbers))

    @classmethod
    def read(cls, file: io.BytesIO, length: int) -> "Layout":
        """Read the layout of an image of `length` bytes, with its prefix.

        Raises:
            DamagedError: if there is no such image.
        """
        flags, depth = read_exactly(file, 2)
        width, padding, prefix = (read_varint(file)[0] for _ in range(3))
        height = read_varint(file)[0] if flags & _INTERLACED else 0
        colours, blocks, depth = flags >> _COLOURS_AT, depth // _BLOCKS, depth % _BLOCKS
        if depth >= len(_BITS) or bool(flags & _INTERLACED) != bool(height):
            raise _impossible()
        indexed, filtered, little = (int(bool(flags & flag)) for flag in (_INDEXED, _FILTERED, _LITTLE))
        channels = (flags >> _CHANNELS_AT & 3) + 1
        form = cls(width, _BITS[depth], channels, indexed, filtered, little, height, padding, prefix, colours, blocks)
        if not form.is_possible(length) or colours > 2 or (colours and not form.may_be_converted):
            raise _impossible()
        if blocks and (blocks > 1 or not form.may_have_blocks or form.rows_of_blocks(length) < LEAST_SIDE):
            raise _impossible()
        return form

    def is_possible(self, length: int) -> bool:
        """Return whether `length` bytes may have this layout."""
        if not 1 <= self.width <= 8 * MOST_ROW or self.padding > 1 << 16 or self.prefix > length:
            return False
        if self.height and (self.padding or self.height > length or self.little):
            return False
        return self.stride <= min(MOST_ROW, length) and self.sections(length - self.prefix) is not None


def from_header(header: bytes, size: int) -> Layout | None:
    """Return the layout of the data of a PNG image, or None if the data has not as many bytes as that.

    Args:
        header: the 13 bytes of IHDR.
        size: bytes of the data.
    """
    width, height = (int.from_bytes(header[at : at + 4], "big") for at in (0, 4))
    if len(header) < 13:
        return None
    bits, colour, coding, filtering, interlace = header[8:13]
    if bits not in _BITS or colour not in _CHANNELS or coding or filtering or interlace > 1:
        return None
    form = Layout(width, bits, _CHANNELS[colour], int(colour == 3), 1, 0, height if interlace else 0)
    return form if form.is_possible(size) else None


def _impossible() -> DamagedError:
    return DamagedError("the layout of an image is impossible: the file is damaged")
