"""A codec of zarr format 3 that stores chunks as .sqz streams. zarr finds it by its entry point; format 2 uses
numcodecs.
"""

import asyncio
from dataclasses import dataclass
from typing import Any, Self

from zarr.abc.codec import BytesBytesCodec

import squeeze
from squeeze.codecs.stream import levels
from squeeze.errors import FormatError

__all__ = ["SqueezeCodec"]

_NAME = "squeeze"


@dataclass(frozen=True)
class SqueezeCodec(BytesBytesCodec):  # type: ignore[misc]
    """A codec that compresses chunks as `squeeze.compress` does, at a level from 1 to 9.

    >>> import zarr  # doctest: +SKIP
    >>> zarr.create_array("a.zarr", shape=(9, 9), dtype="i4", compressors=SqueezeCodec(level=3))  # doctest: +SKIP
    """

    is_fixed_size = False

    level: int = 3

    def __post_init__(self) -> None:
        """Raise LevelError if the level does not exist."""
        levels.level(self.level)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Create a codec from an array's metadata; raises FormatError for unknown settings."""
        settings = data.get("configuration", {})
        if set(settings) - {"level"}:
            raise FormatError(f"the codec {_NAME} has a level and nothing else: the array needs a newer squeeze")
        return cls(**settings)

    def to_dict(self) -> dict[str, Any]:
        return {"name": _NAME, "configuration": {"level": self.level}}

    def compute_encoded_size(self, input_byte_length: int, chunk_spec: Any) -> int:
        raise NotImplementedError

    async def _encode_single(self, chunk_bytes: Any, chunk_spec: Any) -> Any:
        return await asyncio.to_thread(self._through, squeeze.compress, chunk_bytes, chunk_spec, self.level)

    async def _decode_single(self, chunk_bytes: Any, chunk_spec: Any) -> Any:
        return await asyncio.to_thread(self._through, squeeze.decompress, chunk_bytes, chunk_spec)

    @staticmethod
    def _through(function: Any, chunk_bytes: Any, chunk_spec: Any, *settings: int) -> Any:
        return chunk_spec.prototype.buffer.from_bytes(function(chunk_bytes.to_bytes(), *settings))
