"""What the golden files hold. Nothing here may change: it is compared with what files coded long ago decode to."""

from dataclasses import replace
from unittest import mock

import numpy as np

import squeeze
from squeeze.codecs.recurrent import change as changes, weights
from squeeze.codecs.stream import levels, training
from squeeze.codecs.stream.container import Content
from tests.makers import inputs

SAMPLES = {
    "empty": b"",
    "one": b"\xff",
    "bytes": bytes(range(256)) * 3,
    "words": inputs.words(4_000),
    "records": inputs.records(300),
    "code": inputs.machine_code(400),
    "mixed": inputs.SPECIAL_TOKENS + bytes(2_000) + inputs.words(1_000, seed=11) + inputs.random_bytes(500),
    "prose": inputs.PROSE,
    "random": inputs.random_bytes(700),
}
RECORD = b'{"number": 0, "state": "done", "worker": "node-005", "seconds": 111.24, "queue": "mail"}'.ljust(148)


PAGE = b"<p>The queue of <b>node-%03d</b> is empty, and (as before) nothing waits.</p>\n"


def tuned_dictionary() -> bytes:
    """A dictionary without text, which changes numbers of every tensor of the network."""
    chance = np.random.default_rng(5)
    change = {}
    for name, shape in changes.shapes(weights.pretrained_tensors()).items():
        change[name] = np.zeros(shape, np.int64)
        some = tuple(chance.integers(0, size, 9) for size in shape)
        change[name][some] = chance.integers(-300, 300, 9)
    pieces = [np.frombuffer(PAGE % number, np.uint8) for number in range(9)]
    return training.make(5, Content("text"), training.Lessons([], pieces, []), 1 << 10, change)


BATCHES = ("words", "prose", "mixed")


def in_batches(data: bytes) -> bytes:
    """A golden file whose lanes are coded in batches, the last one smaller."""
    return squeeze.compress(data, 8, lanes=7, batch=5, verify=False)


REPEATS = b"".join(b"%d: %s\n" % (i, inputs.PROSE[: 400 + 31 * i]) for i in range(12))


def with_repeats() -> bytes:
    """A golden file with entries that do not go through the language model."""
    return squeeze.compress(REPEATS, 8, lanes=2, verify=False)


def coded(data: bytes, level: int) -> bytes:
    """A golden file, by the models of this level whatever lower ones bring; at levels 7 to 9 with an index, where a
    short stream would be level 6's."""
    plain = levels.level(level).needs_language_model and data is not inputs.PROSE
    whole = max(len(data), 1) if plain else None
    with mock.patch.dict(levels.LEVELS, {level: replace(levels.level(level), beside=None)}):
        return squeeze.compress(data, level, block_size=whole, verify=False)
