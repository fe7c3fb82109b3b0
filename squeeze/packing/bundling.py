"""Making bundles: which small tensors of a file are coded together, and in which classes (bundles.py)."""

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import xxhash

from squeeze.checkpoint.safetensors import ELEMENT_BITS, Bytes, Tensor, TensorFile
from squeeze.errors import DamagedError
from squeeze.packing.bundles import Layout, Member, padded
from squeeze.packing.coding import Coding, Subject, flat
from squeeze.packing.codings import CODINGS, encode_in_memory
from squeeze.packing.record import Record
from squeeze.packing.tensors.content import InMemory

__all__ = ["Records", "Tensors", "described", "encode", "longest_records", "planned", "records_of"]

Tensors = tuple[Tensor, ...]  # of a payload
Records = tuple[Record, ...]
_MOST_MEMBER = 1 << 15  # bytes of a tensor that is bundled
_MOST = 1 << 19  # bytes of a bundle
_MOST_TENSORS = 1 << 12
_OVERHEAD = 128  # bytes that a tensor costs less in a bundle
_LEAST_SHARE = 128  # a file has bundles if they save one in so many of its bytes,
_LEAST = 1 << 13  # and at least so many
_MOST_CLASSES = 8
_CLASS = 400.0  # bytes that a class costs, and
_SYMBOL = 1.5  # each of the numbers in its table


def planned(file: TensorFile, shared: Container[str] = ()) -> list[int]:
    """Return the numbers of tensors that follow each other in each payload: 1, or more for a bundle.

    Which tensors may come together depends only on the file, so that its parts can be coded apart.

    Args:
        file: the file.
        shared: names of tensors that share bytes with others, and have payloads of their own.
    """
    groups = list(_groups(file.tensors))
    saved = _OVERHEAD * (len(file.tensors) - len(groups))
    if saved < max(_LEAST, file.size // _LEAST_SHARE):
        return [1] * len(file.tensors)
    found: list[int] = []
    first = 0
    for count in groups:
        is_open = False
        for tensor in file.tensors[first : first + count]:
            if is_open and tensor.name not in shared:
                found[-1] += 1
            else:
                found.append(1)
            is_open = tensor.name not in shared
        first += count
    return found


def _groups(tensors: Sequence[Tensor]) -> Iterator[int]:
    """Yield how many tensors that follow each other may come together."""
    count = size = 0
    for number, tensor in enumerate(tensors):
        before = tensors[number - 1]
        fits = tensor.dtype == before.dtype and max(tensor.size, before.size) <= _MOST_MEMBER
        if count and (
            not fits or tensor.dtype not in ELEMENT_BITS or size + tensor.size > _MOST or count == _MOST_TENSORS
        ):
            yield count
            count = size = 0
        count, size = count + 1, size + tensor.size
    if count:
        yield count


@dataclass(frozen=True)
class Encoded:
    """A bundle: the records of its tensors, and its payload."""

    records: Records
    payload: Bytes

    def is_right(self, parts: Sequence[Bytes], bases: Sequence[Bytes | None], threads: int) -> bool:
        """Return whether all tensors decode to their bytes.

        Args:
            parts: their bytes.
            bases: those of the base's tensors, if it has them.
            threads: threads that decode.
        """
        try:
            for record, data, base in zip(self.records, parts, bases, strict=True):
                if not np.array_equal(record.decode(self.payload, base, threads), data):
                    return False
        except DamagedError:
            return False
        return True


def encode(
    tensors: Tensors, parts: Sequence[Bytes], bases: Sequence[Bytes | None], level: str, threads: int
) -> Encoded:
    """Code several tensors as one payload, each class as a difference if the base has all its tensors and that is
    shorter.

    Args:
        tensors: the tensors, of one dtype.
        parts: their bytes.
        bases: the bytes of the base's tensors of the same name, dtype and shape, if it has them.
        level: the level of packing.
        threads: threads that code.
    """
    dtype, classes = tensors[0].layout, _classes(tensors[0].layout, parts)
    codings, payloads = list[Coding](), list[Bytes]()
    for number in range(max(classes) + 1):
        inside = [k for k, one in enumerate(classes) if one == number]
        data, known = np.concatenate([parts[k] for k in inside]), [bases[k] for k in inside]
        other = InMemory(np.concatenate(known)) if all(one is not None for one in known) else None  # type: ignore[arg-type]
        subject = Subject(InMemory(data), flat(dtype, data.size), other, threads)
        coding, payload = encode_in_memory(subject, level, is_bundle=True)
        codings.append(coding)
        payloads.append(payload)
    layout = Layout(tuple(codings), tuple(one.size for one in payloads), tuple(classes))
    ends = [np.zeros(padded(one.size) - one.size, np.uint8) for one in payloads]
    payload = np.concatenate([one for pair in zip(payloads, ends, strict=True) for one in pair])
    checksums = [xxhash.xxh3_64_intdigest(one.data) for one in parts]
    return Encoded(_records(tensors, layout, checksums), payload)


def _classes(dtype: str, parts: Sequence[Bytes]) -> list[int]:
    """Return the class of each tensor: those whose numbers are distributed alike are coded together.

    Tensors are first put together by the median of the highest bits, and then these groups, while that saves bytes.
    """
    width = ELEMENT_BITS[dtype] // 8
    if width < 2 or sum(one.size for one in parts) < 8 * _CLASS:
        return [0] * len(parts)
    groups: dict[int, tuple[np.ndarray, list[int]]] = {}
    for k, part in enumerate(parts):
        numbers = part.reshape(-1, width)[:, -2:].copy().view(np.uint16).reshape(-1)
        highest = (numbers & 0x7FFF) >> 3  # without the sign
        counts = np.bincount(highest, minlength=1 << 12)
        middle = int(np.searchsorted(np.cumsum(counts), highest.size / 2)) >> 3
        known = groups.setdefault(middle, (np.zeros(1 << 12, np.int64), []))
        known[0][:] += counts
        known[1].append(k)
    rows = [groups[middle] for middle in sorted(groups)]
    costs = [_cost(counts) for counts, _ in rows]
    while len(rows) > 1:
        joint = [_cost(one[0] + other[0]) for one, other in pairwise(rows)]
        gains = [costs[k] + costs[k + 1] - joint[k] for k in range(len(joint))]
        best = max(range(len(gains)), key=gains.__getitem__)
        if gains[best] < 0 and len(rows) <= _MOST_CLASSES:
            break
        rows[best : best + 2] = [(rows[best][0] + rows[best + 1][0], rows[best][1] + rows[best + 1][1])]
        costs[best : best + 2] = [joint[best]]
    classes = [0] * len(parts)
    for number, (_, inside) in enumerate(rows):
        for k in inside:
            classes[k] = number
    return classes


def _cost(counts: np.ndarray) -> float:
    """Return the bytes of numbers that occur so often, with their table."""
    found = counts[counts > 0]
    return float(-(found * np.log2(found / max(found.sum(), 1))).sum() / 8 + _CLASS + _SYMBOL * found.size)


def records_of(tensors: Tensors, coding: Any, checksums: Sequence[int]) -> Records:
    """Return the records of the tensors of a payload. coding: as `described` returned it.

    Raises KeyError, TypeError or ValueError if it is invalid.
    """
    if len(tensors) == 1:
        return (Record.of(tensors[0], CODINGS[coding], checksums[0]),)
    return _records(tensors, Layout.from_json(coding, CODINGS, len(tensors)), checksums)


def described(records: Records) -> Any:
    """Return for JSON how the tensors of a payload are coded."""
    coding = records[0].coding
    return coding.bundle.layout.to_json() if isinstance(coding, Member) else coding.name


def longest_records(tensors: Tensors, coding: Coding) -> Records:
    """Return records of a bundle whose description is not shorter than that of any other one."""
    count, size = min(len(tensors), _MOST_CLASSES), 2 * sum(tensor.size for tensor in tensors)
    classes = tuple(k % count for k in range(len(tensors)))
    return _records(tensors, Layout((coding,) * count, (size,) * count, classes), [0] * len(tensors))


def _records(tensors: Tensors, layout: Layout, checksums: Sequence[int]) -> Records:
    members = layout.members(tensors[0].layout, [tensor.size for tensor in tensors])
    return tuple(Record.of(*each) for each in zip(tensors, members, checksums, strict=True))
