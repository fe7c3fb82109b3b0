"""Mixing lanes in batches beside mixing them in turns: sizes, and the time of mixing alone, by threads.

The language model runs once for each number of lanes, and what it said is mixed in all ways. These take turns, and the
medians count. Time is that of the processor for what one thread does alone, and that of the clock beside.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np

from bench.entry import Row
from bench.shared.texts import read
from squeeze.codecs.stream import levels
from squeeze.codecs.tokenwise import lanes, prefill
from squeeze.codecs.tokenwise.feed import Feed
from squeeze.codecs.tokenwise.layout import LaneLayout
from squeeze.codecs.tokenwise.presets import TokenPreset
from squeeze.lm import models
from squeeze.lm.language_model import LanguageModel


@dataclass(frozen=True)
class _Predicted:
    """What the language model said of a text in some lanes."""

    model: LanguageModel
    preset: TokenPreset
    spelled: np.ndarray
    feed: Feed
    steps: list[tuple[int, prefill.Paths]]
    seconds: float

    def layout(self, batch: int) -> LaneLayout:
        return LaneLayout.of(self.spelled, self.preset.lanes, self.preset.window, batch)

    def mixed(self, batch: int, threads: int) -> tuple[int, float]:
        """Coded bytes, and seconds by the clock."""
        layout = self.layout(batch)
        with ExitStack() as stack:
            mixing = lanes.mixing_of(self.model, layout, self.preset, threads, stack)
            begin = time.perf_counter()
            for first, paths in self.steps:
                columns = np.ascontiguousarray(self.feed.table[:, first : first + paths.starts.shape[1]])
                active = np.array([layout.active(first + step) for step in range(columns.shape[1])])
                if not mixing.encode(columns, active, paths):
                    sys.exit("Error: the text becomes no shorter")
            size = len(mixing.finish())
            return size + len(layout.to_bytes()), time.perf_counter() - begin


def rows(options: argparse.Namespace) -> Iterator[Row]:
    data = read(options.file, "enwik8.1m", options.measured)
    model, first = models.find(options.model).network, 0
    for count in map(int, options.lanes.split(",")):
        found = _predict(model, data, count, options.threads)
        batches = {min(batch, found.preset.lanes) for batch in map(int, options.batches.split(","))}
        ways = [(0, 1), *((batch, threads) for batch in sorted(batches) for threads in (1, options.threads))]
        runs: dict[tuple[int, int], list[tuple[int, float]]] = {way: [] for way in ways}
        for _ in range(options.repeat + 1):
            for way, kept in runs.items():
                kept.append(found.mixed(*way))
        first = first or runs[0, 1][0][0]
        for (batch, threads), kept in runs.items():
            seconds = {way: statistics.median(took for _, took in runs[way][1:]) for way in ways}
            yield {
                "file": options.file.name if options.file else "enwik8.1m",
                "of": len(data),
                "lanes": found.preset.lanes,
                "batch": batch,
                "threads": threads,
                "bytes": kept[0][0],
                "ratio": round(kept[0][0] / runs[0, 1][0][0], 5),
                "of_first": round(kept[0][0] / first, 5),
                "tokens_per_second": round(found.spelled.size / seconds[batch, threads]),
                "of_turns": round(seconds[0, 1] / seconds[batch, threads], 3),
                "of_one_thread": round(seconds[batch, 1] / seconds[batch, threads], 3),
                "of_model": round(seconds[batch, threads] / found.seconds, 3),
            }


def _predict(model: LanguageModel, data: bytes, count: int, threads: int) -> _Predicted:
    entries = model.encode(data)
    preset = levels.LEVELS[8].text.preset(len(data), model.context, min(count, entries.size), None)
    spelled = np.where(entries < 0, 1, np.diff(model.trie.offsets)[np.maximum(entries, 0)])
    layout = LaneLayout.of(spelled, preset.lanes, preset.window)
    feed = Feed.of_all(entries, layout)
    begin = time.perf_counter()
    with ExitStack() as stack:
        steps = list(prefill.predictions(model, layout, feed, threads, stack))
    return _Predicted(model, preset, spelled, feed, steps, time.perf_counter() - begin)
