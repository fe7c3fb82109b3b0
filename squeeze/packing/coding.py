"""What a coding of a tensor is: it writes the payload of a tensor, and decodes it, whole or in parts.

Those that there are: codings.py.
"""

from dataclasses import dataclass
from typing import TypeVar

from squeeze.checkpoint.safetensors import Bytes
from squeeze.codecs.tensors.content import Content, InMemory, whole
from squeeze.codecs.tensors.float_writer import Writer
from squeeze.errors import FormatError
from squeeze.packing.subject import Form, Subject

__all__ = ["Coding", "needed"]

T = TypeVar("T", Bytes, Content)
_SLOW = 1 << 26  # bytes that a segment of a slow coding takes with its models


@dataclass(frozen=True)
class Coding:
    """What all codings have; a subclass overrides what differs."""

    name: str
    is_stored = False  # whether the payload is the tensor's bytes
    is_difference = False  # whether the same tensor of the base is needed
    in_segments = False  # whether a few rows are decoded without the others
    stays_coded = False  # whether a loaded model may keep the payload, and decode it each time (kernels/df_decode)
    cpu_only = False  # whether no GPU decodes it
    copies = 4  # times the size of the tensor: memory that decoding takes beside the payload

    @property
    def is_slow(self) -> bool:
        """Whether decoding takes longer than reading the result from a file."""
        return False

    def takes(self, dtype: str) -> bool:
        """Return whether a tensor that coders take for this dtype may be coded so."""
        return True

    def encode(self, subject: Subject, writer: Writer) -> int:
        """Write the payload, and return its bytes, or 0 if another coding is likely to be shorter."""
        raise NotImplementedError

    def decode(self, payload: Bytes, form: Form, base: Bytes | None, threads: int) -> Bytes:
        """Return the bytes of a tensor. Raises DamagedError, and FormatError if the base has no such tensor."""
        return whole(self.decode_parts(InMemory(payload), form, base if base is None else InMemory(base), threads))

    def decode_parts(self, payload: Content, form: Form, base: Content | None, threads: int) -> Content:
        """Return the same to be read in parts, each decoded when it is read. Raises the same, now or then."""
        raise NotImplementedError

    def memory(self, payload: int, size: int, most: int | None) -> int:
        """Estimate the bytes of memory for decoding `payload` bytes to `size`, with the tensor before, which is still
        being hashed. most: no more of it is decoded at a time, or None."""
        needed = payload + self.copies * size
        if most is None:
            return needed
        return min(needed, payload // 8 + 4 * max(most, _SLOW if self.is_slow else 0))


def needed(base: T | None, form: Form) -> T:
    """The base's bytes, an array or a content. Raises FormatError if they are not as many as the tensor's."""
    if base is None or base.size != form.size:
        raise FormatError("the base has no such tensor: it is not the base that this checkpoint is the difference from")
    return base
