"""A codec of numcodecs, so that zarr stores its chunks as .sqz: numcodecs finds it by its entry point."""

from typing import Any

from numcodecs.abc import Codec
from numcodecs.compat import ensure_contiguous_ndarray, ndarray_copy

import squeeze
from squeeze.codecs.stream import levels

__all__ = ["Squeeze"]


class Squeeze(Codec):  # type: ignore[misc]
    """Chunks as .sqz streams of a level from 1 to 9, as `squeeze.compress` makes them.

    >>> import numpy, numcodecs  # doctest: +SKIP
    >>> codec = numcodecs.get_codec({"id": "squeeze", "level": 3})  # doctest: +SKIP
    >>> codec.decode(codec.encode(numpy.arange(100)))  # doctest: +SKIP
    """

    codec_id = "squeeze"

    def __init__(self, level: int = 3):
        """Raises LevelError for a level that does not exist."""
        self.level = levels.level(level).number

    def encode(self, buf: Any) -> bytes:
        """The stream of a buffer's bytes."""
        return squeeze.compress(ensure_contiguous_ndarray(buf).tobytes(), self.level)

    def decode(self, buf: Any, out: Any = None) -> Any:
        """What `encode` was given, as bytes, or in the memory of `out`. Raises FormatError or its children."""
        return ndarray_copy(squeeze.decompress(ensure_contiguous_ndarray(buf).tobytes()), out)
