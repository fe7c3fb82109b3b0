"""Codings that wrap another one: a tensor becomes what the inner coding takes, and back."""

from dataclasses import dataclass
from math import prod

import numpy as np

from squeeze.checkpoint.safetensors import Bytes
from squeeze.packing import fields
from squeeze.packing.coding import Coding, Form, Subject, flat, needed
from squeeze.packing.tensors import ulps, zeros
from squeeze.packing.tensors.content import Content, Difference
from squeeze.packing.tensors.float_writer import Writer

__all__ = ["Delta", "Relaid", "Zeros"]

_LEAST_ZEROS = 0.2  # share of values that are 0 from which on zeros are coded apart


@dataclass(frozen=True)
class Wrapper(Coding):
    """A coding that hands what remains of a tensor to an inner one."""

    inner: Coding

    @property
    def is_slow(self) -> bool:
        return self.inner.is_slow


class Delta(Wrapper):
    """The tensor's bytes XOR those of the base."""

    is_difference = True

    def encode(self, subject: Subject, writer: Writer) -> int:
        return self.inner.encode(subject.difference, writer) if subject.difference.bits < subject.bits else 0

    def decode(self, payload: Bytes, form: Form, base: Bytes | None, threads: int) -> Bytes:
        data = self.inner.decode(payload, form, None, threads)
        return np.bitwise_xor(data, needed(base, form), out=data)

    def decode_parts(self, payload: Content, form: Form, base: Content | None, threads: int) -> Content:
        other = needed(base, form)
        return Difference(self.inner.decode_parts(payload, form, None, threads), other)


class Zeros(Wrapper):
    """Where values are 0, and the others (tensors/zeros.py)."""

    def takes(self, dtype: str) -> bool:
        return dtype in ulps.MANTISSAS

    def encode(self, subject: Subject, writer: Writer) -> int:
        counts, form = self._counts(subject), subject.form
        if counts is None:
            return 0

        def write(values: Content, dtype: str, behind: Writer, threads: int, columns: int) -> int:
            return self.inner.encode(Subject(values, flat(dtype, values.size, columns), None, threads), behind)

        columns = form.columns if self.inner.is_slow else 0  # rANS has no use for them
        size = zeros.write(subject.content, form.dtype, writer, write, subject.threads, columns, counts)
        return size if 8 * size < subject.bits else 0

    def _counts(self, subject: Subject) -> np.ndarray | None:
        """What `zeros.count` returns, or None if few values are 0, which a plan of rANS may know."""
        plan = None if self.inner.is_slow else subject.plan
        if plan and plan.most_zeros < _LEAST_ZEROS * plan.count:
            return None
        counts = zeros.count(subject.content, subject.form.dtype, subject.threads)
        values = prod(subject.form.shape)
        return counts if values and 1 - counts.sum() / values >= _LEAST_ZEROS else None

    def decode_parts(self, payload: Content, form: Form, base: Content | None, threads: int) -> Content:
        def read(values: Content, dtype: str, size: int) -> Content:
            return self.inner.decode_parts(values, flat(dtype, size), None, threads)

        return zeros.DecodedZeros(payload, form.dtype, form.size, read, threads)


@dataclass(frozen=True)
class Relaid(Wrapper):
    """The codes in words of quantised weights, laid out as bytes (packing/fields.py)."""

    kind: str

    def takes(self, dtype: str) -> bool:
        return dtype in fields.DTYPES

    def encode(self, subject: Subject, writer: Writer) -> int:
        kind, laid = subject.layout
        return self.inner.encode(laid, writer) if kind == self.kind else 0

    def decode(self, payload: Bytes, form: Form, base: Bytes | None, threads: int) -> Bytes:
        fields.check(form.shape, self.kind)
        laid = self.inner.decode(payload, flat("U8", fields.size_of(form.size, self.kind)), None, threads)
        return fields.restored(laid, form.shape, self.kind)

    def decode_parts(self, payload: Content, form: Form, base: Content | None, threads: int) -> Content:
        fields.check(form.shape, self.kind)
        laid = self.inner.decode_parts(payload, flat("U8", fields.size_of(form.size, self.kind)), None, threads)
        return fields.restored_content(laid, form.shape, self.kind)
