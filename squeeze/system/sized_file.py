"""The base of files whose size is known and that can only be read."""

import io

__all__ = ["SizedFile"]


class SizedFile(io.RawIOBase):
    """What reads and seeks share: `_size` bytes, of which the next to be read is at `_position`. A child reads."""

    def __init__(self, size: int):
        self._size, self._position = size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        position = offset + (0, self._position, self._size)[whence]
        if position < 0:
            raise ValueError("cannot seek to before the start")
        self._position = position
        return position
