"""The tokenwise models and the arithmetic coder of one block: how a step of the language model becomes coded bytes."""

from typing import Any

import numpy as np

from squeeze.codecs.bytewise import state as bytewise
from squeeze.codecs.bytewise.presets import TokenPreset
from squeeze.codecs.tokenwise import measure, model as tokenwise, repeats as repeating
from squeeze.codecs.tokenwise.arrays import EXTRA, build_mix
from squeeze.codecs.tokenwise.layout import LaneLayout
from squeeze.codecs.tokenwise.prefill import Paths
from squeeze.lm.language_model import LanguageModel
from squeeze.numerics import frequencies
from squeeze.numerics.bitmodels import coder as arithmetic
from squeeze.numerics.bitmodels.meter import Meter, Recorder

_spare_bytes = tokenwise.spare_bytes.py_func
_CONSTANT = 150 << 20  # bytes of what does not grow with a text
_NO_ROWS = np.zeros(0, np.int64)
_NO_CDF, _NO_LOGITS, _NO_STARTS = frequencies.room(1, 1), np.zeros(0, np.int32), np.zeros((0, 0), np.int64)


def memory(model: LanguageModel, preset: TokenPreset, size: int) -> int:
    """Estimate the bytes that mixing the lanes of a text of `size` bytes takes."""
    return bytewise.table_size(size, preset.bytewise) + model.leaves.size * 128 + _CONSTANT


class Mixing:
    """Fresh models of a block, and its coder: for encoding `entries`, or for decoding a payload."""

    def __init__(
        self,
        model: LanguageModel,
        layout: LaneLayout,
        preset: TokenPreset,
        payload: bytes | None = None,
        entries: np.ndarray | None = None,
    ):
        self.trie = model.trie
        self.length = sum(layout.lengths)
        self.begins = np.cumsum([0, *layout.lengths[:-1]])
        self.ends = np.cumsum(layout.lengths)
        longest = int(np.diff(self.trie.offsets).max())
        self.data = np.zeros(self.length + longest, np.uint8)
        self.model = bytewise.build_model(self.data, preset.bytewise, 0, EXTRA)
        self.mix = build_mix(self.model, self.trie, layout.counts, preset.without)
        self.mix.places[:] = self.begins
        self.repeats = repeating.build(layout, entries) if layout.repeats else None
        self._coder = np.zeros(3, np.uint64)
        if payload is None:
            spare = _spare_bytes(max(int(self.trie.decisions.max()), 16))
            self._coded = np.zeros(self.length + spare, np.uint8)
            arithmetic.start_encoder(self._coder)
        else:
            self._coded = np.frombuffer(bytearray(payload), np.uint8)
            arithmetic.start_decoder(self._coder, self._coded)

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
        """Code entries int64 [lanes, steps], of which each step has `active` lanes. Return False if that takes too
        many bytes."""
        sound: bool = tokenwise.code_steps(
            *(self.model, self.mix, self.trie, entries, _NO_CDF, _NO_ROWS, 0, active, self.ends),
            *(paths.logits, paths.starts, paths.surprises, self._coder, self._coded, False, None, self.repeats),
        )
        return sound

    def finish(self) -> bytes:
        """Return what was coded."""
        length = arithmetic.finish_encoder(self._coder, self._coded)
        return self._coded[:length].tobytes()

    def decode(
        self, entries: np.ndarray, active: int, begin: int, cdf: Any, rows: np.ndarray, meter: tuple[Any, ...]
    ) -> bool:
        """Fill in entries int64 [lanes, 1] of `active` lanes from `begin` on, whose frequencies are cdf[rows]. Return
        False if what was coded is impossible."""
        sound: bool = tokenwise.code_steps(
            *(self.model, self.mix, self.trie, entries, cdf, rows, begin, np.array([active]), self.ends),
            *(_NO_LOGITS, _NO_STARTS, _NO_STARTS, self._coder, self._coded, True, *(meter or (None,)), self.repeats),
        )
        return sound
