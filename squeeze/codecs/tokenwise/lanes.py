"""Running a language model with the tokenwise coder: lanes, threads, and the order in which they take turns.

A block's tokens are cut into lanes of equal length. The encoder knows all tokens. So the model runs over many positions
at once (prefill) in threads of its own, and passes the logits along each token's path to the coder. The decoder runs
one position of all lanes at a time. With two threads it has two groups of lanes: while one group's tokens are decoded,
the model runs on the other's. The coded bytes do not depend on threads, groups or positions at once.
"""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace

import numpy as np

from squeeze.codecs.bytewise.presets import TokenPreset
from squeeze.codecs.tokenwise import mixing, prefill, repeats
from squeeze.codecs.tokenwise.bias import Bias, GroupGradient, Stopped
from squeeze.codecs.tokenwise.drafts import Guess, Past, PastWithRepeats, frequencies, guess_known, guess_matches
from squeeze.codecs.tokenwise.layout import MAX_LANES, MAX_LANES_WITH_REPEATS, Feed, LaneLayout
from squeeze.codecs.tokenwise.mixing import Mixing
from squeeze.codecs.tokenwise.prefill import groups_of, predictions, team_of
from squeeze.errors import DamagedError
from squeeze.lm.language_model import LanguageModel
from squeeze.numerics.bitmodels.meter import Meter, Recorder

Progress = Callable[[int], None] | None
_MOST_FED = 0.85  # repeats bypass the model if at most this share of entries is fed; they cost about 1 % of size
_APART = 8  # lanes from which two groups decode faster than one


def memory(model: LanguageModel, preset: TokenPreset, size: int) -> int:
    """Estimate the bytes of memory for coding a text.

    Args:
        model: the language model.
        preset: contexts, lanes and window.
        size: bytes of the text.
    """
    cache = preset.lanes * (preset.window + prefill.ROWS // preset.lanes + 32) * model.size_of_position
    frequencies = 2 * prefill.FREQUENCY_ROWS * model.leaves.size * 12
    return model.size + cache + frequencies + mixing.memory(model, preset, size) + 8 * size


def encode(
    data: bytes, model: LanguageModel, preset: TokenPreset, threads: int = 1, progress: Progress = None
) -> tuple[LaneLayout, bytes] | None:
    """Return the lane layout and coded form of a text, or None if they are no shorter.

    Args:
        data: the text.
        model: the language model.
        preset: contexts, lanes and window.
        threads: number of threads.
        progress: is called with the number of bytes coded since its last call.
    """
    entries = model.encode(data)
    lanes = min(preset.lanes, entries.size, model.lockstep or MAX_LANES)
    spelled = np.where(entries < 0, 1, np.diff(model.trie.offsets)[np.maximum(entries, 0)])
    layout = LaneLayout.of(spelled, lanes, preset.window)
    layout, feed = _fed(entries, layout, model)
    done = 0
    with ExitStack() as stack:
        state = Mixing(model, layout, preset, entries=entries)
        for first, paths in predictions(model, layout, feed, threads, stack):
            columns = feed.table[:, first : first + paths.top_nlls.shape[1]]
            active = np.array([feed.active(first + step) for step in range(columns.shape[1])])
            if not state.encode(np.ascontiguousarray(columns), active, paths):
                return None
            done = _report(progress, state, done)
    coded = state.finish()
    return (layout, coded) if len(coded) < len(data) else None


def _fed(entries: np.ndarray, layout: LaneLayout, model: LanguageModel) -> tuple[LaneLayout, Feed]:
    """Return what the model is fed of a block's entries, and a layout that says so.

    Repeats bypass the model if that saves enough.
    """
    if not model.lockstep and layout.lanes <= MAX_LANES_WITH_REPEATS:
        repeated, ruled_out = repeats.plan(model.trie, layout, entries)
        feed = Feed.without(repeated, ruled_out, entries, layout)
        if feed.size <= _MOST_FED * entries.size:
            return replace(layout, repeats=True), feed
    return layout, Feed.of_all(entries, layout)


def decode(
    payload: bytes,
    layout: LaneLayout,
    model: LanguageModel,
    preset: TokenPreset,
    threads: int = 1,
    progress: Progress = None,
    guessed: bytes | None = None,
    recorder: Recorder | None = None,
) -> np.ndarray:
    """Decode a text to uint8 [n].

    Args:
        payload: coded bytes.
        layout: lanes of the block.
        model: the language model.
        preset: contexts, lanes and window.
        threads: number of threads.
        progress: is called with the number of bytes decoded since its last call.
        guessed: the expected bytes, which make decoding faster.
        recorder: measures the cost of every token, if given.

    Raises:
        DamagedError: if the payload is invalid.
    """
    with ExitStack() as stack:
        state = Mixing(model, layout, preset, payload)
        guess = guess_matches(state.mix, state.repeats) if guessed is None else _guess_of(guessed, model, layout)
        meter = state.measured(preset, recorder) if recorder else None
        done = _Decoding(model, layout, state, guess, threads, stack, progress, meter).run()
    _report(progress, state, done)
    if not np.array_equal(state.mix.places, state.ends):
        raise DamagedError("a block's coded bytes do not fit its lengths: the file is damaged")
    return state.restored()


def _guess_of(data: bytes, model: LanguageModel, layout: LaneLayout) -> Guess:
    """Return a guess of the entries of known bytes."""
    entries = np.full(layout.entries, -1, np.int64)
    found = model.encode(data)[: layout.entries]
    entries[: found.size] = found
    if layout.repeats:
        return guess_known(Feed.without(*repeats.plan(model.trie, layout, entries), entries, layout))
    return guess_known(Feed.of_all(entries, layout))


def _report(progress: Progress, state: Mixing, done: int) -> int:
    if progress:
        progress(state.done - done)
    return state.done


class _Decoding:
    """Groups of lanes that take turns: each runs its model, then decodes a token of each of its lanes."""

    def __init__(
        self,
        model: LanguageModel,
        layout: LaneLayout,
        state: Mixing,
        guess: Guess,
        threads: int,
        stack: ExitStack,
        progress: Progress,
        meter: Meter | None = None,
    ):
        self._meter = () if meter is None else (meter,)
        self._layout, self._state, self._progress = layout, state, progress
        self._groups = groups_of(model, layout.lanes, threads, _APART)
        count = len(self._groups)
        past = Past(layout) if state.repeats is None else PastWithRepeats(state.mix, state.repeats)
        self._bias = Bias(model.leaves.size, layout.lanes, count)
        self._ahead = [
            frequencies(model, layout, a, b, guess, self._bias, team_of(threads, count, stack), past)
            for a, b in self._groups
        ]
        self._turns = [threading.Semaphore(0) for _ in self._groups]
        self._stopped = False
        self._done = 0

    def run(self) -> int:
        """Decode everything, and return the number of bytes reported to `progress`."""
        self._turns[0].release()
        if len(self._groups) == 1:
            self._run_group(0)
            return self._done
        with ThreadPoolExecutor(len(self._groups)) as pool:
            tasks = [pool.submit(self._guarded, g) for g in range(len(self._groups))]
            try:
                for task in tasks:
                    task.result()
            finally:
                self._stop()
        return self._done

    def _guarded(self, group: int) -> None:
        try:
            self._run_group(group)
        except Stopped:
            return
        except BaseException:
            self._stop()
            raise

    def _stop(self) -> None:
        self._stopped = True
        self._bias.stop()
        for turn in self._turns:
            turn.release()

    def _run_group(self, group: int) -> None:
        begin, end = self._groups[group]
        ahead, state = self._ahead[group], self._state
        entries = np.full((end - begin, 1), -1, np.int64)
        following = self._turns[(group + 1) % len(self._groups)]
        seen = GroupGradient(self._bias)
        for step in range(self._layout.steps):
            active = self._active(step, begin, end)
            if active is None:
                return
            ahead.look(step, active)
            self._turns[group].acquire()
            if self._stopped:
                return
            entries[:] = -1
            if not state.decode(entries, active, begin, ahead.counts, ahead.rows, self._meter):
                raise DamagedError("a block's coded bytes are impossible: the file is damaged")
            if group == 0:
                self._done = _report(self._progress, state, self._done)
            following.release()
            seen.add(ahead.counts, ahead.rows, entries[:active, 0])
            ahead.take(step, entries[:active, 0])
            seen.reach(step + 1)

    def _active(self, step: int, begin: int, end: int) -> int | None:
        """Return how many lanes from `begin` on may have an entry at a step, or None if the whole block has none
        left."""
        repeats = self._state.repeats
        if repeats is None:
            return max(0, min(self._layout.active(step), end) - begin)
        return end - begin if (self._state.mix.token_places < repeats.ends).any() else None
