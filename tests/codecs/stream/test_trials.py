"""Wrappers are opened if that pays; of many small ones of a kind few are tried."""

import numpy as np
import pytest

from squeeze.codecs.parse.room import Room
from squeeze.codecs.parse.streams import Gzip
from squeeze.codecs.parse.texts import Hexadecimal
from squeeze.codecs.stream import opened, sampling
from squeeze.codecs.stream.trials import Trials
from tests.makers import inputs, jpegs, wrapped


def sums(count: int) -> bytes:
    """Return a list of checksums of 512 bits."""
    noise = inputs.random_bytes(64 * count)
    return b"".join(b"%s  part-%04d\n" % (noise[at : at + 64].hex().encode(), at) for at in range(0, len(noise), 64))


@pytest.fixture
def tried(monkeypatch):
    """Return the sizes of the samples that are coded."""
    sizes, coded_size = [], sampling.coded_size
    monkeypatch.setattr(sampling, "coded_size", lambda data, kind: sizes.append(data.size) or coded_size(data, kind))
    return sizes


def test_of_many_small_wrappers_few_are_tried(tried):
    root = opened.find(np.frombuffer(sums(400), np.uint8))
    assert root and [child.kind for child in root.children] == [Hexadecimal.kind] * 400
    assert len(tried) < 2 * 50


def test_trials_go_on_when_wrappers_change(tried):
    digits = b"0" * 4_000 + b"1" * 4_000
    data = np.frombuffer(sums(60) + b" ".join([digits[at : at + 200] for at in range(0, 8_000, 200)]), np.uint8)
    wrapper, trials = Hexadecimal(), Trials()
    results = []
    for place in wrapper.find(data.tobytes()):
        found = wrapper.open(data.tobytes(), place, Room(1 << 20))
        results.append(trials(data, found))
    assert all(results[:60]) and not all(results[60:])
    assert len(tried) < 2 * len(results)


def test_a_photo_in_a_deflate_stream_is_opened():
    root = opened.find(np.frombuffer(wrapped.gzip_file(jpegs.jpeg(200, 160)), np.uint8))
    assert root and [child.kind for child in root.children] == [Gzip.kind]
    assert opened.find(np.frombuffer(wrapped.gzip_file(b"\xff\xd8" + inputs.random_bytes(9_000)), np.uint8)) is None
