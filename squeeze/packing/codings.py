"""The codings of a tensor, one class each: `CODINGS` has all by name, `encode` tries those of a level in turn.

No other module knows their names; it asks the class (coding.py). Payloads are computed in tensors, and docs/format.md
specifies them.
"""

from dataclasses import dataclass
from functools import cache
from math import prod

import numpy as np

from squeeze.checkpoint.ggml_types import BLOCKS
from squeeze.checkpoint.safetensors import Bytes
from squeeze.errors import DamagedError, FormatError
from squeeze.packing import fields, shared
from squeeze.packing.coding import Coding, Form, Subject, flat, needed
from squeeze.packing.tensors import archive, blocks, fixed, floats, grid, grid_levels, text, ulps, zeros
from squeeze.packing.tensors.content import Content, Difference, InMemory, whole
from squeeze.packing.tensors.fixed import DecodedFixed
from squeeze.packing.tensors.float_writer import MemoryWriter, Writer, copy
from squeeze.packing.tensors.floats import Decoded

__all__ = [
    "CODINGS",
    "LEVELS",
    "STORED",
    "Blocks",
    "Delta",
    "Grid",
    "Relaid",
    "Shared",
    "Zeros",
    "encode",
    "encode_in_memory",
    "longest_named",
]

_LEAST_ZEROS = 0.2  # share of zeros from which on they are coded separately


@dataclass(frozen=True)
class Wrapper(Coding):
    """A coding that transforms a tensor and leaves the result to an inner coding."""

    inner: Coding

    @property
    def is_slow(self) -> bool:
        return self.inner.is_slow


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

        def write(values: Content, dtype: str, behind: Writer, threads: int, columns: int) -> int:
            return self.inner.encode(Subject(values, flat(dtype, values.size, columns), None, threads), behind)

        columns = form.columns if self.inner.is_slow else 0  # rANS has no use for them
        size = zeros.write(subject.content, form.dtype, writer, write, subject.threads, columns, counts)
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

        def write(values: Content, dtype: str, behind: Writer, threads: int, columns: int) -> int:
            return self.inner.encode(Subject(values, flat(dtype, values.size, columns), None, threads), behind)

        size = grid.write(subject.content, subject.form.dtype, subject.grid, writer, write, subject.threads)
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
            return self.inner.encode(Subject(values, flat(dtype, values.size, columns), None, threads), behind)

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


_LARGER = 1.03  # times the size of rANS: the limit for codes of fixed length


class Stored(Coding):
    """The bytes without compression."""

    is_stored = in_segments = True
    copies = 1

    def encode(self, subject: Subject, writer: Writer) -> int:
        return copy(subject.content, writer, 0, subject.threads)

    def decode(self, payload: Bytes, form: Form, base: Bytes | None, threads: int) -> Bytes:
        if payload.size != form.size:
            raise DamagedError("the payload has another size than the tensor")
        return payload

    def decode_parts(self, payload: Content, form: Form, base: Content | None, threads: int) -> Content:
        if payload.size != form.size:
            raise DamagedError("the payload has another size than the tensor")
        return payload


class Fixed(Coding):
    """Codes of a fixed length, the fastest coding (tensors/fixed.py)."""

    in_segments = stays_coded = cpu_only = True
    copies = 2

    def takes(self, dtype: str) -> bool:
        return dtype in fixed.DTYPES

    def encode(self, subject: Subject, writer: Writer) -> int:
        size = fixed.write(subject.content, subject.form.dtype, writer, subject.threads)
        return size if size and self._is_short(subject, size) else 0

    def _is_short(self, subject: Subject, size: int) -> bool:
        if subject.form.dtype in ("BF16", "F16") and fixed.has_noise(subject.content):
            return True
        return 8 * size <= _LARGER * subject.bits

    def decode(self, payload: Bytes, form: Form, base: Bytes | None, threads: int) -> Bytes:
        return fixed.decode(payload, form.dtype, form.size, threads)

    def decode_parts(self, payload: Content, form: Form, base: Content | None, threads: int) -> Content:
        return DecodedFixed(payload, form.dtype, form.size)


class Rans(Coding):
    """Entropy coding with frequency tables (tensors/floats.py)."""

    in_segments = stays_coded = True
    copies = 2

    def encode(self, subject: Subject, writer: Writer) -> int:
        size = subject.plan.write(writer) if subject.plan else 0
        return size if size < subject.content.size else 0

    def decode(self, payload: Bytes, form: Form, base: Bytes | None, threads: int) -> Bytes:
        return floats.decode(payload, form.dtype, form.size, threads)

    def decode_parts(self, payload: Content, form: Form, base: Content | None, threads: int) -> Content:
        return Decoded(payload, form.dtype, form.size)


class Text(Coding):
    """Texts, and masks and indices that repeat themselves (tensors/text.py)."""

    is_slow = True

    def takes(self, dtype: str) -> bool:
        return dtype not in BLOCKS

    def encode(self, subject: Subject, writer: Writer) -> int:
        return text.write(subject.content, writer, subject.threads) if subject.is_text else 0

    def decode_parts(self, payload: Content, form: Form, base: Content | None, threads: int) -> Content:
        return text.DecodedText(payload, form.size)


class Archive(Coding):
    """Entropy coding with mixed contexts, the smallest coding (tensors/archive.py)."""

    @property
    def is_slow(self) -> bool:
        return True

    def encode(self, subject: Subject, writer: Writer) -> int:
        form = subject.form
        return archive.write(subject.content, form.dtype, writer, subject.threads, form.columns)

    def decode(self, payload: Bytes, form: Form, base: Bytes | None, threads: int) -> Bytes:
        return archive.decode(payload, form.dtype, form.size, threads)

    def decode_parts(self, payload: Content, form: Form, base: Content | None, threads: int) -> Content:
        return archive.decoded(payload, form.dtype, form.size, threads)


class Ulps(Coding):
    """Differences from the base in units of the last place (tensors/ulps.py)."""

    is_difference = True
    takes_bundles = False

    def takes(self, dtype: str) -> bool:
        return dtype in ulps.MANTISSAS

    def encode(self, subject: Subject, writer: Writer) -> int:
        assert subject.base is not None
        size = ulps.write(subject.content, subject.base, subject.form.dtype, writer, subject.threads)
        return size if size and 8 * size <= min(subject.difference.bits, subject.bits) else 0

    def decode(self, payload: Bytes, form: Form, base: Bytes | None, threads: int) -> Bytes:
        return ulps.decode(payload, needed(base, form), form.dtype, threads)

    def decode_parts(self, payload: Content, form: Form, base: Content | None, threads: int) -> Content:
        return ulps.DecodedUlps(payload, needed(base, form), form.dtype)


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
            return self.inner.encode(Subject(rest, flat(dtype, rest.size), None, subject.threads), behind)

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


def _shared(inner: Coding) -> Coding:
    return Shared(f"shared+{inner.name}", inner)


def _delta(inner: Coding) -> Coding:
    return Delta(f"delta+{inner.name}", inner)


def _of_values(inner: Coding) -> tuple[Coding, ...]:
    relaid = (Relaid(f"{kind}+{inner.name}", inner, kind) for kind in fields.KINDS)
    wrappers = Grid(f"grid+{inner.name}", inner), TEXT, Zeros(f"zeros+{inner.name}", inner)
    return *wrappers, Blocks(f"blocks+{inner.name}", inner), *relaid


STORED, FIXED, ULPS, TEXT = Stored("stored"), Fixed("fixed"), Ulps("ulps"), Text("text")
RANS, ARCHIVE = Rans("rans"), Archive("archive")
# The codings that a level tries in turn, for a tensor without and for one with a base.
LEVELS: dict[str, tuple[tuple[Coding, ...], tuple[Coding, ...]]] = {
    "fast": ((FIXED, *_of_values(RANS), RANS), (_delta(RANS), TEXT, RANS)),
    "runtime": ((*_of_values(RANS), RANS), (ULPS, _delta(RANS), TEXT, RANS)),
    "archive": ((*_of_values(ARCHIVE), ARCHIVE), (ULPS, _delta(ARCHIVE), TEXT, ARCHIVE)),
}
# Those of a tensor that shares bytes with others.
SHARED: dict[str, tuple[Coding, ...]] = {
    "fast": (_shared(FIXED), _shared(RANS), _shared(STORED)),
    "runtime": (_shared(RANS), _shared(STORED)),
    "archive": (_shared(ARCHIVE), _shared(STORED)),
}
_TRIED = (tried for level in LEVELS for tried in (*LEVELS[level], SHARED[level]))
CODINGS = {coding.name: coding for tried in _TRIED for coding in (STORED, *tried)}


def encode(subject: Subject, level: str, writer: Writer, is_bundle: bool = False) -> tuple[Coding, int]:
    """Write the payload of the first coding of a level that makes a tensor shorter.

    Args:
        subject: the tensor.
        level: the level of packing.
        writer: where the payload goes.
        is_bundle: whether it is several tensors, end to end.

    Returns:
        The coding and the payload's bytes. If none does, it is STORED with 0 bytes, and nothing is written.
    """
    for coding in _tried(level, subject.form.dtype, subject.base is not None, subject.table is not None):
        if is_bundle and not coding.takes_bundles:
            continue
        if size := coding.encode(subject, writer):
            return coding, size
    return STORED, 0


@cache
def _tried(level: str, dtype: str, with_base: bool, is_shared: bool) -> tuple[Coding, ...]:
    tried = SHARED[level] if is_shared else LEVELS[level][with_base]
    return tuple(coding for coding in tried if coding.takes(dtype))


def encode_in_memory(subject: Subject, level: str, is_bundle: bool = False) -> tuple[Coding, Bytes]:
    """Return the coding and the payload of a tensor; the payload of STORED is the tensor's own array.

    Args are those of `encode`.
    """
    writer = MemoryWriter()
    coding, size = encode(subject, level, writer, is_bundle)
    payload = writer.payload(size)
    return coding, whole(subject.content) if coding.is_stored else payload


@cache
def longest_named(dtype: str, with_base: bool, is_shared: bool = False) -> Coding:
    """Return the coding with the longest name of those possible for this dtype."""
    possible = [
        one
        for one in CODINGS.values()
        if one.takes(dtype) and (with_base or not one.is_difference) and (is_shared or not one.is_shared)
    ]
    return max(possible, key=lambda one: len(one.name))
