"""A tensor that is to be coded: its bytes and form, and what is found out about it before a coding is chosen."""

from functools import cached_property
from math import prod
from typing import NamedTuple

from squeeze.checkpoint.safetensors import Bytes, Tensor
from squeeze.codecs.tensors import floats
from squeeze.codecs.tensors.content import Content, Difference, InMemory
from squeeze.codecs.tensors.float_payload import DTYPES
from squeeze.codecs.tensors.float_plan import Plan
from squeeze.codecs.tensors.small import SmallPlan, plan_of
from squeeze.packing import fields

__all__ = ["Form", "Subject", "flat"]


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
