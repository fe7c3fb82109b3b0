"""The cache of dictionary texts on disk: the same bytes with and without it, and no foreign files."""

import errno

import numpy as np
import pytest

import squeeze
from squeeze.codecs.deep import coder
from squeeze.codecs.stream import dictionary_cache
from squeeze.system import cache
from tests.makers import inputs

RECORD = inputs.PROSE[:600]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("dictionary") / "words.sqzp"
    squeeze.train([inputs.PROSE, inputs.words(3_000)], path, level=4)
    return path.read_bytes()


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Provide an empty cache folder for texts of every size."""
    monkeypatch.setenv("SQUEEZE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(dictionary_cache, "LEAST", 1)
    return dictionary_cache.folder()


def used(data):
    """Return the dictionary after it coded a record, and the coded bytes."""
    known = squeeze.Dictionary.from_bytes(data)
    coded = squeeze.compress(RECORD, dictionary=known)
    assert squeeze.decompress(coded, dictionary=known) == RECORD
    return known, coded


def test_the_second_use_finds_what_the_first_left(place, data):
    (first, coded), (second, again) = used(data), used(data)
    assert first.memory is None and second.memory is not None
    assert coded == again
    (path,) = place.iterdir()
    assert path.name.startswith(first.identity)
    kept = path.read_bytes()
    one, other = first.start.memory, second.start.memory
    for name, array in dictionary_cache.initial_state.arrays_of(one).items():
        assert np.array_equal(array, dictionary_cache.initial_state.arrays_of(other)[name]), name
        mapped = dictionary_cache.initial_state.arrays_of(other)[name]
        assert (mapped.dtype, mapped.shape, mapped.flags.writeable) == (array.dtype, array.shape, True)
        assert mapped.ctypes.data % 64 == 0
    other.model.predictors[0].slots[:] = 7  # nobody does; it would stay in memory
    assert path.read_bytes() == kept


def test_mapped_arrays_compile_nothing_anew(place, data):
    used(data)
    compiled = len(coder.code.signatures)
    used(data)
    assert len(coder.code.signatures) == compiled


@pytest.mark.parametrize(
    ("sample", "level"),
    [
        (inputs.records(300), 4),
        (inputs.machine_code(1_000), 4),
        pytest.param(inputs.PROSE, 5, marks=pytest.mark.slow),
        pytest.param(inputs.PROSE, 6, marks=pytest.mark.slow),
    ],
    ids=["table", "executable", "5", "6"],
)
def test_other_content_and_levels_are_cached_too(place, sample, level, tmp_path):
    squeeze.train([sample], tmp_path / "own.sqzp", level=level)
    data = (tmp_path / "own.sqzp").read_bytes()
    coded = []
    for _ in range(2):
        known = squeeze.Dictionary.from_bytes(data)
        coded.append(squeeze.compress(sample[:500], dictionary=known))
    assert known.memory is not None
    assert coded[0] == coded[1]


def test_a_damaged_file_is_read_anew(place, data):
    _, coded = used(data)
    (path,) = place.iterdir()
    good = path.read_bytes()
    places = [0, 8, 20, len(good) // 2, len(good) - 1]
    for bad in (*(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :] for at in places), good[:9], good[:-64], b""):
        path.write_bytes(bad)
        known, again = used(data)
        assert known.memory is None and again == coded
        assert path.read_bytes() == good


def test_what_belongs_to_another_is_not_used(place, data, monkeypatch):
    """Another dictionary's file under this name, and one that other sources made."""
    used(data)
    (path,) = place.iterdir()
    other = squeeze.train([inputs.words(4_000, seed=3)], level=4)
    squeeze.compress(RECORD, dictionary=other)
    (foreign,) = set(place.iterdir()) - {path}
    path.write_bytes(foreign.read_bytes())
    assert squeeze.Dictionary.from_bytes(data).memory is None
    used(data)
    assert squeeze.Dictionary.from_bytes(data).memory is not None
    monkeypatch.setattr(dictionary_cache, "source_digest", lambda file: "changed")
    assert squeeze.Dictionary.from_bytes(data).memory is None


def test_works_without_a_folder(place, data, monkeypatch):
    _, coded = used(data)
    monkeypatch.setenv("SQUEEZE_CACHE", str(next(place.iterdir())))  # a file
    known, again = used(data)
    assert known.memory is None and again == coded


def test_works_where_the_disk_is_full(place, data, monkeypatch):
    def full(path, chunks):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(cache, "replace", full)
    used(data)
    monkeypatch.undo()
    assert not place.exists() or list(place.iterdir()) == []


def test_short_texts_are_not_kept(place, data, monkeypatch):
    monkeypatch.setattr(dictionary_cache, "LEAST", 1 << 15)
    used(data)
    assert not place.exists()


def test_the_folder_has_a_largest_size(place, data, monkeypatch):
    used(data)
    (path,) = place.iterdir()
    monkeypatch.setattr(dictionary_cache, "MOST", path.stat().st_size + 1_000)
    other = squeeze.train([inputs.PROSE, inputs.words(3_000, seed=3)], level=4)
    squeeze.compress(RECORD, dictionary=other)
    (left,) = place.iterdir()
    assert left.name.startswith(other.identity)
    monkeypatch.setattr(dictionary_cache, "MOST", 1_000)
    used(data)
    assert list(place.iterdir()) == [left]
