"""What a coding of a tensor is: it writes the payload of a tensor, and decodes it, whole or in parts.

Those that there are: codings.py.
"""

from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import NamedTuple, TypeVar

from squeeze.checkpoint.safetensors import Bytes, Tensor
from squeeze.errors import FormatError
from squeeze.packing import fields
from squeeze.packing.tensors import floats
from squeeze.packing.tensors.content import Content, Difference, InMemory, whole
from squeeze.packing.tensors.float_payload import DTYPES
from squeeze.packing.tensors.float_plan import Plan
from squeeze.packing.tensors.float_writer import Writer
from squeeze.packing.tensors.small import SmallPlan, plan_of

__all__ = ["Coding", "Form", "Subject", "flat", "needed"]

T = TypeVar("T", Bytes, Content)
_SLOW = 1 << 26  # bytes that a segment of a slow coding takes with its models


class Form(NamedTuple):
    """What is known of a tensor besides its bytes. dtype: the one that coders take it for; size: bytes."""

    dtype: str
    shape: tuple[int, ...]
    size: int

    @classmethod
    def of(cls, tensor: Tensor) -> "Form":
        return cls(tensor.layout, tensor.shape, tensor.size)

    @property
    def columns(self) -> int:
        """Values in a row of the matrix, or 0 for a tensor of fewer dimensions."""
        return prod(self.shape[1:]) if len(self.shape) > 1 else 0


def flat(dtype: str, size: int, columns: int = 0) -> Form:
    """Return the form of `size` bytes that are no tensor of the checkpoint; columns: of the matrix that they are."""
    count = 8 * size // DTYPES[dtype][0]
    return Form(dtype, (count // columns, columns) if columns else (count,), size)


class Subject:
    """A tensor to be coded, with what codings find out about it, each once."""

    def __init__(self, content: Content, form: Form, base: Content | None = None, threads: int = 1):
        """content: the tensor's bytes, which may be read several times; base: those of the same tensor of the base."""
        self.content, self.form, self.base, self.threads = content, form, base, threads

    @classmethod
    def of(cls, tensor: Tensor, data: Bytes, base: Bytes | None, threads: int) -> "Subject":
        """Return a tensor whose bytes are in memory, and those of the base, if it has them."""
        other = None if base is None else InMemory(base)
        return cls(InMemory(data), Form.of(tensor), other, threads)

    @cached_property
    def bits(self) -> float:
        """Bits of an entropy coding, estimated on a sample."""
        return floats.estimate(self.content, self.form.dtype)

    @cached_property
    def plan(self) -> Plan | SmallPlan | None:
        """How rANS codes the tensor, or None if that does not pay."""
        return plan_of(self.content, self.form.dtype, self.threads)

    @cached_property
    def difference(self) -> "Subject":
        """The tensor's bytes XOR those of the base."""
        assert self.base is not None
        return Subject(Difference.of(self.content, self.base), self.form, None, self.threads)

    @cached_property
    def layout(self) -> tuple[str, "Subject"]:
        """The layout of the tensor's words that codes shortest, and the bytes in it. It is empty for the words as they
        are."""
        kind, laid = fields.choose(self.content, self.form.dtype, self.form.shape)
        return kind, Subject(laid, flat("U8", laid.size), None, self.threads)


@dataclass(frozen=True)
class Coding:
    """What all codings have; a subclass overrides what differs."""

    name: str
    is_stored = False  # whether the payload is the tensor's bytes
    is_difference = False  # whether the same tensor of the base is needed
    in_segments = False  # whether a few rows are decoded without the others
    stays_coded = False  # whether a loaded model may keep the payload, and decode it each time (df_decode)
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
        other = None if base is None else InMemory(base)
        return whole(self.decode_parts(InMemory(payload), form, other, threads), threads)

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
