"""Codings that transform a tensor and leave the result to an inner coding, one class each."""

from dataclasses import dataclass
from math import prod

import numpy as np

from squeeze.checkpoint.ggml_types import BLOCKS
from squeeze.checkpoint.safetensors import Bytes
from squeeze.errors import DamagedError, FormatError
from squeeze.packing import fields, shared
from squeeze.packing.coding import Coding, Form, Subject, flat, needed
from squeeze.packing.tensors import archive, blocks, floats, grid, grid_levels, ulps, zeros
from squeeze.packing.tensors.content import Content, Difference, InMemory, whole
from squeeze.packing.tensors.float_writer import Writer

__all__ = ["Blocks", "Delta", "Grid", "Relaid", "Shared", "Wrapper", "Zeros"]

_LEAST_ZEROS = 0.2  # share of zeros from which on they are coded separately


@dataclass(frozen=True)
class Wrapper(Coding):
    """A coding that transforms a tensor and leaves the result to an inner coding."""

    inner: Coding

    @property
    def is_slow(self) -> bool:
        return self.inner.is_slow

    def write(self, values: Content, dtype: str, behind: Writer, threads: int, columns: int = 0) -> int:
        """Write what the inner coding makes of values, and return its bytes, 0 if it is no shorter."""
        return self.inner.encode(Subject(values, flat(dtype, values.size, columns), None, threads), behind)


class Delta(Wrapper):
    """XOR of the tensor's bytes with those of the base."""

    is_difference = True

    def decode_bundle(self, payload: Bytes, form: Form, threads: int) -> Bytes:
        return self.inner.decode(payload, form, None, threads)

    def encode(self, subject: Subject, writer: Writer) -> int:
        return self.inner.encode(subject.difference, writer) if subject.difference.bits < subject.bits else 0

    def decode(self, payload: Bytes, form: Form, base: Bytes | None, threads: int) -> Bytes:
        data = self.inner.decode(payload, form, None, threads)
        return np.bitwise_xor(data, needed(base, form), out=data)

    def decode_parts(self, payload: Content, form: Form, base: Content | None, threads: int) -> Content:
        other = needed(base, form)
        return Difference(self.inner.decode_parts(payload, form, None, threads), other)


class Zeros(Wrapper):
    """A mask of the values that are 0, and the other values (tensors/zeros.py)."""

    def takes(self, dtype: str) -> bool:
        return dtype in ulps.MANTISSAS

    def encode(self, subject: Subject, writer: Writer) -> int:
        counts, form = self._counts(subject), subject.form
        if counts is None:
            return 0

        columns = form.columns if self.inner.is_slow else 0  # rANS has no use for them
        size = zeros.write(subject.content, form.dtype, writer, self.write, subject.threads, columns, counts)
        return size if 8 * size < subject.bits else 0

    def _counts(self, subject: Subject) -> np.ndarray | None:
        """Return the result of `zeros.count`, or None if few values are 0."""
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


class Grid(Wrapper):
    """Codes of values that are levels times a scale, and the scales (tensors/grid.py)."""

    def takes(self, dtype: str) -> bool:
        return dtype in grid_levels.FORMS

    def encode(self, subject: Subject, writer: Writer) -> int:
        if subject.grid is None or (subject.grid.scales.size == 1 and subject.is_text):  # such as a mask
            return 0

        size = grid.write(subject.content, subject.form.dtype, subject.grid, writer, self.write, subject.threads)
        return size if 8 * size < subject.bits else 0

    def decode(self, payload: Bytes, form: Form, base: Bytes | None, threads: int) -> Bytes:
        def read(values: Content, dtype: str, size: int) -> Content:  # at once, which takes half the time of parts
            return InMemory(self.inner.decode(whole(values), flat(dtype, size), None, threads))

        return whole(grid.DecodedGrid(InMemory(payload), form.dtype, form.size, read), threads)

    def decode_parts(self, payload: Content, form: Form, base: Content | None, threads: int) -> Content:
        def read(values: Content, dtype: str, size: int) -> Content:
            return self.inner.decode_parts(values, flat(dtype, size), None, threads)

        return grid.DecodedGrid(payload, form.dtype, form.size, read)


class Blocks(Wrapper):
    """Scales and codes of the block types of GGUF, apart from each other (tensors/blocks.py)."""

    def takes(self, dtype: str) -> bool:
        return dtype in BLOCKS

    def encode(self, subject: Subject, writer: Writer) -> int:
        def write(
            values: Content, dtype: str, behind: Writer, threads: int, columns: int, scales: Content | None
        ) -> int:
            if scales is not None and self.inner.is_slow:
                return archive.write(values, dtype, behind, threads, columns, scales)
            return self.write(values, dtype, behind, threads, columns)

        form = subject.form
        place = subject.content, form.dtype, writer
        size = blocks.write(*place, write, subject.threads, form.shape, by_neighbours=self.inner.is_slow)
        return size if 8 * size < subject.bits else 0

    def decode_parts(self, payload: Content, form: Form, base: Content | None, threads: int) -> Content:
        def read(values: Content, dtype: str, size: int, scales: Content | None) -> Content:
            if scales is not None and self.inner.is_slow:
                return archive.decoded(values, dtype, size, threads, scales)
            return self.inner.decode_parts(values, flat(dtype, size), None, threads)

        return blocks.DecodedBlocks(payload, form.dtype, form.size, read)


@dataclass(frozen=True)
class Relaid(Wrapper):
    """Codes of quantised weights, repacked from words to bytes (fields.py)."""

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


class Shared(Wrapper):
    """Bytes of other tensors of the same checkpoint, and the coded rest (shared.py).

    Its base is the bytes of the other tensors, end to end. The inner coding codes the rest as a tensor of one
    dimension.
    """

    is_shared = True
    takes_bundles = False

    def takes(self, dtype: str) -> bool:
        return self.inner.takes(dtype)

    def encode(self, subject: Subject, writer: Writer) -> int:
        table, dtype = subject.table, subject.form.dtype
        if table is None or (not table.literals and not self.inner.is_stored):
            return 0
        most = floats.max_size(table.literals, dtype) + 2 * table.literals

        def write(rest: Content, behind: Writer) -> int:
            return self.write(rest, dtype, behind, subject.threads)

        return shared.write(subject.content, table, writer, most, write)

    def decode_parts(self, payload: Content, form: Form, base: Content | None, threads: int) -> Content:
        if base is None:
            raise FormatError("the tensors that it shares bytes with are not known")
        table, coded = shared.read(payload, form.size)
        if table.literals:
            rest = self.inner.decode_parts(coded, flat(form.dtype, table.literals), None, threads)
        else:
            rest = coded
        if rest.size != table.literals:
            raise DamagedError("the bytes after its table are not as many as it says")
        return shared.merged(table, base, rest)
