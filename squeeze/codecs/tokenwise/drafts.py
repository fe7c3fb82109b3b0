"""Running a language model ahead of the decoder on guessed tokens (speculative decoding: Leviathan, Kalman and Matias
2023, arXiv:2211.17192).

One token of a lane takes the model about as long as several, since its weights are read once. So the next tokens are
guessed, and the model runs on them too. Its predictions are kept up to the first wrong guess. Guesses never change the
decoded bytes.
"""

from collections.abc import Callable, Iterator
from typing import Any, Protocol, cast

import numpy as np

from squeeze.codecs.tokenwise.arrays import TokenMix
from squeeze.codecs.tokenwise.bias import Bias
from squeeze.codecs.tokenwise.layout import TAIL, Feed, LaneLayout
from squeeze.codecs.tokenwise.repeats import Repeats
from squeeze.lm.language_model import FreeLaneStates, LanguageModel
from squeeze.numerics.frequencies import GROUP, allocate
from squeeze.numerics.team import Team

__all__ = [
    "Frequencies",
    "Guess",
    "Past",
    "PastWithRepeats",
    "frequencies",
    "guess_known",
    "guess_matches",
    "rule_out",
    "token_ids",
]

# guess(lane, step, most): entries int64 to feed from that step on, and the step predicted after each, -1 for none.
Guess = Callable[[int, int, int], tuple[np.ndarray, np.ndarray]]
ROWS = 64  # rows of frequencies of a group; 49,152 leaves make 200 kB per row
_MOST, _MOST_WITH_REPEATS = 7, 2  # guesses at once from a match; wrong ones cost time


def token_ids(model: LanguageModel, entries: np.ndarray) -> np.ndarray:
    """Return the token ids of entries, int64; an escaped byte is the start token to the model."""
    return np.where(entries < 0, model.start_token, model.leaves[np.maximum(entries, 0)]).astype(np.int64)


def rule_out(cdf: Any, rows: np.ndarray, leaves: np.ndarray) -> None:
    """Set the frequency of one leaf in each of some rows to almost 0.

    Args:
        cdf: frequencies, changed in place.
        rows: int64 [R], rows of `cdf`.
        leaves: int64 [R], -1 for none.
    """
    for i in np.flatnonzero(leaves >= 0):
        row, leaf = rows[i], leaves[i]
        cdf.sums[row, leaf // GROUP + 1 :] -= np.uint64(cdf.parts[row, leaf])
        cdf.parts[row, leaf] = 0


def guess_matches(mix: TokenMix, repeats: Repeats | None) -> Guess:
    """Return a guess of the entries that followed the lane's match."""

    def guess(lane: int, step: int, most: int) -> tuple[np.ndarray, np.ndarray]:
        pointer, length = mix.token_matches[lane]
        limit = _MOST
        if repeats is not None:  # certain entries bypass the model and need no guess
            limit = _MOST_WITH_REPEATS if repeats.ruled_out[lane] < 0 else 0
        entries = mix.tokens[pointer : pointer + min(length, most, limit)]
        wrong = np.flatnonzero(entries < 0)  # not coded yet, or an escaped byte
        entries = entries[: wrong[0]] if wrong.size else entries
        return entries, step + 1 + np.arange(entries.size)

    return guess


def guess_known(feed: Feed) -> Guess:
    """Return a guess of entries that are known."""
    steps = np.full(feed.fed.shape, -1, np.int64)
    there = np.arange(feed.steps) < feed.counts[:, None]
    steps[np.nonzero(there)[0], feed.rows[there]] = np.nonzero(there)[1]

    def guess(lane: int, step: int, most: int) -> tuple[np.ndarray, np.ndarray]:
        if step >= feed.counts[lane]:
            return feed.fed[lane, :0], steps[lane, :0]
        first = feed.rows[lane, step] + 1
        last = min(first + most, feed.rows[lane, feed.counts[lane] - 1] + 1)
        return feed.fed[lane, first:last], steps[lane, first:last]

    return guess


class Past:
    """The entries of lanes which all go through the model."""

    tail = 0

    def __init__(self, layout: LaneLayout):
        self._layout = layout

    def waiting_lanes(self, begin: int, active: int) -> np.ndarray:
        """Return the lanes from `begin` on, int64, with an entry at a step for which the first `active` may have
        one."""
        return np.arange(active)

    def remaining(self, lane: int, step: int) -> int:
        """Return the number of entries that a lane has left before a step."""
        return self._layout.count(lane) - step

    def rule_out(self, begin: int, lanes: np.ndarray, counts: Any, rows: np.ndarray) -> None:
        """Remove entries that lanes cannot have next from their frequencies.

        Args:
            begin: the group's first lane.
            lanes: int64, lanes counted from `begin`.
            counts: frequencies, changed in place.
            rows: int64 [lanes of the group], rows of `counts`.
        """

    def fed(self, begin: int, entries: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
        """Yield lanes from `begin` on that had an entry at this step, and the entries to feed before the next,
        int64."""
        yield from enumerate(entries[:, None])


class PastWithRepeats(Past):
    """The entries of lanes in which runs of repeats bypass the model."""

    tail = TAIL

    def __init__(self, mix: TokenMix, repeats: Repeats):
        self._mix, self._repeats = mix, repeats
        self._places = mix.token_places.copy()

    def waiting_lanes(self, begin: int, active: int) -> np.ndarray:
        lanes = slice(begin, begin + active)
        self._places[lanes] = self._mix.token_places[lanes]
        return np.flatnonzero(self._places[lanes] < self._repeats.ends[lanes])

    def remaining(self, lane: int, step: int) -> int:
        return int(self._repeats.ends[lane] - self._mix.token_places[lane])

    def rule_out(self, begin: int, lanes: np.ndarray, counts: Any, rows: np.ndarray) -> None:
        rule_out(counts, rows[lanes], self._repeats.ruled_out[begin + lanes])

    def fed(self, begin: int, entries: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
        for lane in range(entries.size):
            before, now = self._places[begin + lane], self._mix.token_places[begin + lane]
            if now > before:
                tail = max(before + 1, now - TAIL)
                yield lane, self._mix.tokens[[before, *range(tail, now)]].astype(np.int64)


class Frequencies(Protocol):
    """Frequencies of the next entry of each lane from `begin` to `end` of a layout.

    After `look`, a lane's frequencies are row `rows[lane]` of `counts`, a Cdf.
    """

    counts: Any
    rows: np.ndarray

    def look(self, step: int, active: int) -> None:
        """Compute the frequencies of the first `active` lanes."""

    def take(self, step: int, entries: np.ndarray) -> None:
        """Take the entries of the first lanes at a step, int64."""


def frequencies(
    model: LanguageModel,
    layout: LaneLayout,
    begin: int,
    end: int,
    guess: Guess,
    bias: Bias,
    team: Team,
    past: Past,
) -> Frequencies:
    """Return the frequencies of some lanes, computed ahead for guessed entries unless lanes run in lockstep.

    Args:
        model: the language model.
        layout: of the block.
        begin: first lane.
        end: the lane after the last.
        guess: guesses next entries.
        bias: of logits, shared by all lanes.
        team: threads of the model.
        past: entries of the lanes.
    """
    if model.lockstep:
        return _Lockstep(model, layout, end - begin, bias, team)
    return _Speculative(model, layout, begin, end, guess, bias, team, past)


class _Lockstep:
    """Frequencies of all lanes, one step after the other."""

    def __init__(self, model: LanguageModel, layout: LaneLayout, lanes: int, bias: Bias, team: Team):
        self._model, self._bias = model, bias
        self._session = model.session(lanes, layout.used_window, lanes, team)
        self._entries = np.full((lanes, 1), -1, np.int64)
        self.counts = allocate(lanes, model.leaves.size)
        self.rows = np.arange(lanes)

    def look(self, step: int, active: int) -> None:
        if active:
            self._session.forward(token_ids(self._model, self._entries))
            self._session.cdf(np.arange(active), self._bias.values(step), self.counts, self.rows[:active])

    def take(self, step: int, entries: np.ndarray) -> None:
        self._entries[: len(entries), 0] = entries


class _Speculative:
    """Frequencies of several steps of a lane at once, as far as guesses reach."""

    def __init__(
        self,
        model: LanguageModel,
        layout: LaneLayout,
        begin: int,
        end: int,
        guess: Guess,
        bias: Bias,
        team: Team,
        past: Past,
    ):
        lanes = end - begin
        self._depth = max(1, ROWS // lanes)
        width = self._depth + past.tail
        self._model, self._begin, self._guess, self._bias, self._past = model, begin, guess, bias, past
        self._session = cast(FreeLaneStates, model.session(lanes, layout.used_window, lanes * width, team))
        self._waiting = [np.full(1, -1, np.int64)] * lanes  # known entries that each lane has yet to feed
        self._entries = np.full((lanes, width), -1, np.int64)  # entries that each lane was fed last, guesses included
        self._steps = np.full((lanes, width), -1, np.int64)  # step predicted after each; -1 for none
        self._made, self._used = np.zeros(lanes, np.int64), np.zeros(lanes, np.int64)  # places in these rows
        self.counts = allocate(lanes * self._depth, model.leaves.size)
        self.rows = np.arange(lanes) * self._depth

    def look(self, step: int, active: int) -> None:
        there = self._past.waiting_lanes(self._begin, active)
        lanes = np.array([lane for lane in there if self._waiting[lane].size], np.int64)
        if lanes.size:
            self._feed(step, lanes)
        self._past.rule_out(self._begin, there, self.counts, self.rows)

    def _feed(self, step: int, lanes: np.ndarray) -> None:
        """Run the model on waiting entries and on guesses after them."""
        fed = np.zeros(lanes[-1] + 1, np.int64)
        fed[lanes] = [self._fill(int(lane), step) for lane in lanes]
        tokens = token_ids(self._model, self._entries[: fed.size, : fed.max()])
        self._session.forward(tokens, fed)
        self._made[lanes], self.rows[lanes] = fed[lanes], lanes * self._depth
        steps = self._steps[: fed.size, : fed.max()]
        asked = (np.arange(fed.max()) < fed[:, None]) & (steps >= 0)
        places = (np.arange(fed.size)[:, None] * self._depth + np.cumsum(asked, 1) - 1)[asked]
        rows = (np.cumsum(fed)[:, None] - fed[:, None] + np.arange(fed.max()))[asked]
        rounds = steps[asked] // self._bias.round_steps
        for number in range(rounds.min(), rounds.max() + 1):
            some = np.flatnonzero(rounds == number)
            values = self._bias.values(number * self._bias.round_steps)
            self._session.cdf(rows[some], values, self.counts, places[some])

    def _fill(self, lane: int, step: int) -> int:
        """Write a lane's waiting entries and guesses to its row, and return their number.

        Guesses reach no further than the next round of biases.
        """
        waiting, every = self._waiting[lane], self._bias.round_steps
        known = waiting.size
        self._waiting[lane] = waiting[:0]
        self._entries[lane, :known], self._steps[lane, :known] = waiting, -1
        self._steps[lane, known - 1], self._used[lane] = step, known - 1
        most = min(self._entries.shape[1] - known, self._past.remaining(self._begin + lane, step) - 1)
        if most <= 0:
            return known
        guessed, steps = self._guess(self._begin + lane, step, most)
        allowed = (steps < step - step % every + 2 * every) & (np.cumsum(steps >= 0) < self._depth)
        count = int(np.flatnonzero(~allowed)[0]) if not allowed.all() else steps.size
        self._entries[lane, known : known + count] = guessed[:count]
        self._steps[lane, known : known + count] = steps[:count]
        return known + count

    def take(self, step: int, entries: np.ndarray) -> None:
        back = np.zeros(entries.size, np.int64)
        for lane, fed in self._past.fed(self._begin, entries):
            used, made, right = self._used[lane], self._made[lane], 0
            while right < fed.size and used + 1 < made and self._entries[lane, used + 1] == fed[right]:
                used, right = used + 1, right + 1
            if right == fed.size and self._steps[lane, used] == step + 1:
                self._used[lane] = used
                self.rows[lane] += 1
                continue
            if right == fed.size:  # the entry after it was guessed wrong
                used, right = used - 1, right - 1
            back[lane] = made - used - 1
            self._waiting[lane] = fed[right:]
        if back.any():
            self._session.take_back(back)
