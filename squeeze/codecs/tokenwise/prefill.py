"""Running a language model over known tokens: many positions at once, in threads, ahead of the coder."""

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from typing import cast

import numpy as np

from squeeze.codecs.tokenwise.bias import Bias, GroupGradient, Stopped
from squeeze.codecs.tokenwise.drafts import rule_out, token_ids
from squeeze.codecs.tokenwise.layout import Feed, LaneLayout
from squeeze.codecs.tokenwise.model import path_logits
from squeeze.lm.language_model import FreeLaneStates, LanguageModel
from squeeze.numerics import frequencies
from squeeze.numerics.team import Team

ROWS = 256  # tokens of a prefill
FREQUENCY_ROWS = 32  # rows of frequencies at once; 49,152 leaves make 200 kB per row


def groups_of(model: LanguageModel, lanes: int, threads: int, least: int = 2) -> list[tuple[int, int]]:
    """Return ranges of lanes that run separately: two if there are enough threads and lanes.

    Args:
        model: the language model.
        lanes: number of lanes.
        threads: number of threads.
        least: fewest lanes for two groups.
    """
    if threads < 2 or lanes < least or model.lockstep:
        return [(0, lanes)]
    half = -(-lanes // 2)
    return [(0, half), (half, lanes)]


def team_of(threads: int, groups: int, stack: ExitStack) -> Team:
    """Return a team of threads for a group of lanes.

    Args:
        threads: number of threads of all groups.
        groups: number of groups.
        stack: closes the team.
    """
    team = Team(max(1, threads // groups))
    stack.callback(team.close)
    return team


@dataclass(frozen=True)
class Paths:
    """The language model's predictions for entries of some lanes at some steps."""

    logits: np.ndarray  # int32: logits along each entry's path, one path after the other
    starts: np.ndarray  # int64 [lanes, steps]: first logit of each path
    top_nlls: np.ndarray  # int64 [lanes, steps]: -ln(p) of the top token, see model.top_nll


def predictions(
    model: LanguageModel,
    layout: LaneLayout,
    feed: Feed,
    threads: int,
    stack: ExitStack,
) -> Iterator[tuple[int, Paths]]:
    """Yield (first step, paths of all lanes for some steps) in order, computed ahead in threads.

    Args:
        model: the language model.
        layout: lanes of the block.
        feed: what the model is fed.
        threads: number of threads.
        stack: closes the threads.
    """
    groups = groups_of(model, layout.lanes, threads)
    most = max(1, min(ROWS // -(-layout.lanes // len(groups)), model.longest_prefill))
    bounds = feed.bounds(most)
    most = max(most, feed.most_at_once)
    bias = Bias(model.leaves.size, layout.lanes, len(groups))
    runs = [
        _Prefill(model, layout.used_window, feed.of(a, b), most, bias, team_of(threads, len(groups), stack))
        for a, b in groups
    ]
    if threads < 2:
        for first, end in pairwise(bounds):
            yield first, _joined([run(first, end) for run in runs])
        return
    pools = [ThreadPoolExecutor(1) for _ in runs]  # one each, since calls of a session must be in order
    for pool in pools:
        stack.callback(pool.shutdown, wait=True, cancel_futures=True)
    stack.callback(bias.stop)
    waiting: deque[tuple[int, list[Future[Paths]]]] = deque()
    for first, end in pairwise(bounds):
        waiting.append((first, [pool.submit(run, first, end) for pool, run in zip(pools, runs, strict=True)]))
        if len(waiting) == 3:
            done, futures = waiting.popleft()
            yield done, _results(futures)
    for done, futures in waiting:
        yield done, _results(futures)


def _results(futures: Sequence[Future[Paths]]) -> Paths:
    """Join the results of all groups; if some failed, raise the first error that is not a consequence of another."""
    failures = [failure for future in futures if (failure := future.exception())]
    for failure in sorted(failures, key=lambda failure: isinstance(failure, Stopped)):
        raise failure
    return _joined([future.result() for future in futures])


def _joined(runs: Sequence[Paths]) -> Paths:
    if len(runs) == 1:
        return runs[0]
    moved = np.cumsum([0, *(run.logits.size for run in runs[:-1])])
    return Paths(
        np.concatenate([run.logits for run in runs]),
        np.concatenate([run.starts + shift for run, shift in zip(runs, moved, strict=True)]),
        np.concatenate([run.top_nlls for run in runs]),
    )


class _Prefill:
    """A run of the model over the entries of some lanes, a few steps at a time."""

    def __init__(
        self,
        model: LanguageModel,
        window: int,
        feed: Feed,
        most: int,
        bias: Bias,
        team: Team,
    ):
        self._model, self._feed = model, feed
        self._bias, self._seen = bias, GroupGradient(bias)
        lanes = feed.counts.size
        self._session = model.session(lanes, window, lanes * most, team)
        self._cdf = frequencies.allocate(FREQUENCY_ROWS, model.leaves.size)

    def __call__(self, first: int, end: int) -> Paths:
        """Return the paths of the steps from `first` to `end`; calls must be in order."""
        try:
            return self._run(first, end)
        except BaseException:
            self._bias.stop()
            raise

    def _run(self, first: int, end: int) -> Paths:
        model, feed = self._model, self._feed
        entries, ruled_out = (np.ascontiguousarray(part[:, first:end]) for part in (feed.table, feed.ruled_out))
        lanes, steps = entries.shape
        fed, counts, rows = feed.part(first, end)
        tokens = token_ids(model, fed)
        if counts is None:
            self._session.forward(tokens)
        elif counts.any():
            cast(FreeLaneStates, self._session).forward(tokens, counts)
        flat = entries.ravel()
        sizes = np.where(flat < 0, 0, model.trie.decisions[np.maximum(flat, 0)])
        starts = np.cumsum(np.concatenate([[0], sizes]))
        logits, top_nlls = np.zeros(starts[-1], np.int32), np.zeros(flat.size, np.int64)
        every = self._bias.round_steps
        begin = first
        while begin < end:
            until = min(begin - begin % every + every, end)
            there = feed.counts[:, None] > np.arange(begin, until)
            picked = (np.arange(lanes)[:, None] * steps + np.arange(begin - first, until - first))[there]
            for asked in np.split(picked, range(FREQUENCY_ROWS, picked.size, FREQUENCY_ROWS)):
                places, nlls = np.arange(asked.size), np.zeros(asked.size, np.int64)
                self._session.cdf(rows.ravel()[asked], self._bias.values(begin), self._cdf, places)
                rule_out(self._cdf, places, ruled_out.ravel()[asked])
                path_logits(model.trie, self._cdf, flat[asked], starts[asked], logits, nlls)
                top_nlls[asked] = nlls
                self._seen.add(self._cdf, places, flat[asked])
            self._seen.reach(until)
            begin = until
        return Paths(logits, starts[:-1].reshape(lanes, steps), top_nlls.reshape(lanes, steps))
