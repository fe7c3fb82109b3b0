"""Entries that a match predicts bypass the language model, and every decoder knows which."""

import io
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

import squeeze
from squeeze.codecs.stream.index import read_index
from squeeze.codecs.tokenwise import lanes, repeats
from squeeze.codecs.tokenwise.layout import MAX_LANES_WITH_REPEATS, Feed, LaneLayout
from squeeze.errors import DamagedError
from squeeze.lm import models
from squeeze.lm.llama import LlamaLanes
from tests.makers import inputs
from tests.makers.cases import all_slow_but
from tests.makers.mutations import mutate
from tests.makers.tokenwise import TEXT, language_alone, preset


def _repeated(seed: int, times: int = 5) -> bytes:
    """Return beginnings of a text of many lengths, with a few new bytes between them, some of which no token spells."""
    random = np.random.default_rng(seed)
    parts = []
    for i in range(times):
        parts.append(TEXT[: int(random.integers(200, 700))])
        parts.append(bytes(random.integers(97, 123, int(random.integers(0, 5))).astype(np.uint8)))
        parts.append(b"\xff" * (i % 3 == 1))
    return b"".join(parts)


def _feed(model, data: bytes, layout: LaneLayout) -> tuple[Feed, np.ndarray, np.ndarray]:
    entries = model.encode(data)
    repeated, ruled_out = repeats.plan(model.trie, layout, entries)
    return Feed.without(repeated, ruled_out, entries, layout), repeated, ruled_out


CASES = {
    "odd places": _repeated(1),
    "other places": _repeated(2),
    "one line": TEXT[:60] * 30,
    "one byte": b"a" * 2000,
    "numbered lines": b"".join(b"line %d of the table is as long as that\n" % i for i in range(40)),
    "two copies": TEXT[:900] * 2,
}


@pytest.mark.parametrize("name", all_slow_but(["odd places", "one line"], CASES))
def test_any_repeats_in_any_lanes_by_any_threads(folder, name):
    model, data = models.find(folder).network, CASES[name]
    for count, window in ((1, None), (3, 32), (20, 16)):
        chosen = preset(len(data), count, window)
        one, two = (lanes.encode(data, model, chosen, threads) for threads in (1, 2))
        assert one == two
        layout, payload = one
        assert LaneLayout.read(io.BytesIO(layout.to_bytes()), len(data)) == layout
        for threads in (1, 2):
            assert lanes.decode(payload, layout, model, chosen, threads).tobytes() == data
        wrong = data[: len(data) // 2] + data[len(data) // 3 :]
        for guessed in (data, wrong, b"", inputs.random_bytes(99)) if count == 3 else (wrong,):
            assert lanes.decode(payload, layout, model, chosen, guessed=guessed).tobytes() == data


def test_the_model_is_fed_only_the_last_entries_of_a_run(folder, monkeypatch):
    model, fed = models.find(folder).network, []
    right = LlamaLanes.forward

    def forward(self, tokens, counts=None):
        fed.append(tokens.size if counts is None else int(counts.sum()))
        right(self, tokens, counts)

    monkeypatch.setattr(LlamaLanes, "forward", forward)
    data = TEXT[:700] * 6
    layout, payload = lanes.encode(data, model, preset(len(data), 1, 32))
    feed, repeated, ruled_out = _feed(model, data, layout)
    assert layout.repeats and repeated.mean() > 0.7
    assert sum(fed) == feed.rows.max() + 1 < 0.6 * layout.entries
    assert (~repeated).sum() == feed.counts.sum() and not ruled_out[repeated].max() >= 0
    fed.clear()
    assert lanes.decode(payload, layout, model, preset(len(data), 1, 32), guessed=data).tobytes() == data
    assert sum(fed) == feed.rows.max() + 1
    fed.clear()
    lanes.decode(payload, layout, model, preset(len(data), 1, 32))
    assert len(fed) <= feed.steps


def test_what_does_not_repeat_goes_through_the_model(folder):
    model, data = models.find(folder).network, TEXT[:1500]
    layout, _ = lanes.encode(data, model, preset(len(data), 3, 32))
    assert layout.repeats is False


def test_a_feed_has_each_entry_once(folder):
    model, data = models.find(folder).network, CASES["odd places"]
    entries = model.encode(data)
    spelled = np.where(entries < 0, 1, np.diff(model.trie.offsets)[np.maximum(entries, 0)])
    layout = replace(LaneLayout.of(spelled, 5, 32), repeats=True)
    feed, _, ruled_out = _feed(model, data, layout)
    assert (ruled_out >= 0).any() and (ruled_out != entries)[ruled_out >= 0].all()
    for most in (1, 20, 300):
        bounds, parts = feed.bounds(most), []
        for first, end in pairwise(bounds):
            fed, counts, rows = feed.part(first, end)
            assert counts.max() <= max(most, feed.most_at_once)
            flat = fed[np.arange(fed.shape[1]) < counts[:, None]]
            there = feed.counts[:, None] > np.arange(first, end)
            assert np.array_equal(flat[rows[there]], feed.fed[np.nonzero(there)[0], feed.rows[:, first:end][there]])
            parts.append(counts)
        assert np.array_equal(sum(parts), [rows[n - 1] + 1 for rows, n in zip(feed.rows, feed.counts, strict=True)])


@pytest.fixture(scope="module")
def coded(folder) -> bytes:
    with language_alone():
        return squeeze.compress(CASES["odd places"], 8, model=folder, lanes=3, window=32, block_size=2_000)


def test_mutated_files_never_give_wrong_data(coded):
    assert {block.codec for block in read_index(io.BytesIO(coded))[0].blocks} == {"tokenwise"}
    assert squeeze.decompress(coded) == CASES["odd places"]
    generator = np.random.default_rng(5)
    for i in range(20):
        with suppress(squeeze.SqueezeError):
            assert squeeze.decompress(mutate(coded, generator), threads=1 + i % 2) == CASES["odd places"]


def test_payloads_of_noise_end(folder):
    """Whatever the bits are, a block has no more than its entries and bytes."""
    model, data = models.find(folder).network, CASES["one line"]
    layout, _ = lanes.encode(data, model, preset(len(data), 3, 32))
    assert layout.repeats
    for payload in (b"", bytes(500), b"\xff" * 500, inputs.random_bytes(500)):
        with suppress(DamagedError):
            assert lanes.decode(payload, layout, model, preset(len(data), 3, 32)).size == len(data)


def test_too_many_lanes_have_no_repeats(folder):
    model, data = models.find(folder).network, TEXT[:60] * 50
    layout, _ = lanes.encode(data, model, preset(len(data), MAX_LANES_WITH_REPEATS + 1, 16))
    assert layout.lanes == MAX_LANES_WITH_REPEATS + 1 and layout.repeats is False
    forged = replace(layout, repeats=True).to_bytes()
    with pytest.raises(DamagedError, match="lanes are impossible"):
        LaneLayout.read(io.BytesIO(forged), len(data))
