"""A numcodecs codec that stores zarr's chunks as .sqz streams. numcodecs finds it by its entry point."""

from typing import Any

from numcodecs.abc import Codec
from numcodecs.compat import ensure_contiguous_ndarray, ndarray_copy

import squeeze
from squeeze.codecs.stream import levels

__all__ = ["Squeeze"]


class Squeeze(Codec):  # type: ignore[misc]
    """A codec that compresses chunks as `squeeze.compress` does, at a level from 1 to 9.

    >>> import numpy, numcodecs  # doctest: +SKIP
    >>> codec = numcodecs.get_codec({"id": "squeeze", "level": 3})  # doctest: +SKIP
    >>> codec.decode(codec.encode(numpy.arange(100)))  # doctest: +SKIP
    """

    codec_id = "squeeze"

    def __init__(self, level: int = 3):
        """Set the level; raises LevelError if it does not exist."""
        self.level = levels.level(level).number

    def encode(self, buf: Any) -> bytes:
        """Compress the bytes of a buffer."""
        return squeeze.compress(ensure_contiguous_ndarray(buf).tobytes(), self.level)

    def decode(self, buf: Any, out: Any = None) -> Any:
        """Return the decompressed bytes, or write them into `out`; raises FormatError if the stream is damaged."""
        return ndarray_copy(squeeze.decompress(ensure_contiguous_ndarray(buf).tobytes()), out)
