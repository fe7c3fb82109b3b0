"""The receiver of a stream of differences: messages change the weights in place.

A patch is checked in full before a weight changes: its own hash, the model, its number, and the checksum of the state
that it leads to. Only then are the changed words written. So weights are those of one step, except while they are
written. A snapshot is written as it is decoded, after its hash and model were checked. If writing is interrupted, or a
snapshot does not lead to its checksum, the receiver needs a snapshot, and says so.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
import torch

from squeeze.checkpoint.safetensors import Bytes, named
from squeeze.errors import DamagedError, FormatError, SqueezeError
from squeeze.packing.codings import CODINGS
from squeeze.packing.deltas import changes
from squeeze.packing.deltas.changes import BLOCK, GAP
from squeeze.packing.deltas.message import SNAPSHOT, Message
from squeeze.packing.deltas.state import Array, State, Words, parts
from squeeze.packing.tensors import floats
from squeeze.system.parallel import working

__all__ = ["Receiver"]

_MOST_STEP = 9  # most bytes of a step
_ROWS = 3  # of the table: changes, bytes of gaps, bytes of steps


class _Change(NamedTuple):
    """Words that a patch changes: the tensor's number, their places in it, and the new words."""

    number: int
    places: Array
    news: Array


class Receiver:
    """The weights of a model that follow a stream, in place.

    Tensors of GPUs, and those that are not contiguous, have a copy in the memory of the CPU.

    Attributes:
        sequence: the number of the last message, or None if a snapshot is needed.
    """

    def __init__(self, weights: Mapping[str, torch.Tensor], *, sequence: int | None = None, threads: int = 1):
        """Take the tensors of a model, such as `model.state_dict()`.

        Args:
            weights: tensors by name, which messages change.
            sequence: the number of the message whose state they have, or None to wait for a snapshot.
            threads: threads that decode.
        """
        self.sequence, self._threads, self._weights = sequence, threads, dict(weights)
        self.on_change: Callable[[set[str]], None] | None = None  # called with the names of changed tensors
        self._state = State(weights, copy=False, threads=threads)

    def apply(self, message: bytes | memoryview) -> int:
        """Change the weights to those of a message; return its number.

        Raises:
            FormatError: if it is not a message, or (as a child of it) damaged. The weights are unchanged, unless a
                snapshot with a valid hash was made wrong: then `sequence` is None.
            SqueezeError: if it is of another model, or not the next one. The weights are unchanged.
        """
        parsed = Message.parse(message)
        if parsed.model != self._state.identity:
            raise SqueezeError("the message is of another model: its tensors have other names, dtypes or shapes")
        if parsed.kind == SNAPSHOT:
            self._take_snapshot(parsed)
            names = set(self._weights)
        else:
            self._check_order(parsed)
            names = self._write(list(self._changes(parsed)), list(self._dense(parsed)), parsed)
        self.sequence = parsed.sequence
        if self.on_change:
            self.on_change(names)
        return parsed.sequence

    @property
    def size(self) -> int:
        """The bytes of the weights."""
        return self._state.size

    def verify(self) -> None:
        """Read all weights and compare their checksum. Raises DamagedError if anything else has changed them."""
        self._refresh()
        if self._state.computed_checksum(self._threads) != self._state.checksum:
            self.sequence = None
            raise DamagedError("the weights are not those of the last message: ask for a snapshot")

    def _refresh(self) -> None:
        """Read the weights that have a copy again."""
        fresh = State(self._weights, copy=False, threads=self._threads)
        for one, other in zip(self._state.tensors, fresh.tensors, strict=True):
            if not np.shares_memory(one.words, other.words):
                one.words[:] = other.words

    def _check_order(self, message: Message) -> None:
        if self.sequence is None:
            raise SqueezeError(f"message {message.sequence} is a patch, and the receiver has no state: send a snapshot")
        if message.sequence != self.sequence + 1:
            raise SqueezeError(
                f"message {message.sequence} is not the next one: the receiver has {self.sequence}; send those after "
                "it, or a snapshot"
            )
        if message.before != self._state.checksum:
            raise SqueezeError(
                f"message {message.sequence} is a patch of other weights than those of message {self.sequence}: send a "
                "snapshot"
            )

    def _take_snapshot(self, message: Message) -> None:
        """Decode all tensors, and write each. The state is unknown until the last one is written."""
        entries, tensors = message.described["tensors"], self._state.tensors
        payloads = list(_payloads(entries, message.body))
        if len(entries) != len(tensors):
            raise DamagedError("the message is damaged: it has other tensors")
        self.sequence = None
        for one, (coding, payload) in zip(tensors, payloads, strict=True):
            one.data[:] = _decoded(one, coding, payload, None, self._threads)
            self._write_all(one)
        self._state.checksum = self._state.computed_checksum(self._threads)
        if self._state.checksum != message.after:
            raise DamagedError("the snapshot does not decode to its checksum: ask for another one")

    def _changes(self, message: Message) -> Iterator[_Change]:
        """Yield the changed words of a patch, nothing of which is written. Raises DamagedError."""
        without = self._numbers_of_dense(message)
        ranges = [(n, first, last) for n, first, last in parts(self._state.tensors) if n not in without]
        blocks = sum(-(-(last - first) // BLOCK) for _, first, last in ranges)
        table, gaps, steps = _sections(message, blocks, self._threads)
        ends, jobs = np.concatenate([np.zeros((1, _ROWS), np.int64), table.cumsum(0)]), []
        done = 0
        for number, first, last in ranges:
            end = done + -(-(last - first) // BLOCK)
            begins, stops = ends[done], ends[end]
            pieces = (table[done:end], gaps[begins[1] : stops[1]], steps[begins[2] : stops[2]])
            jobs.append((self._state.tensors[number], number, first, last, pieces))
            done = end
        total = message.before
        with working(max(self._threads, 2)) as waiting:
            for job in jobs:
                waiting.add(_expanded, *job)
            while waiting:
                change, difference = waiting.take()
                total += difference
                yield change
        for one, data in self._dense(message):
            words = np.zeros_like(one.words)
            words.view(np.uint8)[: one.size] = data
            total += int(changes.checksum(words, one.base)) - int(changes.checksum(one.words, one.base))
        if total % (1 << 64) != message.after:
            raise DamagedError(
                f"message {message.sequence} does not lead to its checksum: something else changed the weights; send a "
                "snapshot"
            )

    def _numbers_of_dense(self, message: Message) -> set[int]:
        """Return the numbers of the dense tensors of a patch. Raises DamagedError if they are not those of tensors."""
        found, known = set[int](), range(len(self._state.tensors))
        for entry in message.described["dense"]:
            if not entry or type(entry[0]) is not int or entry[0] not in known or entry[0] in found:
                raise DamagedError("the message is damaged: it has other tensors")
            found.add(entry[0])
        return found

    def _dense(self, message: Message) -> Iterator[tuple[Words, Bytes]]:
        """Yield the tensors that are coded as the difference from the old ones, and their new bytes."""
        start = sum(coded for _, coded in message.described["sections"])
        entries = message.described["dense"]
        payloads = _payloads([entry[1:] for entry in entries], message.body[start:])
        for (number, *_), (coding, payload) in zip(entries, payloads, strict=True):
            one = self._state.tensors[number]
            yield one, _decoded(one, coding, payload, one.data, self._threads)

    def _write(self, found: list[_Change], dense: list[tuple[Words, Bytes]], message: Message) -> set[str]:
        """Write the changes of a patch; return the names of the tensors."""
        self.sequence = None  # until all is written
        for one, data in dense:
            one.data[:] = data
            self._write_all(one)
        by_tensor: dict[int, list[_Change]] = {}
        for change in found:
            changes.put(self._state.tensors[change.number].words, change.places, change.news)
            if change.places.size:
                by_tensor.setdefault(change.number, []).append(change)
        for number, several in by_tensor.items():
            self._write_some(self._state.tensors[number], several)
        self._state.checksum = message.after
        return {self._state.tensors[number].name for number in by_tensor} | {one.name for one, _ in dense}

    def _write_some(self, one: Words, several: list[_Change]) -> None:
        """Write the changed words of a tensor that has a copy to the tensor itself."""
        target = self._weights[one.name].detach()
        if _is_view(one, target):
            return
        is_aligned = target.is_contiguous() and target.storage_offset() * target.element_size() % 8 == 0
        if one.size % 8 or not is_aligned or target.device.type == "cpu":
            self._write_all(one)
            return
        places = torch.from_numpy(np.concatenate([change.places for change in several])).to(target.device)
        news = torch.from_numpy(np.concatenate([change.news for change in several]).view(np.int64)).to(target.device)
        target.view(-1).view(torch.int64)[places] = news

    def _write_all(self, one: Words) -> None:
        """Write a tensor that has a copy to the tensor itself."""
        target = self._weights[one.name].detach()
        if one.size and not _is_view(one, target):
            target.copy_(torch.from_numpy(one.data).view(target.dtype).view(target.shape))


def _is_view(one: Words, target: torch.Tensor) -> bool:
    """Return whether the words of a tensor are its memory."""
    return target.device.type == "cpu" and one.size > 0 and one.words.ctypes.data == target.data_ptr()


def _expanded(one: Words, number: int, first: int, last: int, pieces: tuple[Array, ...]) -> tuple[_Change, int]:
    """Return the changed words of a part of a tensor, and the change of the checksum. Raises DamagedError."""
    table, gaps, steps = pieces
    room = int(table[:, 0].sum())
    places, news, used = np.empty(room, np.int64), np.empty(room, np.uint64), np.empty(1, np.int64)
    count = one.count - first * 64 // one.bits
    words, base = one.words[first:last], one.base + first
    difference = changes.expand(words, one.bits, base, count, table, gaps, steps, places, news, used)
    if used[0] < 0:
        raise DamagedError(f"the message is damaged: the changes of {named(one.name)} contradict each other")
    return _Change(number, places[: used[0]] + first, news[: used[0]]), int(difference)


def _sections(message: Message, blocks: int, threads: int) -> tuple[Array, Bytes, Bytes]:
    """Return the table, int64 [blocks, 3], gaps and steps of a patch. Raises DamagedError."""
    sizes = message.described["sections"]
    if len(sizes) != _ROWS or any(len(pair) != 2 or min(pair) < 0 for pair in sizes):
        raise _damaged()
    if sizes[0][0] != 4 * _ROWS * blocks or sum(coded for _, coded in sizes) > len(message.body):
        raise _damaged()
    found, start = list[Bytes](), 0
    for (raw, coded), dtype in zip(sizes, ("U32", "U8", "U8"), strict=True):
        if found and raw > (GAP, _MOST_STEP)[len(found) - 1] * int(found[0].view(np.uint32)[:blocks].sum()):
            raise _damaged()
        data = np.frombuffer(message.body, np.uint8, coded, start).copy()
        found.append(data if raw == coded else floats.decode(data, dtype, raw, threads))
        start += coded
        if len(found) == 1 and blocks and int(found[0].view(np.uint32)[:blocks].max()) > 8 * BLOCK:
            raise _damaged()
    table = np.ascontiguousarray(found[0].view(np.uint32).reshape(_ROWS, blocks).T.astype(np.int64))
    if table[:, 1].sum() != found[1].size or table[:, 2].sum() != found[2].size:
        raise _damaged()
    return table, found[1], found[2]


def _payloads(entries: list[list[object]], body: bytes | memoryview) -> Iterator[tuple[str, Bytes]]:
    """Yield coding and payload of the tensors in a body. Raises DamagedError."""
    start = 0
    for entry in entries:
        coding, size = entry if len(entry) == 2 else (None, None)
        if not isinstance(coding, str) or coding not in CODINGS or type(size) is not int or size < 0:
            raise _damaged()
        if start + size > len(body):
            raise _damaged()
        yield coding, np.frombuffer(body, np.uint8, size, start).copy() if size else np.empty(0, np.uint8)
        start += size


def _decoded(one: Words, coding: str, payload: Bytes, base: Bytes | None, threads: int) -> Bytes:
    if not CODINGS[coding].takes(one.form.dtype):
        raise _damaged()
    try:
        data = CODINGS[coding].decode(payload, one.form, base, threads)
    except FormatError as error:
        raise DamagedError(f"the message is damaged: {named(one.name)}: {error}") from None
    if data.size != one.size:
        raise _damaged()
    return data


def _damaged() -> DamagedError:
    return DamagedError("the message is damaged: its sections do not fit the model")
