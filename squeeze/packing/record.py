"""The record of a tensor in a packed file, and decoding the tensor: whole or in parts, with its checksum compared."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import prod

import xxhash

from squeeze.checkpoint import safetensors as tensorfile
from squeeze.checkpoint.safetensors import Bytes, Tensor, named
from squeeze.errors import DamagedError
from squeeze.packing.coding import Coding, Form
from squeeze.packing.fetch_cache import spooled
from squeeze.packing.running_hash import checksum_of
from squeeze.packing.tensors.content import Content, pieces, whole

__all__ = ["Record", "naming", "other_checksum"]


@dataclass(frozen=True)
class Record:
    """The dtype, shape and coding of a tensor. `checksum` is XXH3-64 of its raw bytes."""

    dtype: str
    shape: tuple[int, ...]
    coding: Coding
    checksum: int
    length: int | None = None  # raw bytes, if this version does not know the dtype

    @classmethod
    def of(cls, tensor: Tensor, coding: Coding, checksum: int = 0) -> "Record":
        """Return the record of a tensor with a coding."""
        known = tensor.dtype in tensorfile.ELEMENT_BITS
        return cls(tensor.dtype, tensor.shape, coding, checksum, None if known else tensor.size)

    def is_of(self, tensor: "Tensor | Record") -> bool:
        """Return whether a tensor has the dtype, shape and size of this record."""
        return (self.dtype, self.shape, self.size) == (tensor.dtype, tensor.shape, tensor.size)

    @property
    def layout(self) -> str:
        """The dtype as which the tensor is coded."""
        return tensorfile.layout_of(self.dtype)

    @property
    def size(self) -> int:
        """The raw bytes."""
        return self.length if self.length is not None else prod(self.shape) * tensorfile.ELEMENT_BITS[self.dtype] // 8

    @property
    def form(self) -> Form:
        return Form(self.layout, self.shape, self.size)

    def memory(self, payload: int, most: int | None = None) -> int:
        """Estimate the bytes of memory for decoding `payload` bytes. most: the most bytes that are decoded at once."""
        return self.coding.memory(payload, self.size, most)

    def decode(self, payload: Bytes, base: Bytes | None, threads: int) -> Bytes:
        """Return the raw bytes of a tensor without comparing them. Raises DamagedError."""
        return self.coding.decode(payload, self.form, base, threads)

    def decode_parts(self, payload: Content, base: Content | None, threads: int) -> Content:
        """Return the raw bytes, decoded as they are read."""
        return self.coding.decode_parts(payload, self.form, base, threads)

    def restore(self, name: str, payload: Bytes, base: Bytes | None, threads: int) -> Bytes:
        """Return the raw bytes of a tensor.

        Args:
            name: the tensor's name, for messages.
            payload: its payload.
            base: the bytes of the base's tensor, for a difference.
            threads: threads that decode.

        Raises DamagedError if their checksum differs.
        """
        with naming(name):
            data = self.decode(payload, base, threads)
        self.check(data, name)
        return data

    def restore_content(self, name: str, payload: Content, base: Content | None, threads: int) -> Bytes:
        """Return the same as `restore`, and read what that takes of the payload: nothing of a bundle in memory."""
        with naming(name):
            data = whole(self.decode_parts(payload, base, threads), threads)
        self.check(data, name)
        return data

    def restore_parts(self, name: str, payload: Content, base: Content | None, threads: int) -> Iterator[Bytes]:
        """Yield the raw bytes piece by piece, each decoded on demand.

        Args are those of `restore`. Raises DamagedError after the last piece if the checksum differs.
        """
        checksum = xxhash.xxh3_64()
        with naming(name):
            for piece in pieces(self.decode_parts(payload, base, threads), threads):
                checksum.update(piece.data)
                yield piece
        if checksum.intdigest() != self.checksum:
            raise other_checksum(name)

    def restore_rereadable(self, name: str, payload: Content, base: Content | None, opened: ExitStack) -> Content:
        """Return the raw bytes in a form that can be read several times, until `opened` is closed.

        Args are those of `restore`. Raises DamagedError if the checksum differs.
        """
        with naming(name):
            content = self.decode_parts(payload, base, 1)
            if self.coding.is_slow:
                content = spooled(content, opened)
            checksum = checksum_of(content, 1)
        if checksum != self.checksum:
            raise other_checksum(name)
        return content

    def check(self, data: Bytes, name: str) -> None:
        """Raise DamagedError if the raw bytes of a tensor have another checksum."""
        if xxhash.xxh3_64_intdigest(data.data) != self.checksum:
            raise other_checksum(name)


def other_checksum(name: str) -> DamagedError:
    return DamagedError(f"{named(name)}: its checksum differs: the file is damaged")


@contextmanager
def naming(name: str) -> Iterator[None]:
    """Add the tensor's name to a DamagedError."""
    try:
        yield
    except DamagedError as error:
        raise DamagedError(f"{named(name)}: {error}") from None
