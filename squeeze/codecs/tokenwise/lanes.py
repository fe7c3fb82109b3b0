"""Runs a language model beside the tokenwise coder: lanes, threads and the order in which they take turns.

A block's tokens are cut into lanes of equal length. Encoding knows all tokens, so the model runs over many
positions at once (prefill) in threads of its own, and leaves the logits along each token's path to the
coder. Decoding runs one position of all lanes at a time, in two groups of lanes where there are two threads:
while one group's tokens are decoded, the model runs on the other's. What is coded is the same for any
number of threads, groups and positions at once.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from squeeze.codecs.bitmodels import coder as arithmetic
from squeeze.codecs.bytewise import arrays as bytewise
from squeeze.codecs.tokenwise import model as tokenwise
from squeeze.codecs.tokenwise.arrays import EXTRA, build_mix
from squeeze.codecs.tokenwise.bias import Bias, Seen, Stopped
from squeeze.codecs.tokenwise.presets import TokenPreset
from squeeze.errors import DamagedError
from squeeze.numerics import trie
from squeeze.numerics.team import Team

Progress = Callable[[int], None] | None
_ROWS = 256  # tokens in one prefill
_COUNTED = 32  # rows of counts at a time: 49,152 leaves make 400 kB a row
_NO_COUNTS, _NO_LOGITS, _NO_STARTS = np.zeros((1, 1), np.uint64), np.zeros(0, np.int32), np.zeros((0, 0), np.int64)
MAX_LANES = 1024
MAX_POSITIONS = 1 << 20  # of all lanes' windows together


class Session(Protocol):
    """The state of some lanes of a model."""

    def forward(self, tokens: np.ndarray) -> None:
        """Feed int64 [lanes, n] token ids: n more positions of each of the first lanes."""

    def count(self, rows: np.ndarray, bias: np.ndarray) -> np.ndarray:
        """uint64 [R, leaves + 1], cumulative frequencies of the leaves after the given rows of that call.

        bias: float32 [leaves], added to the logits.
        """


class LanguageModel(Protocol):
    """What the coder needs of a model: its leaves (see trie.py) and sessions."""

    name: str
    identity: str
    context: int  # positions that it was trained on
    start_token: int  # fed first, and in the place of bytes that no token spells
    leaves: np.ndarray  # token id of each leaf
    longest_prefill: int  # positions that may go through at once
    lockstep: int  # lanes that always go through together, ended ones too; 0 where that changes no number

    @property
    def trie(self) -> trie.Trie: ...

    @property
    def size(self) -> int:
        """Bytes of its weights."""

    @property
    def size_of_position(self) -> int:
        """Bytes that a lane keeps of one position."""

    def encode(self, data: bytes) -> np.ndarray: ...

    def session(self, lanes: int, window: int, rows: int, team: Team) -> Session: ...


@dataclass(frozen=True)
class Layout:
    """How a block's entries lie in lanes."""

    entries: int
    lanes: int
    window: int
    lengths: tuple[int, ...]  # bytes of each lane

    def count(self, lane: int) -> int:
        return self.entries // self.lanes + (lane < self.entries % self.lanes)

    @property
    def counts(self) -> np.ndarray:
        return np.array([self.count(lane) for lane in range(self.lanes)], np.int64)

    @property
    def steps(self) -> int:
        return self.count(0)

    @property
    def seen(self) -> int:
        """Positions of a lane's window that there will be: those beyond its last entry need no memory."""
        return min(self.window, -(-self.steps // 16) * 16)

    def active(self, step: int) -> int:
        """Lanes that have an entry at this step: always the first ones."""
        return self.lanes if step < self.count(self.lanes - 1) else self.entries % self.lanes


def _layout(spelled: np.ndarray, lanes: int, window: int) -> Layout:
    """`spelled`: bytes of each entry."""
    ends = np.cumsum(Layout(spelled.size, lanes, window, ()).counts)
    bounds = np.concatenate([[0], np.cumsum(spelled)])[np.concatenate([[0], ends])]
    return Layout(spelled.size, lanes, window, tuple(int(n) for n in np.diff(bounds)))


def memory(model: LanguageModel, preset: TokenPreset, size: int) -> int:
    """About how many bytes coding a text of `size` bytes takes."""
    cache = preset.lanes * (preset.window + _ROWS // preset.lanes + 32) * model.size_of_position
    counts = 2 * _COUNTED * model.leaves.size * 12
    tables = bytewise.table_size(size, preset.bytewise) + model.leaves.size * 128
    return model.size + cache + counts + tables + 8 * size + (150 << 20)


class _Coder:
    """The tokenwise models of one block, and the arithmetic coder."""

    def __init__(self, model: LanguageModel, layout: Layout, preset: TokenPreset, coded: np.ndarray):
        self.trie = model.trie
        self.length = sum(layout.lengths)
        longest = int(np.diff(self.trie.offsets).max())
        self.data = np.zeros(self.length + longest, np.uint8)
        self.model = bytewise.build_model(self.data, preset.bytewise, 0, EXTRA)
        self.mix = build_mix(self.model, self.trie, layout.counts, preset.without)
        self.mix.places[:] = np.cumsum([0, *layout.lengths[:-1]])
        self.ends = np.cumsum(layout.lengths)
        self.coder, self.coded = np.zeros(3, np.uint64), coded


def encode(
    data: bytes, model: LanguageModel, preset: TokenPreset, threads: int = 1, progress: Progress = None
) -> tuple[Layout, bytes] | None:
    """The layout and coded form of a block, or None where it would not be shorter."""
    entries = model.encode(data)
    lanes = min(preset.lanes, entries.size, model.lockstep or MAX_LANES)
    spelled = np.where(entries < 0, 1, np.diff(model.trie.offsets)[np.maximum(entries, 0)])
    layout = _layout(spelled, lanes, preset.window)
    coded = np.zeros(len(data) + tokenwise.spare_bytes(max(int(model.trie.decisions.max()), 16)), np.uint8)
    state = _Coder(model, layout, preset, coded)
    arithmetic.start_encoder(state.coder)
    table = np.full((lanes, layout.steps), -1, np.int64)
    ends = np.cumsum(layout.counts)
    for lane, end in enumerate(ends):
        table[lane, : layout.count(lane)] = entries[end - layout.count(lane) : end]
    done = 0
    with ExitStack() as stack:
        for first, paths in _predictions(model, layout, table, threads, stack):
            part = table[:, first : first + paths.surprises.shape[1]]
            active = np.array([layout.active(first + step) for step in range(part.shape[1])])
            if not tokenwise.code_steps(
                *(state.model, state.mix, state.trie, np.ascontiguousarray(part), _NO_COUNTS, 0, active, state.ends),
                *(paths.logits, paths.starts, paths.surprises, state.coder, coded, False),
            ):
                return None
            done = _report(progress, state, layout, done)
    length = arithmetic.finish_encoder(state.coder, coded)
    return (layout, coded[:length].tobytes()) if length < len(data) else None


def decode(
    payload: bytes,
    layout: Layout,
    model: LanguageModel,
    preset: TokenPreset,
    threads: int = 1,
    progress: Progress = None,
) -> np.ndarray:
    """The bytes that a block was coded from, as uint8; DamagedError where it cannot be so."""
    coded = np.frombuffer(bytearray(payload), np.uint8)
    state = _Coder(model, layout, preset, coded)
    arithmetic.start_decoder(state.coder, coded)
    with ExitStack() as stack:
        done = _Decoding(model, layout, state, threads, stack, progress).run()
    _report(progress, state, layout, done)
    if not np.array_equal(state.mix.places, state.ends):
        raise DamagedError("a block's coded bytes do not fit its lengths: the file is damaged")
    return state.data[: state.length]


def _report(progress: Progress, state: _Coder, layout: Layout, done: int) -> int:
    total = int(state.mix.places.sum() - sum(np.cumsum([0, *layout.lengths[:-1]])))
    if progress:
        progress(total - done)
    return total


def _groups(model: LanguageModel, lanes: int, threads: int) -> list[tuple[int, int]]:
    """Ranges of lanes that go through the model apart: two where there are threads for both."""
    if threads < 2 or lanes < 2 or model.lockstep:
        return [(0, lanes)]
    half = -(-lanes // 2)
    return [(0, half), (half, lanes)]


def _team(threads: int, groups: int, stack: ExitStack) -> Team:
    team = Team(max(1, threads // groups))
    stack.callback(team.close)
    return team


@dataclass(frozen=True)
class _Paths:
    """What a model says of the entries of some lanes at some steps."""

    logits: np.ndarray  # int32: those along each entry's path, one path after the other
    starts: np.ndarray  # int64 [lanes, steps]: where each path begins
    surprises: np.ndarray  # int64 [lanes, steps]


def _predictions(
    model: LanguageModel, layout: Layout, table: np.ndarray, threads: int, stack: ExitStack
) -> Iterator[tuple[int, _Paths]]:
    """(first step, paths of all lanes for some steps), in order, computed ahead in threads."""
    groups = _groups(model, layout.lanes, threads)
    steps = max(1, min(_ROWS // -(-layout.lanes // len(groups)), model.longest_prefill))
    bias = Bias(model.leaves.size, layout.lanes, len(groups))
    runs = [
        _Prefill(model, layout.seen, table[a:b], steps, bias, _team(threads, len(groups), stack)) for a, b in groups
    ]
    firsts = range(0, layout.steps, steps)
    if threads < 2:
        for first in firsts:
            yield first, _joined([run(first) for run in runs])
        return
    pools = [ThreadPoolExecutor(1) for _ in runs]  # one each: a session's calls come in order
    for pool in pools:
        stack.callback(pool.shutdown, wait=True, cancel_futures=True)
    stack.callback(bias.stop)
    waiting: list[list[Future[_Paths]]] = []
    for first in firsts:
        waiting.append([pool.submit(run, first) for pool, run in zip(pools, runs, strict=True)])
        if len(waiting) == 3:
            yield firsts[(first // steps) - 2], _results(waiting.pop(0))
    for i, parts in enumerate(waiting):
        yield firsts[len(firsts) - len(waiting) + i], _results(parts)


def _results(parts: Sequence[Future[_Paths]]) -> _Paths:
    """All parts joined; where some failed, what the first that did so by itself raised."""
    failures = [failure for part in parts if (failure := part.exception())]
    for failure in sorted(failures, key=lambda failure: isinstance(failure, Stopped)):
        raise failure
    return _joined([part.result() for part in parts])


def _joined(parts: Sequence[_Paths]) -> _Paths:
    if len(parts) == 1:
        return parts[0]
    moved = np.cumsum([0, *(part.logits.size for part in parts[:-1])])
    return _Paths(
        np.concatenate([part.logits for part in parts]),
        np.concatenate([part.starts + shift for part, shift in zip(parts, moved, strict=True)]),
        np.concatenate([part.surprises for part in parts]),
    )


class _Prefill:
    """Runs a model over known entries int64 [lanes, steps], a few steps at a time."""

    def __init__(self, model: LanguageModel, window: int, table: np.ndarray, steps: int, bias: Bias, team: Team):
        self._model, self._table, self._steps = model, table, steps
        self._bias, self._seen = bias, Seen(bias)
        self._session = model.session(table.shape[0], window, table.shape[0] * steps, team)

    def __call__(self, first: int) -> _Paths:
        """The paths of the steps from `first` on; to be called in order."""
        try:
            return self._run(first)
        except BaseException:
            self._bias.stop()
            raise

    def _run(self, first: int) -> _Paths:
        model, entries = self._model, np.ascontiguousarray(self._table[:, first : first + self._steps])
        lanes, steps = entries.shape
        before = self._table[:, first - 1 : first] if first else np.full((lanes, 1), -1)
        fed = np.concatenate([before, entries[:, :-1]], axis=1)
        self._session.forward(_ids(model, fed))
        flat = entries.ravel()
        sizes = np.where(flat < 0, 0, model.trie.decisions[np.maximum(flat, 0)])
        starts = np.cumsum(np.concatenate([[0], sizes]))
        logits, surprises = np.zeros(starts[-1], np.int32), np.zeros(flat.size, np.int64)
        every = self._bias.round_steps
        begin = first
        while begin < first + steps:
            end = min(begin - begin % every + every, first + steps)
            picked = (np.arange(lanes)[:, None] * steps + np.arange(begin - first, end - first)).ravel()
            for rows in np.split(picked, range(_COUNTED, picked.size, _COUNTED)):
                counts = self._session.count(rows, self._bias.values(begin))
                surprise = np.zeros(rows.size, np.int64)
                tokenwise.follow(model.trie, counts, flat[rows], starts[rows], logits, surprise)
                surprises[rows] = surprise
                self._seen.add(counts, flat[rows])
            self._seen.reach(end)
            begin = end
        return _Paths(logits, starts[:-1].reshape(lanes, steps), surprises.reshape(lanes, steps))


def _ids(model: LanguageModel, entries: np.ndarray) -> np.ndarray:
    """Token ids int64 of entries: a byte that no token spells is the start token to the model."""
    return np.where(entries < 0, model.start_token, model.leaves[np.maximum(entries, 0)]).astype(np.int64)


class _Decoding:
    """Groups of lanes that take turns: each runs its model, then decodes a token of each of its lanes."""

    def __init__(
        self, model: LanguageModel, layout: Layout, state: _Coder, threads: int, stack: ExitStack, progress: Progress
    ):
        self._model, self._layout, self._state, self._progress = model, layout, state, progress
        self._groups = _groups(model, layout.lanes, threads)
        self._sessions = [
            model.session(b - a, layout.seen, b - a, _team(threads, len(self._groups), stack)) for a, b in self._groups
        ]
        self._bias = Bias(model.leaves.size, layout.lanes, len(self._groups))
        self._turns = [threading.Semaphore(0) for _ in self._groups]
        self._stopped = False
        self._done = 0

    def run(self) -> int:
        """Decode everything; returns how many bytes `progress` was told of."""
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

    def _guarded(self, g: int) -> None:
        try:
            self._run_group(g)
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

    def _run_group(self, g: int) -> None:
        begin, end = self._groups[g]
        session, state, layout = self._sessions[g], self._state, self._layout
        entries = np.full((end - begin, 1), -1, np.int64)
        following = self._turns[(g + 1) % len(self._groups)]
        seen = Seen(self._bias)
        for step in range(layout.steps):
            active = max(0, min(layout.active(step), end) - begin)
            counts = _NO_COUNTS
            if active:
                session.forward(_ids(self._model, entries if self._model.lockstep else entries[:active]))
                counts = session.count(np.arange(active), self._bias.values(step))
            self._turns[g].acquire()
            if self._stopped:
                return
            if not tokenwise.code_steps(
                *(state.model, state.mix, state.trie, entries, counts, begin, np.array([active]), state.ends),
                *(_NO_LOGITS, _NO_STARTS, _NO_STARTS, state.coder, state.coded, True),
            ):
                raise DamagedError("a block's coded bytes are impossible: the file is damaged")
            if g == 0:
                self._done = _report(self._progress, state, layout, self._done)
            following.release()
            seen.add(counts, entries[:active, 0])
            seen.reach(step + 1)
