"""Bundles: small tensors of one dtype that follow each other in a file, coded as one payload.

A payload of its own costs a tensor some 150 bytes, for tables, its entry in the header and its description. bundling.py
makes bundles. `Member` decodes a tensor. docs/format.md, section 10.14, specifies the payload.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from threading import Lock
from typing import Any, ClassVar

import numpy as np

from squeeze.checkpoint.safetensors import Bytes
from squeeze.errors import DamagedError
from squeeze.packing.coding import Coding, Form, flat, needed
from squeeze.packing.tensors.content import Content, Difference, InMemory, Section

__all__ = ["MOST_BYTES", "Layout", "Member", "members_of", "padded", "shares"]

MOST_BYTES = 1 << 20  # of the tensors of a bundle, together
_KEPT = 1 << 25  # bytes of classes that are kept after decoding, each of which counts
_EACH = 1 << 12  # bytes more


@dataclass(frozen=True)
class Layout:
    """The order of tensors in a bundle, which has a payload for each class of them.

    codings, sizes: of the classes' payloads. classes: that of each tensor.
    """

    codings: tuple[Coding, ...]
    sizes: tuple[int, ...]
    classes: tuple[int, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the layout for JSON."""
        described: dict[str, Any] = {"codings": [coding.name for coding in self.codings], "sizes": list(self.sizes)}
        if len(self.codings) > 1:
            described["classes"] = "".join(map(str, self.classes))
        return described

    @classmethod
    def from_json(cls, described: Any, codings: Mapping[str, Coding], count: int) -> "Layout":
        """Parse the layout of `count` tensors.

        Raises KeyError, TypeError or ValueError if `described` is not from `to_json`. codings: all by name.
        """
        names, sizes = described["codings"], described["sizes"]
        classes = tuple(map("01234567".index, described["classes"])) if "classes" in described else (0,) * count
        found = tuple(codings[name] for name in names)
        is_whole = set(classes) == set(range(len(found))) and len(classes) == count and len(sizes) == len(found)
        if not is_whole or not all(coding.takes_bundles for coding in found):
            raise ValueError
        if any(type(size) is not int or not 0 <= size < 1 << 62 for size in sizes):
            raise ValueError
        return cls(found, tuple(sizes), classes)

    @property
    def payload(self) -> int:
        """The bytes of the payloads of all classes."""
        return sum(map(padded, self.sizes))

    def members(self, dtype: str, sizes: Sequence[int]) -> list["Member"]:
        """Return the codings of the tensors.

        dtype: as which they are coded. sizes: their bytes. Raises ValueError if a bundle may not have that many.
        """
        if sum(sizes) > MOST_BYTES:
            raise ValueError
        totals = [0] * len(self.codings)
        begins = []
        for number, size in zip(self.classes, sizes, strict=True):
            begins.append(totals[number])
            totals[number] += size
        bundle = Bundle(self, [flat(dtype, total) for total in totals])
        return [
            Member(self.codings[number].name, bundle, number, begin)
            for number, begin in zip(self.classes, begins, strict=True)
        ]


class Bundle:
    """A payload of several tensors, whose decoded bytes are kept for a while."""

    _kept: ClassVar[deque[tuple["Bundle", int]]] = deque()
    _lock: ClassVar[Lock] = Lock()  # of `_kept`
    _size: ClassVar[int] = 0  # bytes of `_kept`

    def __init__(self, layout: Layout, forms: Sequence[Form]):
        """Take the layout, and the dtype and bytes of all tensors of each class together."""
        self.layout, self.forms, self._own_lock = layout, forms, Lock()
        self._data: list[Bytes | None] = [None] * len(forms)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy or pickle without the lock and the decoded bytes."""
        return Bundle, (self.layout, self.forms)

    def data(self, number: int, payload: Content, threads: int) -> Bytes:
        """Return the decoded bytes of a class, before a base is taken into account.

        Args:
            number: that of the class.
            payload: the payload of the bundle, which is read if these bytes are not kept.
            threads: threads that decode.

        Raises DamagedError.
        """
        with self._own_lock:
            if (data := self._data[number]) is not None:
                return data
            if payload.size != self.layout.payload:
                raise DamagedError("its bundle has another size than is described")
            part, form = np.empty(self.layout.sizes[number], np.uint8), self.forms[number]
            payload.fill(sum(map(padded, self.layout.sizes[:number])), part)
            data = self.layout.codings[number].decode_bundle(part, form, threads)
            if data.size != form.size:
                raise DamagedError("its bundle has another size than its tensors")
            self._data[number] = data
        with self._lock:
            self._kept.append((self, number))
            Bundle._size += data.size + _EACH
            while Bundle._size > _KEPT:
                other, place = self._kept.popleft()
                Bundle._size -= other.forms[place].size + _EACH
                other._data[place] = None
        return data


@dataclass(frozen=True)
class Member(Coding):
    """The coding of a tensor in a bundle: its class, and where it begins in the bytes of the class."""

    bundle: Bundle = field(compare=False)
    number: int
    begin: int
    is_member = True

    @property
    def coding(self) -> Coding:
        """The coding of the class."""
        return self.bundle.layout.codings[self.number]

    @property
    def is_slow(self) -> bool:
        return self.coding.is_slow

    @property
    def is_difference(self) -> bool:  # type: ignore[override]
        return self.coding.is_difference

    def takes(self, dtype: str) -> bool:
        return dtype == self.bundle.forms[self.number].dtype and self.coding.takes(dtype)

    def decode_parts(self, payload: Content, form: Form, base: Content | None, threads: int) -> Content:
        kept = InMemory(self.bundle.data(self.number, payload, threads))
        data = Section(kept, self.begin, form.size)  # which is copied when it is read
        return Difference(data, needed(base, form)) if self.is_difference else data

    def memory(self, payload: int, size: int, most: int | None) -> int:
        return self.coding.memory(payload, self.bundle.forms[self.number].size, most) + size


def members_of(codings: Sequence[Coding]) -> list[int]:
    """Return the numbers of tensors that follow each other in each payload, by the codings of all tensors."""
    found: list[int] = []
    before: Bundle | None = None
    for coding in codings:
        bundle = coding.bundle if isinstance(coding, Member) else None
        if bundle is not None and bundle is before:
            found[-1] += 1
        else:
            found.append(1)
        before = bundle
    return found


def padded(size: int) -> int:
    """Return the bytes of a class's payload with the zeros after it, whose size is a multiple of 8."""
    return -(-size // 8) * 8


def shares(sizes: Sequence[int], coded: int) -> list[int]:
    """Return how many bytes of a payload each of its tensors has, by their own bytes; together these are all."""
    ends = [coded * end // max(sum(sizes), 1) for end in accumulate(sizes)]
    ends[-1] = coded
    return [end - begin for begin, end in zip([0, *ends], ends, strict=False)]
