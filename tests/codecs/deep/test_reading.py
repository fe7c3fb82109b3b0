"""Whether the network reads a sample of a block: texts yes, digits and what is encoded no."""

import base64

import numpy as np
import pytest

from squeeze.codecs.deep import reading
from tests.makers import inputs


def reads(data):
    return reading.reads(np.frombuffer(data, np.uint8))


@pytest.mark.parametrize("size", [300, 1500, 40_000])
def test_the_network_reads_sources(size):
    assert reads(inputs.python_text(size))


@pytest.mark.parametrize(
    "encode",
    [bytes.hex, base64.encodebytes, lambda data: inputs.python_text(9000).decode("latin1").encode("cp037")],
    ids=["hexadecimal", "base64", "EBCDIC"],
)
def test_it_does_not_read_what_is_encoded(encode):
    data = encode(inputs.random_bytes(3000))
    assert not reads(data.encode() if isinstance(data, str) else data)


def test_a_sample_is_of_four_pieces_at_equal_distances():
    data = np.arange(4000, dtype=np.int16)
    assert np.array_equal(reading._sample(data[:1024]), data[:1024])
    assert np.array_equal(
        reading._sample(data), [n for at in range(500, 4000, 1000) for n in range(at - 128, at + 128)]
    )


def test_a_single_byte_and_one_run_are_no_text():
    assert not reads(b"a")
    assert not reads(b"a" * 3000)
