"""Streams of differences: messages, folders of them, and answers over HTTP, applied to weights in place.

A receiver must have the weights of a message that it applied or the ones before, or it must ask for a snapshot. A
message whose hash and checksum were made right again may lead to other weights, which then have that checksum.
"""

from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
import xxhash

from squeeze.errors import SqueezeError
from squeeze.packing.codings import CODINGS
from squeeze.packing.deltas import Folder, Receiver, Stream, http
from squeeze.packing.deltas.message import SNAPSHOT, Message
from squeeze.packing.deltas.stream import coded_section
from squeeze.packing.tensors import floats
from tests.fuzz import mutations
from tests.fuzz.judging import SAME, TRUE, Wrong, one_of

Weights = dict[str, torch.Tensor]
_HEAD, _HASH = 64, 16
_DTYPES = (torch.bfloat16, torch.float32, torch.float8_e4m3fn, torch.int64)
_SHARES = (0.02, 0.9, 0.001, 0.3, 0.2)  # of the values that change in a step
_WAYS = ("apply", "folder", "http")


@dataclass(frozen=True)
class Sample:
    """A stream: its messages, and the weights after each of them."""

    messages: list[bytes]
    states: list[Weights]


@dataclass(frozen=True)
class Case:
    """messages: what a receiver of a sample gets; after its first message, if it follows already."""

    sample: int
    messages: tuple[bytes, ...]
    follows: bool
    way: str
    answer: bytes  # the messages as a server sends them


class Deltas:
    """Streams of several dtypes, each with sparse patches, a dense one, and two snapshots."""

    seconds = 0.01

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.samples = [_sample(number, dtype) for number, dtype in enumerate(_DTYPES)]
        for number, sample in enumerate(self.samples):
            messages = tuple(sample.messages)
            for message in messages:
                self._led(Message.parse(message), number)
            for way in _WAYS:
                (box := folder / f"{number}.{way}").mkdir()
                if self.read(Case(number, messages, False, way, _framed(messages)), box) != SAME:
                    raise Wrong("a stream does not lead to its weights")

    def mutate(self, random: Random) -> Case:
        number = random.randrange(len(self.samples))
        sample, follows = self.samples[number], random.random() < 0.7
        at = random.randrange(int(follows), len(sample.messages))
        messages = sample.messages[int(follows) : at + random.choice((1, 1, 2))]
        place = at - follows
        data, other = messages[place], random.choice(random.choice(self.samples).messages)
        messages[place] = one_of(
            random,
            (2, lambda r: mutations.damaged(data, r)),
            (1, lambda r: mutations.spliced(data, other, r)),
            (1, lambda r: other),
            (3, lambda r: _right(mutations.damaged(data, r))),
            (2, lambda r: _right(_other_head(data, r))),
            (4, lambda r: _described(Message.parse(data), r)),
            (7, lambda r: self._led(_recoded(Message.parse(data), r), number).to_bytes()),
        )
        if random.random() < 0.05:
            del messages[random.randrange(len(messages))]
        answer = _framed(tuple(messages))
        answer = mutations.damaged(answer, random) if random.random() < 0.2 else answer
        return Case(number, tuple(messages), follows, random.choice(("apply", *_WAYS)), answer)

    def read(self, case: Case, folder: Path) -> str:
        sample = self.samples[case.sample]
        weights = {name: torch.zeros_like(tensor) for name, tensor in sample.states[0].items()}
        receiver = Receiver(weights)
        if case.follows:
            receiver.apply(sample.messages[0])
        applied = [_copy(weights)]
        receiver.on_change = lambda names: applied.append(_copy(weights))
        try:
            _give(case, receiver, folder)
        finally:
            if receiver.sequence is not None:
                if not _are_same(weights, applied[-1]):
                    raise Wrong(f"{case.way}: a refused message changed the weights")
                receiver.verify()
        if receiver.sequence is None or not set(case.messages) <= set(sample.messages):
            return TRUE
        if not _are_same(weights, sample.states[receiver.sequence]):
            raise Wrong(f"{case.way}: other weights than those of message {receiver.sequence}")
        return SAME

    def _led(self, message: Message, number: int) -> Message:
        """Return a message with the checksum of the state that it leads to, if it leads to one."""
        states, sequence = self.samples[number].states, max(message.sequence - 1, 0)
        if sequence >= len(states):
            return message
        heard = _Heard()
        receiver = Receiver(_copy(states[sequence]), sequence=sequence)
        with suppress(SqueezeError):
            if message.kind == SNAPSHOT:
                receiver._take_snapshot(replace(message, after=heard))
            else:
                list(receiver._changes(replace(message, after=heard)))
        return message if heard.value is None else replace(message, after=heard.value)


class _Heard(int):
    """A checksum that agrees with every other one, and notes it."""

    value: int | None = None

    def __ne__(self, other: object) -> bool:
        self.value = int(str(other))
        return False

    __hash__ = int.__hash__


def _sample(seed: int, dtype: torch.dtype) -> Sample:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"large": (100, 100), "odd": (333,), "one": (), "none": (0, 3), "three": (3,)}
    made = {name: torch.randn(shape, generator=generator).mul(30).to(dtype) for name, shape in shapes.items()}
    stream = Stream(made, snapshot_every=4)
    sample = Sample([stream.snapshot()], [_copy(made)])
    for step, share in enumerate(_SHARES):
        _change(made, share, np.random.default_rng(step))
        sample.messages.append(stream.step(made))
        sample.states.append(_copy(made))
    return sample


def _change(weights: Weights, share: float, generator: np.random.Generator) -> None:
    """Change a share of the values in place, most of them by one in the last place."""
    for tensor in weights.values():
        words = _bytes_of(tensor).view(f"u{tensor.element_size()}")
        touched = generator.random(words.size) < share
        words[touched] += generator.choice(np.array([1, 1, 1, 3, 77, 250], words.dtype), int(touched.sum()))


def _bytes_of(tensor: torch.Tensor) -> Any:
    return tensor.view(-1).view(torch.uint8).numpy() if tensor.numel() else np.empty(0, np.uint8)


def _copy(weights: Weights) -> Weights:
    return {name: tensor.clone() for name, tensor in weights.items()}


def _are_same(one: Weights, other: Weights) -> bool:
    return all(np.array_equal(_bytes_of(tensor), _bytes_of(other[name])) for name, tensor in one.items())


def _framed(messages: tuple[bytes, ...]) -> bytes:
    return b"".join(len(message).to_bytes(8, "little") + message for message in messages)


def _give(case: Case, receiver: Receiver, folder: Path) -> None:
    """Let a receiver apply the messages of a case in its way."""
    if case.way == "folder":
        place = Folder(folder / "stream")
        for number, message in enumerate(case.messages, int(case.follows)):
            suffix = "snapshot" if message[5:6] == b"\0" else "patch"
            (place.path / f"{number:012d}.{suffix}").write_bytes(message)
        place.update(receiver)
        place.prune()
        return
    messages = http._messages(memoryview(case.answer), "http://host") if case.way == "http" else case.messages
    for message in messages:
        receiver.apply(message)


def _right(data: bytes) -> bytes:
    """Return a message with its length and hash made right."""
    if len(data) < _HEAD:
        return data
    head = data[:40] + (len(data) - _HEAD).to_bytes(8, "little")
    return head + xxhash.xxh3_128_digest(head + data[_HEAD:]) + data[_HEAD:]


def _other_head(data: bytes, random: Random) -> bytes:
    """Return a message with another field in its header."""
    at = random.choice((4, 5, 6, 8, 8, 16, 24, 24, 32))
    width = 8 if at >= 8 else 1
    before = int.from_bytes(data[at : at + width], "little")
    value = random.choice((0, 1, before + 1, before - 1, 2 * before, 2**63, 2**64 - 1)) % (1 << 8 * width)
    return data[:at] + value.to_bytes(width, "little") + data[at + width :]


def _described(message: Message, random: Random) -> bytes:
    """Return a message with another description of the same body."""
    text = mutations.to_json(mutations.mutated(message.described, random)).encode("utf-8", "surrogatepass")
    content = len(text).to_bytes(8, "little") + text + bytes(message.body)
    return _right(message.to_bytes()[:_HEAD] + content)


def _recoded(message: Message, random: Random) -> Message:
    """Return a message with other payloads, gaps or steps."""
    body = bytes(message.body)
    if message.kind == SNAPSHOT:
        entries = [list(entry) for entry in message.described["tensors"]]
        start, at = 0, random.randrange(len(entries))
        start = sum(size for _, size in entries[:at])
        payload = mutations.damaged(body[start : start + entries[at][1]], random)
        coding = random.choice(tuple(CODINGS)) if random.random() < 0.2 else entries[at][0]
        body = body[:start] + payload + body[start + entries[at][1] :]
        entries[at] = [coding, len(payload)]
        return replace(message, described={"tensors": entries}, body=body)
    sections, dense = message.described["sections"], [list(entry) for entry in message.described["dense"]]
    parts, start = [], 0
    for (raw, coded), dtype in zip(sections, ("U32", "U8", "U8"), strict=True):
        data = np.frombuffer(body, np.uint8, coded, start).copy()
        parts.append(data.tobytes() if raw == coded else floats.decode(data, dtype, raw, 1).tobytes())
        start += coded
    rest = body[start:]
    if dense and random.random() < 0.6:
        rest = mutations.damaged(rest, random)
        entry = random.choice(dense)
        change = random.choice(("number", "coding", "size", ""))
        entry[0] = random.randrange(6) if change == "number" else entry[0]
        entry[1] = random.choice(tuple(CODINGS)) if change == "coding" else entry[1]
        entry[2] = len(rest) if change != "size" else mutations.size(random, len(rest))
    else:
        at = random.randrange(3)
        parts[at] = mutations.damaged(parts[at], random)
    if random.random() < 0.7:
        parts[0] = _fitting(parts)
    coded_parts, sizes = [], []
    for part, dtype in zip(parts, ("U32", "U8", "U8"), strict=True):
        data = np.frombuffer(part, np.uint8)
        is_coded = random.random() < 0.5 and len(part) % 4 == 0
        coded_parts.append(coded_section(data, dtype, 1) if is_coded else part)
        sizes.append([len(part), len(coded_parts[-1])])
    return replace(message, described={"sections": sizes, "dense": dense}, body=b"".join(coded_parts) + rest)


def _fitting(parts: list[bytes]) -> bytes:
    """Return the table with its first block's bytes of gaps and steps made right, if that can be."""
    table = np.frombuffer(parts[0][: len(parts[0]) // 12 * 12], np.uint32).reshape(3, -1).copy()
    if not table.size:
        return parts[0]
    for row, part in ((1, parts[1]), (2, parts[2])):
        others = int(table[row, 1:].sum())
        if len(part) >= others:
            table[row, 0] = len(part) - others
    return table.tobytes()


FORMAT = Deltas
