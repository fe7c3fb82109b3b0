"""The interface of a coding, which writes the payload of a tensor and decodes it, whole or in parts.

The codings themselves are in codings.py.
"""

from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import NamedTuple, TypeVar

from squeeze.checkpoint.safetensors import Bytes, Tensor
from squeeze.errors import FormatError
from squeeze.packing import fields
from squeeze.packing.shared import Table
from squeeze.packing.tensors import floats, grid_plan, text
from squeeze.packing.tensors.content import Content, Difference, InMemory, whole
from squeeze.packing.tensors.float_payload import DTYPES
from squeeze.packing.tensors.float_plan import Plan
from squeeze.packing.tensors.float_writer import Writer
from squeeze.packing.tensors.grid_tiles import Grid
from squeeze.packing.tensors.small import SmallPlan, plan_of

__all__ = ["Coding", "Form", "Subject", "flat", "needed"]

T = TypeVar("T", Bytes, Content)
_SLOW = 1 << 26  # bytes of a segment of a slow coding with its models


class Form(NamedTuple):
    """The dtype, shape and size in bytes of a tensor, where `dtype` is the type as which it is coded."""

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
    """Return the form of `size` bytes that are not a tensor of the checkpoint; `columns` are those of a matrix."""
    count = 8 * size // DTYPES[dtype][0]
    return Form(dtype, (count // columns, columns) if columns else (count,), size)


class Subject:
    """A tensor to be coded, with what codings find out about it, computed once each."""

    def __init__(
        self, content: Content, form: Form, base: Content | None = None, threads: int = 1, table: Table | None = None
    ):
        """Take a tensor.

        Args:
            content: its bytes, which may be read several times.
            form: its dtype and shape.
            base: the bytes of the same tensor of the base, or those that it shares with other tensors.
            threads: threads that code.
            table: what it shares with other tensors, if anything.
        """
        self.content, self.form, self.base, self.threads, self.table = content, form, base, threads, table

    @classmethod
    def of(cls, tensor: Tensor, data: Bytes, base: Bytes | None, threads: int, table: Table | None = None) -> "Subject":
        """Return a tensor whose bytes, and those of the base if there is one, are in memory."""
        other = None if base is None else InMemory(base)
        return cls(InMemory(data), Form.of(tensor), other, threads, table)

    @cached_property
    def bits(self) -> float:
        """The bits of an entropy coding, estimated on a sample."""
        return floats.estimate(self.content, self.form.dtype)

    @cached_property
    def plan(self) -> Plan | SmallPlan | None:
        """The plan of rANS for the tensor, or None if rANS does not make it shorter."""
        return plan_of(self.content, self.form.dtype, self.threads)

    @cached_property
    def grid(self) -> Grid | None:
        """The grid that all values are on, or None."""
        return grid_plan.find(self.content, self.form.dtype, self.form.shape, self.threads)

    @cached_property
    def is_text(self) -> bool:
        """True if bzip2 makes the bytes clearly shorter than an entropy coding without context does."""
        is_bytes = self.form.dtype in ("U8", "BOOL")
        return (is_bytes or text.may_repeat(self.content)) and text.is_text(self.content, lambda: self.bits)

    @cached_property
    def difference(self) -> "Subject":
        """The tensor's bytes XOR those of the base."""
        assert self.base is not None
        return Subject(Difference.of(self.content, self.base), self.form, None, self.threads)

    @cached_property
    def layout(self) -> tuple[str, "Subject"]:
        """The word layout that codes shortest, "" for the words as they are, and the bytes in that layout."""
        kind, laid = fields.choose(self.content, self.form.dtype, self.form.shape)
        return kind, Subject(laid, flat("U8", laid.size), None, self.threads)


@dataclass(frozen=True)
class Coding:
    """The interface of a coding, with the answers that most share; subclasses override what differs."""

    name: str
    is_stored = False  # whether the payload is the tensor's bytes
    is_difference = False  # whether the same tensor of the base is needed
    is_shared = False  # whether bytes of other tensors of the same checkpoint are needed
    is_member = False  # whether the payload has other tensors as well (bundles.py)
    takes_bundles = True  # whether it codes several tensors together
    in_segments = False  # whether a few rows are decoded without the others
    stays_coded = False  # whether a loaded model may keep the payload, and decode it each time (device_decode)
    cpu_only = False  # whether no GPU decodes it
    copies = 4  # memory for decoding besides the payload, as a multiple of the tensor's size

    @property
    def is_slow(self) -> bool:
        """True if decoding takes longer than reading the tensor from a file."""
        return False

    def takes(self, dtype: str) -> bool:
        """Return whether the coding accepts tensors of this dtype."""
        return True

    def encode(self, subject: Subject, writer: Writer) -> int:
        """Write the payload, and return its bytes, or 0 if another coding is likely to be shorter."""
        raise NotImplementedError

    def decode(self, payload: Bytes, form: Form, base: Bytes | None, threads: int) -> Bytes:
        """Return the bytes of a tensor.

        Raises DamagedError, and FormatError if the base has no such tensor.
        """
        other = None if base is None else InMemory(base)
        return whole(self.decode_parts(InMemory(payload), form, other, threads), threads)

    def decode_bundle(self, payload: Bytes, form: Form, threads: int) -> Bytes:
        """Return the bytes of several tensors, end to end; of a difference, those that the base is added to by XOR."""
        return self.decode(payload, form, None, threads)

    def decode_parts(self, payload: Content, form: Form, base: Content | None, threads: int) -> Content:
        """Return the bytes to be read in parts, each decoded when it is read. Raises as `decode`, at once or then."""
        raise NotImplementedError

    def memory(self, payload: int, size: int, most: int | None) -> int:
        """Estimate the bytes of memory for decoding, including the tensor before, which is still being hashed.

        Args:
            payload: bytes of the payload.
            size: bytes of the tensor.
            most: the most bytes that are decoded at a time, or None.
        """
        needed = payload + self.copies * size
        if most is None:
            return needed
        return min(needed, payload // 8 + 4 * max(most, _SLOW if self.is_slow else 0))


def needed(base: T | None, form: Form) -> T:
    """Return the base's bytes, an array or a content. Raises FormatError if their number is not the tensor's."""
    if base is None or base.size != form.size:
        raise FormatError("the base has no such tensor: it is not the base that this checkpoint is the difference from")
    return base
