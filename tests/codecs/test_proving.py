"""A block is verified while it is coded: with the bytes that no carry can change, and to its end."""

import numpy as np
import pytest

import squeeze
from squeeze.codecs import proving
from squeeze.codecs.bytewise import coder as bytewise
from squeeze.codecs.bytewise.presets import SMALL
from squeeze.codecs.deep import coder as deep, presets
from squeeze.codecs.stream import encoding
from squeeze.errors import VerifyError
from squeeze.numerics.bitmodels import coder as arithmetic
from squeeze.numerics.jit import kernel
from tests.makers import inputs

TEXT = np.frombuffer(inputs.words(150_000), np.uint8)


@kernel
def encode(bits, probabilities, coder, coded):
    for i in range(bits.size):
        arithmetic.encode(bits[i], probabilities[i], coder, coded)


def test_final_bytes_never_change():
    rng = np.random.default_rng(0)
    coder, coded = np.zeros(3, np.uint64), np.zeros(1 << 16, np.uint8)
    arithmetic.start_encoder(coder)
    seen = list[bytes]()
    for _ in range(3000):
        bits = rng.integers(0, 2, 8)
        chances = np.where(rng.random(8) < 0.5, 1, (1 << 32) - 1)  # many intervals at an end, so many carries
        encode(bits, chances.astype(np.int64), coder, coded)
        written = int(coder[arithmetic.POSITION])
        seen.append(coded[: proving._final(coded, written)].tobytes())
    length = arithmetic.finish_encoder(coder, coded)
    whole = coded[:length].tobytes()
    assert all(whole.startswith(part) for part in seen) and len(seen[-1]) > 1000


def test_the_last_bytes_are_compared_too():
    compared = list[tuple[int, int]]()

    def start():
        return lambda begin, end: compared.append((begin, end)) is None

    coded = np.full(100, 255, np.uint8)
    with proving.Proof(coded, start) as proof:
        proof.note(0, 5, 10)
        proof.note(5, 9, 20)
        assert proof.holds()
    assert compared == [(0, 5), (5, 9)]


@pytest.mark.parametrize("part", [0, 1])
def test_a_difference_is_a_fault(part):
    with proving.Proof(np.zeros(100, np.uint8), lambda: lambda begin, end: begin // 10 != part) as proof:
        proof.note(0, 10, 50)
        proof.note(10, 20, 60)
        assert not proof.holds()


def test_what_decodes_to_other_bytes_is_not_returned(monkeypatch):
    monkeypatch.setattr(np, "array_equal", lambda a, b: False)
    with pytest.raises(VerifyError, match="faulty"):
        bytewise.encode(TEXT, SMALL["text"], verify=True)


def test_coded_bytes_do_not_depend_on_the_verification():
    for verify in (False, True):
        counts = list[int]()
        coded = bytewise.encode(TEXT, SMALL["text"], 0, counts.append, verify)
        assert coded == bytewise.encode(TEXT, SMALL["text"]) and sum(counts) == TEXT.size * (1 + verify)
    preset = presets.preset(4, "table")
    assert deep.encode(TEXT[:20_000], preset, 5, verify=True) == deep.encode(TEXT[:20_000], preset, 5)


@pytest.mark.parametrize("level", [1, 3, 4])
def test_a_stream_has_the_same_bytes_by_any_number_of_threads(level):
    data = TEXT[:40_000].tobytes()
    one, two = (squeeze.compress(data, level, threads=threads) for threads in (1, 2))
    assert one == two and squeeze.decompress(two) == data


def test_progress_never_passes_the_whole(monkeypatch):
    """Simulate a plan that was verified at once, and lost to one that is verified after it."""
    data, counts = TEXT[:40_000], list[int]()
    usual = encoding._encode_content

    def twice(part, content, settings, progress, verify):
        progress(2 * part.size)
        return usual(part, content, settings, None)

    monkeypatch.setattr(encoding, "_encode_content", twice)
    stream = squeeze.compress(data.tobytes(), 1, progress=counts.append)
    assert sum(counts) == 2 * data.size and squeeze.decompress(stream) == data.tobytes()
