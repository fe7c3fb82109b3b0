"""The tokenwise models and arithmetic coder of a block, which turn predictions of the language model into coded
bytes."""

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
_CONSTANT = 150 << 20  # bytes of arrays whose size does not depend on the text
_NO_ROWS = np.zeros(0, np.int64)
_NO_CDF, _NO_LOGITS, _NO_STARTS = frequencies.allocate(1, 1), np.zeros(0, np.int32), np.zeros((0, 0), np.int64)


def memory(model: LanguageModel, preset: TokenPreset, size: int) -> int:
    """Estimate the bytes that mixing a text takes.

    Args:
        model: the language model.
        preset: contexts, lanes and window.
        size: bytes of the text.
    """
    return bytewise.table_size(size, preset.bytewise) + model.leaves.size * 128 + _CONSTANT


class Mixing:
    """The untrained models of a block and its coder, for encoding `entries` or decoding a payload."""

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
        """Return a meter of all entries."""
        width, first = self.model.inputs.size, int(self.model.state.first_extra)
        return recorder.start(self.mix.tokens.size, measure.input_names(preset, width, first), self._spell)

    def _spell(self, leaf: int) -> bytes:
        begin, end = self.trie.offsets[leaf : leaf + 2]
        return self.trie.spelling[begin:end].tobytes()

    @property
    def done(self) -> int:
        """Bytes coded so far."""
        return int(self.mix.places.sum() - self.begins.sum())

    def restored(self) -> np.ndarray:
        """Return the decoded block, uint8."""
        return self.data[: self.length]

    def encode(self, entries: np.ndarray, active: np.ndarray, paths: Paths) -> bool:
        """Code entries along their paths.

        Args:
            entries: int64 [lanes, steps].
            active: int64 [steps], lanes with an entry at each step.
            paths: predictions of the language model.

        Returns:
            False if the coded bytes become too many.
        """
        sound: bool = tokenwise.code_steps(
            *(self.model, self.mix, self.trie, entries, _NO_CDF, _NO_ROWS, 0, active, self.ends),
            *(paths.logits, paths.starts, paths.top_nlls, self._coder, self._coded, False, None, self.repeats),
        )
        return sound

    def finish(self) -> bytes:
        """Return the coded bytes."""
        length = arithmetic.finish_encoder(self._coder, self._coded)
        return self._coded[:length].tobytes()

    def decode(
        self, entries: np.ndarray, active: int, begin: int, cdf: Any, rows: np.ndarray, meter: tuple[Any, ...]
    ) -> bool:
        """Decode one entry of each lane.

        Args:
            entries: int64 [lanes, 1], filled in.
            active: lanes with an entry, from `begin` on.
            begin: first lane.
            cdf: frequencies.
            rows: int64 [lanes], a lane's row of `cdf`.
            meter: notes costs, or an empty tuple.

        Returns:
            False if the coded bytes are impossible.
        """
        sound: bool = tokenwise.code_steps(
            *(self.model, self.mix, self.trie, entries, cdf, rows, begin, np.array([active]), self.ends),
            *(_NO_LOGITS, _NO_STARTS, _NO_STARTS, self._coder, self._coded, True, *(meter or (None,)), self.repeats),
        )
        return sound
