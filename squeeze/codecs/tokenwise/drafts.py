"""Running a language model ahead of the decoder over entries that are only guessed (speculative decoding: Leviathan,
Kalman and Matias 2023, arXiv:2211.17192).

One token of one lane takes the model about as long as a few of them: its weights are read once. So what follows is
guessed, and the model runs over that too. What it says holds as long as the guesses prove right; from the first wrong
one on it is forgotten. No guess changes what is decoded.
"""

from collections.abc import Callable
from typing import Any, Protocol, cast

import numpy as np

from squeeze.codecs.tokenwise.arrays import TokenMix
from squeeze.codecs.tokenwise.bias import Bias
from squeeze.codecs.tokenwise.counting import HOST, Counting
from squeeze.codecs.tokenwise.layout import LaneLayout
from squeeze.lm.language_model import FreeLaneStates, LanguageModel
from squeeze.numerics.team import Team

__all__ = ["Frequencies", "Guess", "follow_matches", "frequencies", "token_ids"]

Guess = Callable[[int, int, int], np.ndarray]  # of lane, step and most: int64, entries that may come from that step on
ROWS = 64  # of frequencies that are kept of a group: 49,152 leaves make 400 kB a row
_MOST = 7  # guesses at a time by a match: they cost time where they are wrong


def token_ids(model: LanguageModel, entries: np.ndarray) -> np.ndarray:
    """Token ids int64 of entries: a byte that no token spells is the start token to the model."""
    return np.where(entries < 0, model.start_token, model.leaves[np.maximum(entries, 0)]).astype(np.int64)


def follow_matches(mix: TokenMix) -> Guess:
    """Guesses as many entries as the lane's match is long: those that followed where it was found."""

    def guess(lane: int, step: int, most: int) -> np.ndarray:
        pointer, length = mix.token_matches[lane]
        entries = mix.tokens[pointer : pointer + min(length, most, _MOST)]
        wrong = np.flatnonzero(entries < 0)  # not there yet, or a byte
        return entries[: wrong[0]] if wrong.size else entries

    return guess


class Frequencies(Protocol):
    """The frequencies of the next entry of each of some lanes, the ones from `begin` to `end` of a layout.

    counts: uint64 [rows, leaves + 1]; rows: int64 [lanes], which row of it is a lane's, after `look`.
    """

    counts: Any  # where `Counting` has them
    rows: np.ndarray

    def look(self, step: int, active: int) -> None:
        """Have the frequencies of the first `active` lanes ready."""

    def take(self, entries: np.ndarray) -> None:
        """int64: what the first lanes' entries proved to be."""


def frequencies(
    model: LanguageModel,
    layout: LaneLayout,
    begin: int,
    end: int,
    guess: Guess,
    bias: Bias,
    team: Team,
    counting: Counting = HOST,
) -> Frequencies:
    """Of a model's lanes from `begin` to `end`: guessed ahead, unless they go in lockstep."""
    if model.lockstep:
        return _InStep(model, layout, end - begin, bias, team, counting)
    return _Ahead(model, layout, begin, end, guess, bias, team, counting)


class _InStep:
    """One step of all lanes after the other."""

    def __init__(
        self, model: LanguageModel, layout: LaneLayout, lanes: int, bias: Bias, team: Team, counting: Counting
    ):
        self._model, self._bias = model, bias
        self._session = model.session(lanes, layout.seen, lanes, team)
        self._entries = np.full((lanes, 1), -1, np.int64)
        self.counts = counting.room(lanes, model.leaves.size)
        self.rows = np.arange(lanes)

    def look(self, step: int, active: int) -> None:
        if active:
            self._session.forward(token_ids(self._model, self._entries))
            self._session.cdf(np.arange(active), self._bias.values(step), self.counts, self.rows[:active])

    def take(self, entries: np.ndarray) -> None:
        self._entries[: len(entries), 0] = entries


class _Ahead:
    """As many steps of a lane at once as its guesses reach."""

    def __init__(
        self,
        model: LanguageModel,
        layout: LaneLayout,
        begin: int,
        end: int,
        guess: Guess,
        bias: Bias,
        team: Team,
        counting: Counting,
    ):
        lanes = end - begin
        depth = max(1, ROWS // lanes)
        self._model, self._layout, self._begin, self._guess, self._bias = model, layout, begin, guess, bias
        self._session = cast(FreeLaneStates, model.session(lanes, layout.seen, lanes * depth, team))
        self._entries = np.full((lanes, depth), -1, np.int64)  # the latest of each lane, and guesses after it
        self._made, self._used = np.zeros(lanes, np.int64), np.zeros(lanes, np.int64)  # rows of each lane
        self.counts = counting.room(lanes * depth, model.leaves.size)
        self.rows = np.arange(lanes) * depth

    def look(self, step: int, active: int) -> None:
        """Run the model on those of the first `active` lanes of which nothing is known."""
        lanes = np.flatnonzero(self._used[:active] == self._made[:active])
        if not lanes.size:
            return
        fed = np.zeros(active, np.int64)
        fed[lanes] = 1
        if self._entries.shape[1] > 1:
            fed[lanes] += [self._fill(int(lane), step) for lane in lanes]
        tokens = token_ids(self._model, self._entries[:active, : fed.max()])
        self._session.forward(tokens, fed)
        self._made[lanes], self._used[lanes] = fed[lanes], 0
        depth = self._entries.shape[1]
        self.rows[lanes] = lanes * depth
        offsets = np.arange(fed.max())
        is_fed = offsets < fed[:, None]
        steps = np.broadcast_to(step + offsets, is_fed.shape)[is_fed]
        places = (np.arange(active)[:, None] * depth + offsets)[is_fed]
        rounds = steps // self._bias.round_steps
        for number in range(rounds.min(), rounds.max() + 1):
            rows = np.flatnonzero(rounds == number)
            self._session.cdf(rows, self._bias.values(number * self._bias.round_steps), self.counts, places[rows])

    def _fill(self, lane: int, step: int) -> int:
        """Put guesses after a lane's latest entry; how many. They reach no further than the next round of biases."""
        every = self._bias.round_steps
        most = min(
            self._entries.shape[1] - 1,
            self._layout.count(self._begin + lane) - step - 1,
            every - step % every + every - 1,
        )
        guessed = self._guess(self._begin + lane, step, most)[:most] if most > 0 else ()
        self._entries[lane, 1 : 1 + len(guessed)] = guessed
        return len(guessed)

    def take(self, entries: np.ndarray) -> None:
        active = len(entries)
        lanes = np.arange(active)
        self._used[:active] += 1
        used, made = self._used[:active], self._made[:active]
        guessed = self._entries[lanes, np.minimum(used, self._entries.shape[1] - 1)]
        wrong = (used < made) & (guessed != entries)
        if wrong.any():
            self._session.take_back(np.where(wrong, made - used, 0))
            made[wrong] = used[wrong]
        over = used == made
        self._entries[:active, 0][over] = entries[over]
        self.rows[:active] += 1
