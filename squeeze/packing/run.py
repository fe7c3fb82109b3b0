"""Packing the tensors of one file in order: each is read, coded, verified and written.

A large tensor is coded in parts directly to its place, so that memory does not grow with it.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import xxhash

from squeeze.checkpoint.safetensors import Bytes, Tensor, TensorFile, named
from squeeze.errors import DamagedError, FormatError, VerifyError
from squeeze.packing import bundling, codings
from squeeze.packing.base import Base
from squeeze.packing.bundling import Records, Tensors, described, records_of
from squeeze.packing.coding import Form, Subject
from squeeze.packing.container import Coded
from squeeze.packing.fetch_cache import rereadable
from squeeze.packing.record import Record
from squeeze.packing.repeats import Sharing
from squeeze.packing.running_hash import Hashing, checksum_of
from squeeze.packing.tensors.content import Content, InFile, whole
from squeeze.packing.tensors.float_writer import FileWriter
from squeeze.system.binary import Positional
from squeeze.system.documents import MAX_LINE, check, parse
from squeeze.system.parallel import LARGE, in_order

__all__ = ["Journal", "Run", "taking_part"]

_PIECE = 1 << 20
_LAYOUT = {"codings": [str], "sizes": [int], "classes?": str}  # bundles.py


@dataclass(frozen=True)
class Run:
    """A file that is being packed.

    hashing: receives its bytes in order. base: for files of this kind. scope: the scope of its tensors in the base.
    shared: what tensors share with others, by name.
    """

    file: TensorFile
    reading: Positional
    writing: BinaryIO
    hashing: Hashing
    level: str
    base: Base | None = None
    scope: str = ""
    verify: bool = True
    threads: int = 1
    shared: Mapping[str, Sharing] = field(default_factory=dict)

    @cached_property
    def counts(self) -> list[int]:
        """The numbers of tensors that follow each other in each payload."""
        return bundling.planned(self.file, self.shared)

    def code(self, first: int, count: int | None = None) -> Iterator[tuple[Tensors, Records, Bytes | int]]:
        """Code tensors from the first on, and write their payloads to the end of the file.

        Yields the tensors of each payload with their records, and the payload, or its size if the tensor is large.
        """
        stop, payloads = len(self.file.tensors) if count is None else first + count, list[Tensors]()
        for end, number in zip(accumulate(self.counts), self.counts, strict=True):
            if first <= end - number < stop:
                payloads.append(self.file.tensors[end - number : min(end, stop)])

        def tasks() -> Iterator[tuple[int, Callable[[int], tuple[Records, Bytes | int]]]]:
            place = first
            for tensors in payloads:
                data = []
                for tensor in tensors:
                    self.hashing.skip(self.file.gaps[place])
                    place += 1
                    if tensor.size >= LARGE:
                        yield tensor.size, partial(self._code_large, *self._followed(tensor))
                        break
                    data.append(self._read(tensor))
                    self.hashing.update(data[-1])
                else:
                    size = sum(one.size for one in data)
                    if len(tensors) > 1:
                        yield size, partial(self._code_bundle, tensors, data)
                    else:
                        yield size, partial(self._code_small, tensors[0], data[0])

        for tensors, (records, payload) in zip(payloads, in_order(tasks(), self.threads), strict=True):
            if isinstance(payload, int):  # written already; more bytes than the payload may have been written
                self.writing.seek(payload, os.SEEK_CUR)
            else:
                self.writing.write(payload.data)
                self.writing.flush()
            yield tensors, records, payload

    def _read(self, tensor: Tensor) -> Bytes:
        """Read a tensor. Raises DamagedError if the file became shorter."""
        try:
            return whole(InFile(self.reading, tensor.begin, tensor.size))
        except DamagedError as error:
            raise DamagedError(f"{named(tensor.name)}: {error}") from None

    def _code_bundle(self, tensors: Tensors, parts: list[Bytes], threads: int) -> tuple[Records, Bytes]:
        bases = [self.base.tensor(one.name, one, self.scope) if self.base else None for one in tensors]
        bundle = bundling.encode(tensors, parts, bases, self.level, threads)
        if self.verify and not bundle.is_right(parts, bases, threads):
            raise _faulty()
        return bundle.records, bundle.payload

    def _code_small(self, tensor: Tensor, data: Bytes, threads: int) -> tuple[Records, Bytes]:
        with ExitStack() as opened:
            sharing, other = self._sharing(tensor), None
            if sharing:
                other = whole(sharing.content(opened))
            elif self.base:
                other = self.base.tensor(tensor.name, tensor, self.scope)
        subject = Subject.of(tensor, data, other, threads, sharing.table if sharing else None)
        coding, payload = codings.encode_in_memory(subject, self.level)
        record = Record.of(tensor, coding, xxhash.xxh3_64_intdigest(data.data))
        if self.verify and not coding.is_stored:
            try:
                is_same = _same(record.decode(payload, other, threads), data)
            except DamagedError:
                is_same = False
            if not is_same:
                raise _faulty()
        return (record,), payload

    def _followed(self, tensor: Tensor) -> tuple[Tensor, Content, Callable[[], int], ExitStack]:
        """Return a large tensor, its bytes, a function that waits for its checksum, and a stack to close at the end."""
        opened = ExitStack()
        content = rereadable(self.reading, tensor.begin, tensor.size, opened)
        return tensor, content, self.hashing.follow(content).result, opened

    def _code_large(
        self, tensor: Tensor, content: Content, checksum: Callable[[], int], opened: ExitStack, threads: int
    ) -> tuple[Records, int]:
        begin, writing = self.writing.tell(), Positional(self.writing)
        with opened:
            sharing, other = self._sharing(tensor), self._other(tensor, opened)
            table = sharing.table if sharing else None
            subject, writer = Subject(content, Form.of(tensor), other, threads, table), FileWriter(writing, begin)
            coding, size = codings.encode(subject, self.level, writer)
            if coding.is_stored:
                size = coding.encode(subject, writer)
            record = Record.of(tensor, coding)
            if self.verify:
                _prove(InFile(writing, begin, size), record, other, threads, checksum)
            return (replace(record, checksum=checksum()),), size

    def is_whole(self, begin: int, size: int, tensor: Tensor, record: Record, hashed: int | None) -> bool:
        """Return whether a written payload has its hash, or decodes to its checksum.

        Args:
            begin: where the payload begins.
            size: its bytes.
            tensor: the first of its tensors.
            record: of that tensor.
            hashed: XXH3-64 of the payload, or None for that of a large tensor, which is decoded instead.
        """
        payload = InFile(Positional(self.writing), begin, size)
        try:
            if hashed is not None:
                return checksum_of(payload, self.threads) == hashed
            with ExitStack() as opened:
                other = self._other(tensor, opened)
                _prove(payload, record, other, self.threads, lambda: record.checksum)
        except (DamagedError, VerifyError):
            return False
        return True

    def resume(self, start: int, finished: Sequence[Coded]) -> Iterator[tuple[Tensors, int]]:
        """Hash the first tensors again, whose payloads were written from `start` on, and continue after these.

        Yields those of each payload with its size. Raises VerifyError if their bytes have changed.
        """
        self.writing.truncate(start + sum(size for _, size in finished))
        self.writing.seek(0, os.SEEK_END)
        place = 0
        for records, size in finished:
            tensors = self.file.tensors[place : place + len(records)]
            for tensor, record in zip(tensors, records, strict=True):
                self.hashing.skip(self.file.gaps[place])
                place += 1
                with ExitStack() as opened:
                    payload = InFile(Positional(self.writing), start, size)
                    content = self._content_again(tensor, record, payload, opened)
                    if self.hashing.follow(content).result() != record.checksum:
                        raise VerifyError(f"{self.file.path} changed since packing was stopped: pack it again")
            start += size
            yield tensors, size

    def _content_again(self, tensor: Tensor, record: Record, payload: Content, opened: ExitStack) -> Content:
        """Return the bytes of a tensor that was packed before.

        If it lies at a URL, they are decoded from the payload, unless that is slower than fetching them.
        """
        if self.reading.is_local or record.coding.is_slow:
            return InFile(self.reading, tensor.begin, tensor.size)
        other = self._other(tensor, opened) if record.coding.is_difference or record.coding.is_shared else None
        return record.decode_parts(payload, other, 1)

    def _sharing(self, tensor: Tensor) -> Sharing | None:
        return taking_part(self.shared.get(tensor.name), self.base, tensor, self.scope)

    def _other(self, tensor: Tensor, opened: ExitStack) -> Content | None:
        """Return the bytes that a tensor shares with others, or else the base's tensor, or None."""
        if sharing := self._sharing(tensor):
            return sharing.content(opened)
        return self.base.content(tensor, tensor.name, self.scope, opened) if self.base else None


def taking_part(sharing: Sharing | None, base: Base | None, tensor: Tensor, scope: str) -> Sharing | None:
    """Return what a tensor shares with others. One that has a base is shared whole, or is a difference."""
    if sharing and base and not sharing.table.is_whole and base.has(tensor.name, tensor, scope):
        return None
    return sharing


class Journal:
    """A file with a line for each finished tensor, from which a stopped run continues."""

    def __init__(self, path: Path):
        self._path = path

    def note(self, tensors: Tensors, records: Records, payload: Bytes | int) -> None:
        """Add the finished tensors of a payload. payload: its bytes, or the size of that of a large tensor."""
        if isinstance(payload, int):
            size, hashed = payload, None
        else:
            size, hashed = payload.size, xxhash.xxh3_64_intdigest(payload.data)
        checksums = [record.checksum for record in records]
        coding = described(records)
        with self._path.open("a") as file:
            file.write(json.dumps([tensors[0].name, coding, checksums, size, hashed]) + "\n")

    def resume(self, run: Run, start: int) -> list[Coded]:
        """Return records and size of the first payloads that are complete in the file from `start` on."""
        finished: list[Coded] = []
        lines = self._path.read_text(errors="replace").split("\n") if self._path.is_file() else []
        for line, end, count in zip(lines, accumulate(run.counts), run.counts, strict=False):
            tensors = run.file.tensors[end - count : end]
            try:
                name, coding, checksums, size, hashed = _noted(line, count)
                records = records_of(tensors, coding, checksums)
            except (FormatError, KeyError, TypeError, ValueError):
                break
            if name != tensors[0].name or not run.is_whole(start, size, tensors[0], records[0], hashed):
                break
            finished.append((records, size))
            start += size
        self.clear()
        with self._path.open("w") as journal:
            journal.writelines(line + "\n" for line in lines[: len(finished)])
        return finished

    def clear(self) -> None:
        self._path.unlink(missing_ok=True)


def _noted(line: str, count: int) -> tuple[str, Any, list[int], int, int | None]:
    """Return the name, coding, checksums, size and hash of a line about the payload of `count` tensors.

    Raises FormatError or ValueError if it is invalid.
    """
    row = parse(line, most=MAX_LINE)
    check(row, [(str, int, _LAYOUT, [int], None)])
    name, coding, checksums, size, hashed = row
    kinds = (
        isinstance(name, str),
        isinstance(checksums, list) and len(checksums) == count,
        *(isinstance(one, int) for one in (size, hashed or 0)),
        hashed is not None or count == 1,
    )
    if not all(kinds) or min(*checksums, size, hashed or 0) < 0:
        raise FormatError("not a line of a journal")
    return name, coding, checksums, size, hashed


def _same(one: Bytes, other: Bytes) -> bool:
    """Return whether two arrays are equal, without allocating an array of comparisons."""
    if one.size != other.size:
        return False
    end = one.size // 8 * 8  # words are compared faster than bytes
    pieces = [slice(begin, min(begin + _PIECE, end)) for begin in range(0, end, _PIECE)]
    words = all(np.array_equal(one[piece].view(np.uint64), other[piece].view(np.uint64)) for piece in pieces)
    return words and np.array_equal(one[end:], other[end:])


def _prove(payload: Content, record: Record, base: Content | None, threads: int, checksum: Callable[[], int]) -> None:
    """Raise VerifyError if a payload, read in parts, does not decode to this checksum, which is computed last."""
    try:
        found = checksum_of(record.decode_parts(payload, base, threads), threads)
    except DamagedError:
        raise _faulty() from None
    if found != checksum():
        raise _faulty()


def _faulty() -> VerifyError:
    return VerifyError("a coded tensor did not decode to itself: this machine's memory or processor is faulty")
