"""Training of dictionaries: the division of samples."""

import numpy as np
import pytest

import squeeze
from squeeze.codecs.stream import training
from squeeze.errors import SqueezeError
from tests.makers import inputs


def test_text_and_learning_share_the_samples():
    pieces = [np.zeros(100, np.uint8)] * 100
    text, rest = training.split_pieces(pieces, 2_000)
    assert (len(text), len(rest)) == (20, 80)
    text, rest = training.split_pieces(pieces, 1 << 20)
    assert (len(text), len(rest)) == (50, 50)


def test_of_many_bytes_pieces_are_taken_from_everywhere(monkeypatch, tmp_path):
    monkeypatch.setattr(training, "_MOST", 8 * training._PIECE)
    sizes = [3, 20 * training._PIECE + 500, 11 * training._PIECE]
    samples = [np.random.default_rng(k).integers(97, 105, size, np.uint8).tobytes() for k, size in enumerate(sizes)]
    (tmp_path / "last").write_bytes(samples[2])
    found = training._sampled([samples[0], samples[1], tmp_path / "last"])
    assert len(found) >= 8 and sum(map(len, found)) <= training._MOST
    places = [b"".join(samples).index(piece) for piece in found]
    assert places == sorted(places) and max(np.diff(places)) <= 5 * training._PIECE
    assert all((place - len(samples[0])) % training._PIECE == 0 for place in places[:5])


def test_of_many_short_samples_some_are_taken_whole(monkeypatch):
    monkeypatch.setattr(training, "_MOST", 20_000)
    samples = [b'{"number": %d}' % number * (1 + number % 7) for number in range(1000)]
    found = training._sampled(samples)
    assert set(found) <= set(samples)
    assert 19_900 < sum(map(len, found)) <= 20_000


def test_a_sample_is_not_written_over(tmp_path):
    sample = tmp_path / "sample.json"
    sample.write_bytes(b'{"key": "value"}\n' * 200)
    before = sample.read_bytes()
    with pytest.raises(SqueezeError, match="input and output are the same file"):
        squeeze.train([sample, b"bytes"], sample, overwrite=True)
    assert sample.read_bytes() == before


@pytest.mark.parametrize("level", [4, 5])
def test_even_a_byte_to_learn_from_makes_a_dictionary(level):
    samples = [inputs.words(900, seed=seed) for seed in range(6)]
    known = squeeze.train(samples, level=level, learn_size=1)
    coded = squeeze.compress(samples[0][:300], dictionary=known)
    assert known.learned.rows[0] == 0 and squeeze.decompress(coded, dictionary=known) == samples[0][:300]
