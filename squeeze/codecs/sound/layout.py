"""The layout of a sound: its samples and channels, and how a payload says so."""

import io
from typing import NamedTuple

from squeeze.errors import DamagedError
from squeeze.system.binary import read_exactly, read_varint, varint

__all__ = ["MOST_CHANNELS", "Layout"]

MOST_CHANNELS = 8
_BIG, _UNSIGNED = 1, 2


class Layout(NamedTuple):
    """The layout of a sound of integer samples in bytes that it covers wholly, but for a prefix.

    Attributes:
        width: Bytes of a sample, 1 to 4.
        channels: Samples of a frame, 1 to 8.
        big: 1 if the high byte of a sample comes first.
        unsigned: 1 if samples have no sign.
        prefix: Bytes before the first frame.
    """

    width: int
    channels: int
    big: int = 0
    unsigned: int = 0
    prefix: int = 0

    @property
    def frame(self) -> int:
        """The bytes of a frame."""
        return self.width * self.channels

    @property
    def bits(self) -> int:
        """The bits of a sample."""
        return 8 * self.width

    def to_bytes(self) -> bytes:
        """Return what `read` reads."""
        flags = _BIG * self.big | _UNSIGNED * self.unsigned | (self.width - 1) << 2 | (self.channels - 1) << 4
        return bytes([flags]) + varint(self.prefix)

    @classmethod
    def read(cls, file: io.BytesIO, length: int) -> "Layout":
        """Read the layout of a sound of `length` bytes, with its prefix.

        Raises:
            DamagedError: if there is no such sound.
        """
        flags = read_exactly(file, 1)[0]
        prefix = read_varint(file)[0]
        big, unsigned = (int(bool(flags & flag)) for flag in (_BIG, _UNSIGNED))
        form = cls((flags >> 2 & 3) + 1, (flags >> 4) + 1, big, unsigned, prefix)
        if not form.is_possible(length):
            raise DamagedError("the layout of a sound is impossible: the file is damaged")
        return form

    def is_possible(self, length: int) -> bool:
        """Return whether `length` bytes may have this layout."""
        return 1 <= self.width <= 4 and 1 <= self.channels <= MOST_CHANNELS and 0 <= self.prefix <= length
