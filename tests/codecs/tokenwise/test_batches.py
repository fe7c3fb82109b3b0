"""Lanes in batches: the same bytes by any number of threads, and exactly what is learned from a batch."""

import io
from contextlib import ExitStack
from dataclasses import replace

import numpy as np
import pytest

import squeeze
from squeeze.codecs.stream import coding, container, levels
from squeeze.codecs.stream.index import read_index
from squeeze.codecs.stream.resources import LanguageOptions
from squeeze.codecs.stream.settings import choose
from squeeze.codecs.tokenwise import lanes, mixing, prefill
from squeeze.codecs.tokenwise.feed import Feed
from squeeze.codecs.tokenwise.layout import LaneLayout
from squeeze.codecs.varint import varint
from squeeze.lm import models
from tests.makers import inputs
from tests.makers.mutations import mutate
from tests.makers.tokenwise import DATA, TEXT, codecs_of, preset
from tests.references import naive_batches

ESCAPES = TEXT[:300] + bytes(range(128, 256)) + TEXT[500:1_500]


def in_batches(data, count, batch):
    return replace(preset(len(data), count), batch=batch, repeats=False)


@pytest.mark.parametrize(
    ("data", "count", "batch"),
    [
        *((TEXT[:1], 1, 1), (TEXT[:77], 3, 2), (TEXT[:1_501], 1, 1), (TEXT[:1_501], 5, 3), (TEXT[:2_000], 64, 64)),
        *((TEXT[:2_000], 256, 256), (TEXT[:2_000], 256, 100), (ESCAPES, 20, 20), (ESCAPES, 7, 4)),
    ],
)
def test_any_lanes_in_any_batches_by_any_threads(folder, data, count, batch):
    model, chosen = models.find(folder).network, in_batches(data, count, batch)
    one, two, three = (lanes.encode(data, model, chosen, threads) for threads in (1, 2, 3))
    assert one == two == three
    if one is None:  # no shorter than the bytes themselves
        assert len(data) < 100
        return
    layout, payload = one
    assert layout.batch == min(batch, layout.lanes) and 1 <= layout.share <= layout.batch
    assert LaneLayout.read(io.BytesIO(layout.to_bytes()), len(data), True) == layout
    for threads in (1, 2, 3):
        assert lanes.decode(payload, layout, model, chosen, threads).tobytes() == data


@pytest.mark.parametrize("count", [1, 6, 24])
def test_what_is_learned_is_as_the_reference_has_it(folder, count):
    """The reference learns lane by lane, and sums backwards; two threads do the tasks of learning in any order."""
    model, chosen = models.find(folder).network, in_batches(ESCAPES, count, count)
    entries = model.encode(ESCAPES)[: 12 * count + count // 2]
    spelled = np.where(entries < 0, 1, np.diff(model.trie.offsets)[np.maximum(entries, 0)])
    layout = LaneLayout.of(spelled, count, chosen.window, count)
    feed = Feed.of_all(entries, layout)
    with ExitStack() as stack:
        coder = mixing.Batches(model, layout, chosen, prefill.team_of(2, 1, stack))
        m, x, log = coder.model._replace(data=coder.data), coder.mix, coder.log
        found = naive_batches.shared(m, x)
        expected = {name: array.copy() for name, array in found.items()}
        for first, paths in prefill.predictions(model, layout, feed, 1, stack):
            for i in range(paths.starts.shape[1]):
                step, active = first + i, layout.active(first + i)
                starts, surprises, column = (
                    np.ascontiguousarray(array[:, at : at + 1])  # another layout is compiled anew
                    for array, at in ((paths.starts, i), (paths.surprises, i), (feed.table, step))
                )
                assert coder.encode(column, np.array([active]), prefill.Paths(paths.logits, starts, surprises))
                naive_batches.learn(expected, m, log, active)
    assert [name for name in found if not np.array_equal(found[name], expected[name])] == []
    assert coder.done == spelled.sum()


def compressed(folder, data, size) -> bytes:
    """In batches, and the text by nothing else."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(coding, "_encode_bytewise", lambda *_: None)
        return squeeze.compress(data, 8, model=folder, lanes=7, window=32, batch=6, block_size=size, threads=2)


@pytest.fixture(scope="module")
def coded(folder) -> bytes:
    """As that of conftest.py, in batches."""
    return compressed(folder, DATA, 1_500)


def test_a_file_says_that_it_is_in_batches(coded, folder, only_tokenwise):
    assert codecs_of(coded) == ["tokenwise", "stored", "tokenwise"]
    assert read_index(io.BytesIO(coded))[0].header["numerics"] == 8
    for threads in (1, 2):
        assert squeeze.decompress(coded, threads=threads) == DATA
    with squeeze.open(io.BytesIO(coded), threads=2) as file:
        file.seek(2_990)
        assert file.read(30) == DATA[2_990:3_020]
    short = squeeze.compress(TEXT, 7, model=folder, batch=4)
    assert squeeze.decompress(short, model=folder) == TEXT and short[4] == 8 << 4 | 7


def test_what_an_older_version_says(coded, monkeypatch):
    monkeypatch.setattr(container, "NUMERICS_VERSION", 7)
    with pytest.raises(squeeze.FormatError, match="numerics version 8 is unknown: decompress with a newer squeeze"):
        squeeze.decompress(coded)


@pytest.mark.slow  # compiles the coder that counts bits, for batches
def test_explaining_a_file_in_batches(coded):
    explanation = squeeze.explain(coded)
    assert explanation.data == DATA
    assert 0 < explanation.bits / 8 <= explanation.coded_size


@pytest.mark.parametrize("batch", [0, 1025])
def test_impossible_batches(folder, batch):
    with pytest.raises(squeeze.LevelError, match="a batch has 1 to 1024 lanes"):
        squeeze.compress(TEXT, 8, model=folder, batch=batch)


def test_other_levels_have_no_batches():
    with pytest.raises(squeeze.LevelError, match="batch and device belong to levels 7 to 9"):
        squeeze.compress(TEXT, 6, batch=4)


def outcome(data: bytes, threads: int = 1) -> bytes | None:
    try:
        return squeeze.decompress(data, threads=threads)
    except squeeze.SqueezeError:
        return None


def test_damaged_files_never_give_wrong_data(folder):
    data = TEXT[:700] + inputs.random_bytes(700) + TEXT[2_000:2_500]
    coded, generator = compressed(folder, data, 700), np.random.default_rng(6)
    assert codecs_of(coded) == ["tokenwise", "stored", "tokenwise"]
    for i in range(60):
        assert outcome(mutate(coded, generator), 1 + i % 2) in (None, data)
    for size in range(60, len(coded), 61):
        assert outcome(coded[:size]) is None


def decoded(folder, layout, rest, threads=1):
    payload = b"\x01" + b"".join(map(varint, layout)) + rest
    settings = choose(levels.LEVELS[8], threads, None, LanguageOptions(folder, batch=4))
    return coding.decode_block(coding.Coded(container.TOKENWISE, payload), 1000, settings)


@pytest.mark.parametrize(
    "layout", [(9, 3, 1, 0, 1, 1, 2), (9, 3, 1, 4, 1, 1, 2), (9, 3, 1, 3, 0, 1, 2), (9, 3, 1, 2, 3, 1, 2)]
)
def test_impossible_layouts(folder, layout):
    with pytest.raises(squeeze.DamagedError, match="batches are impossible"):
        decoded(folder, layout, bytes(50))


@pytest.mark.parametrize("rest", [b"\xff\x7f", b"\x00\x05", bytes(30), b"\x03\x07" + inputs.random_bytes(400)])
def test_payloads_of_nonsense_end(folder, rest):
    for threads in (1, 2):
        with pytest.raises(squeeze.DamagedError):
            decoded(folder, (900, 9, 8, 9, 3, *[100] * 8), rest, threads)
