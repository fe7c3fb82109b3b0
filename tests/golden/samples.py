"""The golden files: the contents of each, and how it is made."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import NamedTuple
from unittest import mock

import numpy as np

import squeeze
from squeeze.codecs.content import Content
from squeeze.codecs.image.sampling import Sampling
from squeeze.codecs.recurrent import change as changes, weights
from squeeze.codecs.stream import levels, training
from tests.golden.wrapped import WRAPPED
from tests.makers import arrays, images, inputs, jpegs, programs, sounds

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
STORED = {"empty": (1, 6), "one": (1, 8), "random": (3, 8)}  # levels of what no model codes, with an index at -8
PAGE = b"<p>The queue of <b>node-%03d</b> is empty, and (as before) nothing waits.</p>\n"
REPEATS = b"".join(b"%d: %s\n" % (i, inputs.PROSE[: 400 + 31 * i]) for i in range(12))


class Golden(NamedTuple):
    """A stream that is kept."""

    source: bytes | Callable[[], bytes]
    make: Callable[[], bytes]

    @property
    def raw(self) -> bytes:
        """The content of the stream."""
        return self.source if isinstance(self.source, bytes) else self.source()


def _by_level(data: bytes, level: int) -> bytes:
    """Compress by the models of this level, even if a lower one makes less of it.

    At levels 7 to 9 there is an index, since a short stream would be that of level 6.
    """
    plain = levels.level(level).needs_language_model and data is not inputs.PROSE
    whole = max(len(data), 1) if plain else None
    with mock.patch.dict(levels.LEVELS, {level: replace(levels.level(level), fallback=None)}):
        return squeeze.compress(data, level, block_size=whole, verify=False)


def tuned_dictionary() -> bytes:
    """Return a dictionary without text, which changes numbers of every tensor of the network."""
    chance = np.random.default_rng(5)
    change = {}
    for name, shape in changes.shapes(weights.pretrained_tensors()).items():
        change[name] = np.zeros(shape, np.int64)
        some = tuple(chance.integers(0, size, 9) for size in shape)
        change[name][some] = chance.integers(-300, 300, 9)
    pieces = [np.frombuffer(PAGE % number, np.uint8) for number in range(9)]
    return training.make(5, Content("text"), training.TrainingPieces([], pieces, []), 1 << 10, change)


def _with_index(data: bytes, level: int) -> bytes:
    return squeeze.compress(data, level, block_size=len(data), verify=False)


def _bare(name: str, level: int) -> bytes:
    return squeeze.compress(SAMPLES[name], level, dictionary="none", verify=False)


RUNS = (
    inputs.machine_code(90) + bytes(5000) + inputs.machine_code(200)[200:] + b"\x01\x02\x03" * 2000 + inputs.PROSE[:99]
)
LOG = b"".join(
    b"2026-11-09 10:%02d:%02d n-%d: GET /item/%d 200, %d ms\n" % (i // 9, 6 * i % 60, i % 4, 700 + 3 * i, i * i % 97)
    for i in range(60)
)
COPIES = inputs.words(2_400) + inputs.random_bytes(1_000) + inputs.words(2_400)[150:2_000] + inputs.random_bytes(900)
PICTURE = b"P6 40 40 255\n" + bytes(
    (x * x // 9 + 3 * y + 40 * c + (x * y * 7 + c) % 5) % 256 for y in range(40) for x in range(40) for c in range(3)
)
PROGRAM = programs.elf(functions=40)
photo = cache(partial(jpegs.by_hand, 48, 32))  # not made at import, since that compiles
decoded = cache(lambda: images.bmp(images.from_blocks(96, 80, 3, 0, Sampling(2, 2, 0, 0, 1))))
POINTS = arrays.npy("<f4", "400, 3", arrays.points(400))
TONE = sounds.wav(sounds.samples(600, 2, 16), 2)
STREAMS = {
    **{
        f"{name}.{level}": Golden(raw, partial(_by_level, raw, level))
        for name, raw in SAMPLES.items()
        for level in STORED.get(name, levels.LEVELS)
    },
    **{
        f"mixed.{level}.index": Golden(SAMPLES["mixed"], partial(_with_index, SAMPLES["mixed"], level))
        for level in (1, 3, 6)
    },
    **{f"words.{level}.bare": Golden(SAMPLES["words"], partial(_bare, "words", level)) for level in (1, 5)},
    **{f"wrapped.{level}": Golden(WRAPPED, partial(_by_level, WRAPPED, level)) for level in (3, 6)},
    **{f"wrapped.{level}.index": Golden(WRAPPED, partial(_with_index, WRAPPED, level)) for level in (3, 6)},
    "runs.3": Golden(RUNS, partial(squeeze.compress, RUNS, 3, block_size=len(RUNS), verify=False)),
    "copies.1": Golden(COPIES, partial(squeeze.compress, COPIES, 1, block_size=2_000, long=1 << 20, verify=False)),
    **{f"lines.{level}": Golden(LOG, partial(_by_level, LOG, level)) for level in (1, 3, 4, 6)},
    **{f"picture.{level}": Golden(PICTURE, partial(_by_level, PICTURE, level)) for level in (1, 4)},
    **{f"program.{level}": Golden(PROGRAM, partial(_by_level, PROGRAM, level)) for level in (1, 3)},
    "photo.1": Golden(photo, lambda: _by_level(photo(), 1)),
    "decoded.1": Golden(decoded, lambda: _by_level(decoded(), 1)),
    **{f"tone.{level}": Golden(TONE, partial(_by_level, TONE, level)) for level in (1, 4)},
    **{f"points.{level}": Golden(POINTS, partial(_by_level, POINTS, level)) for level in (1, 4)},
    # Entries that do not go through the language model.
    "repeats.8": Golden(REPEATS, partial(squeeze.compress, REPEATS, 8, lanes=2, verify=False)),
}
