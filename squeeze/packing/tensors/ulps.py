"""Lossless coding of floats as differences from the floats of a base, in units of the last place (ulps).

Training changes a weight by about the same amount whatever its size. So a small weight changes by more units of its
last place than a large one, and the base's exponent predicts the size of the difference. Values are coded in *parts*.
In each, the differences are sorted into *classes* by the base's exponents, and a class is coded as unsigned integers by
floats.py. Classes begin where that saves bits, which is decided on a sample of the part.

XOR with the base makes large numbers of small steps over a power of two. Numerical analysis measures errors in units of
the last place, too (Goldberg, 1991); sorting them by the base's exponent is new.
"""

import struct
from dataclasses import dataclass

import numpy as np

from squeeze.packing.tensors import floats
from squeeze.packing.tensors.content import Content, InMemory, InSegments, Parts, in_parts
from squeeze.packing.tensors.float_payload import DTYPES, WORDS, Array
from squeeze.packing.tensors.float_writer import Writer, in_memory
from squeeze.packing.tensors.tables import damaged
from squeeze.packing.tensors.ulps_steps import (
    BINS,
    MOST_CLASSES,
    choose_classes,
    count_classes,
    count_lengths,
    merge,
    split,
)
from squeeze.system.arena import allocate, thread_buffer

__all__ = ["MANTISSAS", "PART", "DecodedUlps", "decode", "encode", "write"]

MANTISSAS = {"F8_E4M3": 3, "F8_E5M2": 2, "F16": 10, "BF16": 7, "F32": 23, "F64": 52}  # bits, by dtype
PART = 1 << 21  # values
_FORMAT = 1
_HEAD = struct.Struct("<B7xQ")  # and the number of values
_SAMPLE = 1 << 16  # values of a part that are sampled to choose its classes
_OVERHEAD = 2_000  # bits of a class: its header, its tables, and states of its lanes


@dataclass(frozen=True)
class _Kind:
    """The bits of a float type, in all and of the mantissa."""

    bits: int
    mantissa: int

    @classmethod
    def of(cls, dtype: str) -> "_Kind":
        return cls(DTYPES[dtype][0], MANTISSAS[dtype])

    @property
    def word(self) -> type:
        return WORDS[self.bits]

    @property
    def integer(self) -> str:
        """The dtype as which differences are coded."""
        return f"U{self.bits}"

    @property
    def exponents(self) -> int:
        """The number of exponents."""
        return 1 << (self.bits - 1 - self.mantissa)

    def classes(self, begins: Array) -> Array:
        """Return the class of each exponent; begins: the first exponent of each class."""
        return np.searchsorted(begins, np.arange(self.exponents), "right") - 1

    def counts(self, others: Array, class_of: Array) -> Array:
        """Return the number of values in each class."""
        counts = np.empty(int(class_of[-1]) + 1, np.int64)
        count_classes(others, self.mantissa, self.exponents, class_of, counts)
        return counts


def encode(data: Array, base: Array, dtype: str, threads: int = 1) -> Array | None:
    """Return the payload (uint8, a multiple of 8 bytes) of a tensor's little-endian bytes, or None if it is no shorter.

    Args:
        data: the bytes, uint8.
        base: those of the base, as many.
        dtype: one of MANTISSAS.
        threads: threads that code parts.
    """
    return in_memory(lambda writer: write(InMemory(data), InMemory(base), dtype, writer, threads))


def write(content: Content, base: Content, dtype: str, writer: Writer, threads: int = 1) -> int:
    """Write the payload of a tensor; return its bytes, or 0 if it is no shorter. Args are as in `encode`."""
    if not content.size:
        return 0
    kind = _Kind.of(dtype)
    parts = Parts(content, kind.word, PART, threads)
    start, within = _start(parts.segments), threads if parts.segments == 1 else 1
    sizes, end = np.zeros(parts.segments, np.uint64), start

    def work(first: int, last: int) -> Array:
        values = parts.values(first, last)
        others = thread_buffer("base of ulps", values.nbytes)
        base.fill(first * PART * values.itemsize, others)
        return _encode_part(values, others.view(kind.word), kind, within)

    made = in_parts(work, parts.segments, 1, threads)
    # Collected before memory is reserved, because coding a part uses the same memory.
    sections = list(made) if writer.in_place else made
    writer.reserve(content.size + start + parts.segments * _most_head())
    for number, section in enumerate(sections):
        sizes[number] = section.size
        writer.put(end, section)
        end += section.size
    writer.put(0, np.frombuffer(_HEAD.pack(_FORMAT, parts.count), np.uint8))
    writer.put(_HEAD.size, sizes.view(np.uint8))
    return end if end < content.size else 0


def _encode_part(values: Array, others: Array, kind: _Kind, threads: int) -> Array:
    """Return a part: the number of classes, the first exponent and the section's size of each, and the sections."""
    begins = _class_starts(values, others, kind)
    class_of = kind.classes(begins)
    counts = kind.counts(others, class_of)
    ends = np.cumsum(counts) - counts
    differences: Array = np.empty(values.size, kind.word)
    split(values, others, kind.bits, kind.mantissa, kind.exponents, class_of, ends, differences)
    sections, sizes = list[Array](), np.zeros(begins.size, np.uint64)
    for number, (end, count) in enumerate(zip(ends.tolist(), counts.tolist(), strict=True)):
        raw = differences[end - count : end].view(np.uint8)
        coded = floats.encode(raw, kind.integer, threads)
        sections.append(np.append(raw, np.zeros(-raw.size % 8, np.uint8)) if coded is None else coded)
        sizes[number] = sections[-1].size
    head = np.zeros(_head_size(begins.size), np.uint8)
    head[0] = begins.size
    head[2 : 2 + 2 * begins.size] = begins.astype(np.uint16).view(np.uint8)
    head[head.size - 8 * begins.size :] = sizes.view(np.uint8)
    return np.concatenate([head, *sections])


def _class_starts(values: Array, others: Array, kind: _Kind) -> Array:
    """Return the first exponent of each class, int64 [classes]."""
    step = max(values.size // _SAMPLE, 1)
    counts = np.empty((kind.exponents, BINS), np.int64)
    count_lengths(values, others, step, kind.bits, kind.mantissa, kind.exponents, counts)
    begins, costs = np.empty(kind.exponents, np.int64), np.empty(kind.exponents)
    return begins[: choose_classes(counts, float(step), _OVERHEAD, begins, costs)].copy()


def decode(payload: Array, base: Array, dtype: str, threads: int = 1) -> Array:
    """Return the bytes of a tensor, as many as the base has.

    Args:
        payload: uint8.
        base: the bytes of the base, uint8.
        dtype: one of MANTISSAS.
        threads: threads that decode parts.

    Raises DamagedError.
    """
    kind, places = _Kind.of(dtype), _places(payload, payload.size, dtype, base.size)
    out = allocate(base.size)
    out[:] = base
    values: Array = out.view(kind.word)
    within = threads if len(places) == 2 else 1

    def work(first: int, last: int) -> None:
        for number in range(first, last):
            part = payload[places[number] : places[number + 1]]
            _decode_part(part, values[number * PART : (number + 1) * PART], kind, within)

    for _ in in_parts(work, len(places) - 1, 1, threads):
        pass
    return out


def _decode_part(part: Array, values: Array, kind: _Kind, threads: int) -> None:
    """Replace the values of the base by those of the tensor."""
    begins, sizes, start = _head_of(part, kind)
    class_of = kind.classes(begins)
    counts = kind.counts(values, class_of)
    differences: Array = thread_buffer("ulps", values.nbytes).view(kind.word)
    end = 0
    for size, count in zip(sizes, counts.tolist(), strict=True):
        section, out = part[start : start + size], differences[end : end + count].view(np.uint8)
        start, end = start + size, end + count
        if size == out.size + -out.size % 8:
            out[:] = section[: out.size]
        else:
            floats.decode(section, kind.integer, out.size, threads, out)
    ends = np.cumsum(counts) - counts
    merge(differences, kind.bits, kind.mantissa, kind.exponents, class_of, ends, values)


class DecodedUlps(InSegments):
    """A content that decodes a payload as it is read, from the content of its base.

    Raises DamagedError if the payload contradicts itself.
    """

    room = "decoded ulps"

    def __init__(self, payload: Content, base: Content, dtype: str):
        self._payload, self._base, self._kind, self.size = payload, base, _Kind.of(dtype), base.size
        self.step = PART * self._kind.bits // 8
        head = np.empty(min(_start(-(-self.size // self.step)), payload.size), np.uint8)
        payload.fill(0, head)
        self._places = _places(head, payload.size, dtype, self.size)

    def _decode(self, first: int, last: int, out: Array) -> None:
        self._base.fill(first * self.step, out)  # before `kept` is called: the base may use the same memory
        for number in range(first, last):
            begin, end = self._places[number], self._places[number + 1]
            part = thread_buffer("part of ulps", end - begin)
            self._payload.fill(begin, part)
            values: Array = out[(number - first) * self.step : (number - first + 1) * self.step].view(self._kind.word)
            _decode_part(part, values, self._kind, 1)


def _start(parts: int) -> int:
    """Return where parts begin."""
    return _HEAD.size + 8 * parts


def _head_size(classes: int) -> int:
    return -(-(2 + 2 * classes) // 8) * 8 + 8 * classes


def _most_head() -> int:
    """Return the maximal bytes of a part besides its differences."""
    return _head_size(MOST_CLASSES) + 8 * MOST_CLASSES


def _places(payload: Array, length: int, dtype: str, size: int) -> list[int]:
    """Return where parts begin, and where the last one ends.

    Args:
        payload: the first bytes of the payload.
        length: all its bytes.
        dtype: one of MANTISSAS.
        size: bytes of the tensor.

    Raises DamagedError.
    """
    width = DTYPES[dtype][0] // 8
    parts = -(-size // (PART * width))
    start = _start(parts)
    if payload.size < start:
        raise damaged("its differences are cut off")
    form, count = _HEAD.unpack(payload[: _HEAD.size].tobytes())
    if form != _FORMAT or payload[1:8].any() or count * width != size:
        raise damaged("its differences are not those of the tensor")
    sizes = payload[_HEAD.size : start].tobytes()
    places = [start]
    for number in range(parts):
        places.append(places[-1] + int.from_bytes(sizes[8 * number : 8 * number + 8], "little"))
    if places[-1] != length or any(place % 8 for place in places):
        raise damaged("its differences do not fill it")
    return places


def _head_of(part: Array, kind: _Kind) -> tuple[Array, list[int], int]:
    """Return the first exponent of each class, the size of its section, and where these begin. Raises DamagedError."""
    classes = int(part[0]) if part.size else 0
    start = _head_size(classes)
    if not (1 <= classes <= MOST_CLASSES and start <= part.size):
        raise damaged("its classes are invalid")
    begins = part[2 : 2 + 2 * classes].copy().view(np.uint16).astype(np.int64)
    sizes = [int(size) for size in part[start - 8 * classes : start].copy().view(np.uint64)]
    middle = part[2 + 2 * classes : start - 8 * classes]
    if begins[0] or (np.diff(begins) <= 0).any() or begins[-1] >= kind.exponents or part[1] or middle.any():
        raise damaged("its classes are invalid")
    if start + sum(sizes) != part.size or any(size % 8 for size in sizes):
        raise damaged("its classes do not fill it")
    return begins, sizes, start
