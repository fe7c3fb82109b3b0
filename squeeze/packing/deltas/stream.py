"""The sender of a stream of differences: from the weights of one step and the next to a message.

`step` compares the new weights with a copy of the old ones, and updates the copy. Changed values are coded as gaps and
small steps (changes.py), then by entropy coding. A tensor of which many values changed is coded as `pack --base` codes
it.
"""

from collections import deque
from collections.abc import Mapping
from threading import RLock

import numpy as np
import torch

from squeeze.checkpoint.safetensors import Bytes, Tensor
from squeeze.errors import OptionError, SqueezeError
from squeeze.packing import codings
from squeeze.packing.coding import Subject
from squeeze.packing.deltas import changes
from squeeze.packing.deltas.changes import BLOCK, GAP
from squeeze.packing.deltas.message import PATCH, SNAPSHOT, Message
from squeeze.packing.deltas.state import Array, State, Words, parts, words_of
from squeeze.packing.tensors import floats
from squeeze.system.parallel import working

__all__ = ["Stream", "coded_section"]

_DENSE = 0.75  # share of changed values from which on a tensor is coded as the difference from its old values
_SAMPLES, _SAMPLE = 8, 512  # pieces, and words of a piece, from which this share is estimated
_LEVEL = "runtime"
_SMALL = 1 << 14  # bytes of patches that are sent even if the weights have fewer


class Stream:
    """A stream of the weights of one model, with a message for each step.

    sequence: the number of the last message. Message 0 is the snapshot of the first weights.
    """

    def __init__(
        self, weights: Mapping[str, torch.Tensor], *, snapshot_every: int = 100, keep: int = 100, threads: int = 1
    ):
        """Copy the first weights to the memory of the CPU.

        Args:
            weights: tensors by name, on any device.
            snapshot_every: make every Nth message a snapshot; 0 makes none after the first.
            keep: how many patches are kept in memory for receivers that lost some.
            threads: threads that compare and code.

        Raises OptionError for an option that is out of bounds, or a tensor of a dtype that safetensors does not have.
        """
        if min(snapshot_every, keep) < 0 or threads < 1:
            raise OptionError("snapshot_every and keep must be at least 0, and threads at least 1")
        self.sequence, self._every, self._threads = 0, snapshot_every, threads
        self._state = State(weights, copy=True, threads=threads)
        self._patches = deque[tuple[int, bytes]](maxlen=keep)
        self._is_known = True  # False while the copy is between two states
        self._lock = RLock()  # a server asks for messages while steps go on

    @property
    def size(self) -> int:
        """The bytes of the weights."""
        return self._state.size

    def step(self, weights: Mapping[str, torch.Tensor]) -> bytes:
        """Return the message with the changes since the last step: a patch, or every Nth time a snapshot.

        Raises OptionError if the tensors have other names, dtypes or shapes than the first ones.
        """
        news = self._words_of(weights)
        with self._lock:
            return self._step(news)

    def _step(self, news: list[Array]) -> bytes:
        was_known, self._is_known = self._is_known, False
        is_snapshot = not was_known or (self._every and (self.sequence + 1) % self._every == 0)
        if is_snapshot:
            for one, words in zip(self._state.tensors, news, strict=True):
                one.words[:] = words
            self._state.checksum = self._state.computed_checksum(self._threads)
            self._patches.clear()
        else:
            patch = self._patch(news)
        self.sequence += 1
        self._is_known = True
        if is_snapshot:
            return self.snapshot()
        self._patches.append((self.sequence, patch))
        return patch

    def snapshot(self) -> bytes:
        """Return a message with all weights as they were at the last step, under the number of that step."""
        with self._lock:
            return self._snapshot()

    def _snapshot(self) -> bytes:
        if not self._is_known:
            raise SqueezeError("the last step was interrupted: call `step` again, which makes a snapshot")
        described, payloads = [], []
        for one in self._state.tensors:
            coding, payload = _coded(one, one.data, None, self._threads)
            described.append([coding, payload.size])
            payloads.append(payload.tobytes())
        state = self._state
        message = Message(SNAPSHOT, self.sequence, state.identity, 0, state.checksum, {"tensors": described}, b"")
        return Message(**{**vars(message), "body": b"".join(payloads)}).to_bytes()

    def since(self, sequence: int | None) -> list[bytes]:
        """Return the messages that bring a receiver to the last step.

        They are patches, or a snapshot if these are not kept or have more bytes than the weights.

        sequence: the number that the receiver has, or None if it has nothing.
        """
        with self._lock:
            missing = range(self.sequence if sequence is None else sequence + 1, self.sequence + 1)
            kept = dict(self._patches)
            if sequence is None or sequence > self.sequence or not all(number in kept for number in missing):
                return [self._snapshot()]
            patches = [kept[number] for number in missing]
            return patches if sum(map(len, patches)) <= max(self.size, _SMALL) else [self._snapshot()]

    def _words_of(self, weights: Mapping[str, torch.Tensor]) -> list[Array]:
        """Return the words of the new weights, after comparing names, dtypes and shapes."""
        found = []
        known = self._state.tensors
        if len(weights) != len(known):
            raise OptionError(f"expected the {len(known)} tensors of the first step, got {len(weights)}")
        for one in known:
            tensor = weights.get(one.name)
            if tensor is None or not one.is_like(tensor):
                raise OptionError(f"expected tensor '{one.name}' with the dtype and shape of the first step")
            found.append(words_of(tensor))
        return found

    def _patch(self, news: list[Array]) -> bytes:
        """Return a patch, and update the copy."""
        state, before = self._state, self._state.checksum
        dense, payloads = list[list[object]](), list[bytes]()
        for number, (one, words) in enumerate(zip(state.tensors, news, strict=True)):
            if _changed_share(one, words) < _DENSE:
                continue
            coding, payload = _coded(one, words.view(np.uint8)[: one.size], one.data, self._threads)
            dense.append([number, coding, payload.size])
            payloads.append(payload.tobytes())
            state.checksum += int(changes.checksum(words, one.base)) - int(changes.checksum(one.words, one.base))
            one.words[:] = words
        sections = self._scanned(news, {int(str(entry[0])) for entry in dense})
        state.checksum %= 1 << 64
        coded = [coded_section(data, dtype, self._threads) for data, dtype in sections]
        described = {
            "sections": [[data.nbytes, len(part)] for (data, _), part in zip(sections, coded, strict=True)],
            "dense": dense,
        }
        body = b"".join([*coded, *payloads])
        message = Message(PATCH, self.sequence + 1, state.identity, before, state.checksum, described, body)
        return message.to_bytes()

    def _scanned(self, news: list[Array], without: set[int]) -> list[tuple[Array, str]]:
        """Return the tables, gaps and steps of all tensors but some, and update the copy."""
        tables, gaps, steps = list[Array](), list[Bytes](), list[Bytes]()
        with working(max(self._threads, 2)) as waiting:

            def take() -> None:
                table, gap, step, change = waiting.take()
                tables.append(table)
                gaps.append(gap)
                steps.append(step)
                self._state.checksum += change

            for number, first, last in parts(self._state.tensors):
                if number in without:
                    continue
                waiting.add(_scan, self._state.tensors[number], news[number], first, last)
                if len(waiting) > self._threads or self._threads == 1:
                    take()
            while waiting:
                take()
        table = np.concatenate(tables or [np.empty((0, 3), np.int64)]).astype(np.uint32)
        empty = [np.empty(0, np.uint8)]
        return [
            (np.ascontiguousarray(table.T).reshape(-1), "U32"),
            (np.concatenate(gaps or empty), "U8"),
            (np.concatenate(steps or empty), "U8"),
        ]


def _scan(one: Words, words: Array, first: int, last: int) -> tuple[Array, Bytes, Bytes, int]:
    """Return the table, gaps and steps of a part of a tensor, and the change of the checksum."""
    values = (last - first) * 64 // one.bits
    table, found = np.empty((-(-(last - first) // BLOCK), 3), np.int64), np.empty(BLOCK + 1, np.int64)
    gaps, steps = np.empty(GAP * values + 1, np.uint8), np.empty((1 + one.bits // 8) * values + 1, np.uint8)
    olds, base = one.words[first:last], one.base + first
    change = changes.scan(words[first:last], olds, one.bits, base, table, gaps, steps, found)
    _, gap_bytes, step_bytes = table.sum(0).tolist()
    return table, gaps[:gap_bytes].copy(), steps[:step_bytes].copy(), int(change)


def _changed_share(one: Words, words: Array) -> float:
    """Return the share of values that changed, estimated on some pieces."""
    kind, count = f"u{one.bits // 8}", one.words.size
    starts = range(0, count, max(count // _SAMPLES, _SAMPLE)) if count else ()
    changed = seen = 0
    for start in starts:
        piece = slice(start, start + _SAMPLE)
        changed += int(np.count_nonzero(words[piece].view(kind) != one.words[piece].view(kind)))
        seen += words[piece].view(kind).size
    return changed / seen if seen else 0.0


def _coded(one: Words, data: Bytes, base: Bytes | None, threads: int) -> tuple[str, Bytes]:
    """Return the coding and the payload of a tensor, as those of packed files."""
    tensor = Tensor(one.name, one.dtype, one.shape, 0, one.size)
    coding, payload = codings.encode_in_memory(Subject.of(tensor, data, base, threads), _LEVEL)
    return coding.name, payload


def coded_section(data: Array, dtype: str, threads: int) -> bytes:
    """Return the entropy-coded bytes of an array, or the bytes as they are if that is no shorter."""
    raw = data.view(np.uint8)
    coded = floats.encode(raw, dtype, threads) if raw.size else None
    return raw.tobytes() if coded is None or coded.size >= raw.size else coded.tobytes()
