"""The tokenwise models and the arithmetic coders of one block: how a step of the language model becomes coded bytes.

`Turns` codes one lane after the other, each with what was learned from those before it; `Batches` codes some lanes at a
time by one state, with several coders, on several threads.
"""

import io
from typing import Any

import numpy as np

from squeeze.codecs.bitmodels import coder as arithmetic
from squeeze.codecs.bitmodels.meter import Meter, Recorder
from squeeze.codecs.bytewise import arrays as bytewise
from squeeze.codecs.tokenwise import batches, log as logs, measure, model as tokenwise, repeats as repeating
from squeeze.codecs.tokenwise.arrays import EXTRA, build_mix
from squeeze.codecs.tokenwise.counting import HOST
from squeeze.codecs.tokenwise.layout import LaneLayout
from squeeze.codecs.tokenwise.prefill import Paths
from squeeze.codecs.tokenwise.presets import TokenPreset
from squeeze.codecs.varint import read_varint, varint
from squeeze.errors import DamagedError
from squeeze.lm.language_model import LanguageModel
from squeeze.numerics import frequencies
from squeeze.numerics.team import Team

_spare_bytes = tokenwise.spare_bytes.py_func
_CONSTANT = 150 << 20  # bytes of what does not grow with a text
_NO_ROWS = np.zeros(0, np.int64)
_NO_CDF, _NO_LOGITS, _NO_STARTS = frequencies.room(1, 1), np.zeros(0, np.int32), np.zeros((0, 0), np.int64)


def memory(model: LanguageModel, preset: TokenPreset, size: int, threads: int) -> int:
    """About how many bytes mixing the lanes of a text of `size` bytes takes."""
    trie, contexts = model.trie, len(preset.bytewise.contexts)
    tables = bytewise.table_size(size, preset.bytewise) + model.leaves.size * 128 + _CONSTANT
    if not preset.batch:
        return tables
    decision, nibble = 24 * contexts + 320, 8 * contexts + 2
    of_lane = decision * int(trie.decisions.max()) + nibble * 2 * int(np.diff(trie.offsets).max())
    return tables + min(preset.batch, preset.lanes) * of_lane + 2 * size + (threads - 1) * size


class Mixing:
    """Fresh models of a block."""

    counting = HOST
    repeats: repeating.Repeats | None = None

    def __init__(self, model: LanguageModel, layout: LaneLayout, preset: TokenPreset):
        self.trie = model.trie
        self.length = sum(layout.lengths)
        self.begins = np.cumsum([0, *layout.lengths[:-1]])
        self.ends = np.cumsum(layout.lengths)
        longest = int(np.diff(self.trie.offsets).max())
        self.data = np.zeros(self.length + longest, np.uint8)
        self.model = bytewise.build_model(self.data, preset.bytewise, 0, EXTRA)
        self.mix = build_mix(self.model, self.trie, layout.counts, preset.without)
        self.mix.places[:] = self.begins
        self.spare = _spare_bytes(max(int(self.trie.decisions.max()), 16))

    def measured(self, preset: TokenPreset, recorder: Recorder) -> Meter:
        """A meter of all entries."""
        width, first = self.model.inputs.size, int(self.model.state.first_extra)
        return recorder.start(self.mix.tokens.size, measure.input_names(preset, width, first), self._spell)

    def _spell(self, leaf: int) -> bytes:
        begin, end = self.trie.offsets[leaf : leaf + 2]
        return self.trie.spelling[begin:end].tobytes()

    @property
    def done(self) -> int:
        """Bytes that were coded so far."""
        return int(self.mix.places.sum() - self.begins.sum())

    def restored(self) -> np.ndarray:
        """uint8: the block, once it is decoded."""
        return self.data[: self.length]

    def encode(self, entries: np.ndarray, active: np.ndarray, paths: Paths) -> bool:
        """Code entries int64 [lanes, steps], of which each step has so many lanes. Returns False where that takes too
        many bytes."""
        raise NotImplementedError

    def finish(self) -> bytes:
        """What was coded."""
        raise NotImplementedError

    def decode(
        self, entries: np.ndarray, active: int, begin: int, cdf: Any, rows: np.ndarray, meter: tuple[Any, ...]
    ) -> bool:
        """Fill in entries int64 [lanes, 1] of `active` lanes from `begin` on, whose frequencies are cdf[rows]. Returns
        False where what was coded is impossible."""
        raise NotImplementedError


class Turns(Mixing):
    """Lane by lane."""

    def __init__(
        self,
        model: LanguageModel,
        layout: LaneLayout,
        preset: TokenPreset,
        payload: bytes | None = None,
        entries: np.ndarray | None = None,
    ):
        super().__init__(model, layout, preset)
        if layout.repeats:
            self.repeats = repeating.build(layout, entries)
        self._coder = np.zeros(3, np.uint64)
        if payload is None:
            self._coded = np.zeros(self.length + self.spare, np.uint8)
            arithmetic.start_encoder(self._coder)
        else:
            self._coded = np.frombuffer(bytearray(payload), np.uint8)
            arithmetic.start_decoder(self._coder, self._coded)

    def encode(self, entries: np.ndarray, active: np.ndarray, paths: Paths) -> bool:
        sound: bool = tokenwise.code_steps(
            *(self.model, self.mix, self.trie, entries, _NO_CDF, _NO_ROWS, 0, active, self.ends),
            *(paths.logits, paths.starts, paths.surprises, self._coder, self._coded, False, None, self.repeats),
        )
        return sound

    def finish(self) -> bytes:
        length = arithmetic.finish_encoder(self._coder, self._coded)
        return self._coded[:length].tobytes()

    def decode(
        self, entries: np.ndarray, active: int, begin: int, cdf: Any, rows: np.ndarray, meter: tuple[Any, ...]
    ) -> bool:
        sound: bool = tokenwise.code_steps(
            *(self.model, self.mix, self.trie, entries, cdf, rows, begin, np.array([active]), self.ends),
            *(_NO_LOGITS, _NO_STARTS, _NO_STARTS, self._coder, self._coded, True, *(meter or (None,)), self.repeats),
        )
        return sound


class Batches(Mixing):
    """Some lanes at a time, by a team of threads."""

    def __init__(
        self,
        model: LanguageModel,
        layout: LaneLayout,
        preset: TokenPreset,
        team: Team,
        payload: bytes | None = None,
        workers: int | None = None,
        cut: logs.Cut = logs.THREADS,
    ):
        super().__init__(model, layout, preset)
        self._team = team
        count = -(-layout.batch // layout.share)
        coders = np.zeros((count, batches.CODER), np.uint64)
        if payload is None:
            most = int(np.bincount(np.arange(layout.lanes) % layout.batch // layout.share, layout.lengths).max())
            sizes = np.full(count, 2 * most + self.spare)
            coded = np.zeros((count, 2 * most + self.spare), np.uint8)
            for coder in coders:
                arithmetic.start_encoder(coder)
        else:
            codes = _separate(payload, count)
            sizes = np.array([len(code) for code in codes], np.int64)
            coded = np.zeros((count, max(map(len, codes)) + 1), np.uint8)
            for coder, row, code in zip(coders, coded, codes, strict=True):
                row[: len(code)] = np.frombuffer(code, np.uint8)
                arithmetic.start_decoder(coder, row)
        self._codes = batches.Codes(coders, coded, sizes, layout.batch, layout.share)
        self._tickets = batches.fresh_tickets()
        self.model, self.log, self.own = batches.build(
            *(self.model, self.mix, self.trie, layout.batch, workers or team.size, cut)
        )
        self.data = self.own.data[0]

    def _code(
        self,
        entries: np.ndarray,
        active: np.ndarray,
        cdf: Any,
        rows: np.ndarray,
        paths: tuple[np.ndarray, np.ndarray, np.ndarray],
        decoding: bool,
        meter: tuple[Any, ...] = (),
    ) -> bool:
        steps = batches.Steps(entries, cdf, rows, active, self.ends, *paths)

        def work(rank: int, size: int, barrier: np.ndarray) -> None:
            batches.code_batches(
                *(self.model, self.mix, self.trie, self.log, self.own, steps, self._codes),
                *(decoding, self._tickets, rank, size, barrier, *meter),
            )

        self._team.run(work)
        return batches.is_sound(self._tickets)

    def encode(self, entries: np.ndarray, active: np.ndarray, paths: Paths) -> bool:
        return self._code(entries, active, _NO_CDF, _NO_ROWS, (paths.logits, paths.starts, paths.surprises), False)

    def finish(self) -> bytes:
        lengths = [arithmetic.finish_encoder(*pair) for pair in zip(self._codes.coders, self._codes.coded, strict=True)]
        codes = [row[:length].tobytes() for row, length in zip(self._codes.coded, lengths, strict=True)]
        return b"".join([*map(varint, lengths[:-1]), *codes])

    def decode(
        self, entries: np.ndarray, active: int, begin: int, cdf: Any, rows: np.ndarray, meter: tuple[Any, ...]
    ) -> bool:
        assert begin == 0
        return self._code(entries, np.array([active]), cdf, rows, (_NO_LOGITS, _NO_STARTS, _NO_STARTS), True, meter)


def _separate(payload: bytes, count: int) -> list[bytes]:
    """The codes of so many coders."""
    source = io.BytesIO(payload)
    lengths = [read_varint(source)[0] for _ in range(count - 1)]
    rest = len(payload) - source.tell() - sum(lengths)
    if rest < 0:
        raise DamagedError("a block's coders are impossible: the file is damaged")
    return [source.read(length) for length in (*lengths, rest)]
