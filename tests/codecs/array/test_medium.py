"""Arrays in files are found by their headers or their bytes, and none becomes larger."""

import io

import numpy as np
import pytest

import squeeze
from squeeze.codecs.array import formats
from squeeze.codecs.array.layout import FLOAT, SIGNED, UNSIGNED, Layout
from squeeze.codecs.content import Content
from squeeze.codecs.stream import container, media
from squeeze.codecs.stream.index import read_index
from tests.makers import arrays, inputs

POINTS = arrays.npy("<f4", "2000, 3", arrays.points(2000))


def find(data: bytes) -> list[tuple[int, int, Layout]]:
    return formats.find(np.frombuffer(data, np.uint8))


def test_npy_files_are_found():
    assert find(POINTS) == [(0, len(POINTS), Layout(4, 3, FLOAT, 0, 128))]
    before = inputs.words(500)
    assert find(before + POINTS + inputs.words(500)) == [(500, 500 + len(POINTS), Layout(4, 3, FLOAT, 0, 128))]
    times = arrays.npy("<i8", "300,", arrays.times(300))
    assert find(times)[0][2] == Layout(8, 1, SIGNED, 0, 128)
    columns = arrays.npy("<f4", "2000, 3", arrays.points(2000), "True")
    assert find(columns)[0][2].columns == 1


@pytest.mark.parametrize(
    "header",
    [
        arrays.npy("<c16", "300,", bytes(4800)),
        arrays.npy("|u1", "4800,", bytes(4800)),
        b"\x93NUMPY\1\0" + bytes(5000),
        arrays.npy("<i8", "99999999999999999999, 0", b"")[:90],
    ],
    ids=range(4),
)
def test_headers_of_others_find_nothing(header):
    assert not find(header)


@pytest.mark.parametrize(
    ("data", "form"),
    [
        (arrays.keys(5000), Layout(4, 1, UNSIGNED, 1)),
        (arrays.times(3000), Layout(8, 1, UNSIGNED)),
        (arrays.points(3000), Layout(4, 3, FLOAT)),
        (arrays.ramp(9000), Layout(2, 1, UNSIGNED)),
    ],
    ids=["keys", "times", "points", "ramp"],
)
def test_numbers_without_a_header_are_found_by_their_bytes(data, form):
    ((start, end, found),) = find(data)
    assert (start, end) == (0, len(data)) and (found.width, found.columns, found.big) == form[:2] + form[3:4]


def test_other_data_is_not_taken_for_numbers():
    noise = np.random.default_rng(0).integers(0, 256, 100_000).astype(np.uint8).tobytes()
    for data in (inputs.words(100_000), bytes(100_000), noise, inputs.machine_code(20_000)):
        assert find(data) == []


def test_an_array_is_coded_by_its_model():
    stream = squeeze.compress(POINTS, 1)
    assert squeeze.decompress(stream) == POINTS
    assert [block.codec for block in read_index(io.BytesIO(stream))[0].blocks] == ["array"]
    assert len(stream) < len(squeeze.compress(POINTS, 1, parse=False))


def test_an_array_is_never_larger_than_without_its_model():
    data = arrays.npy("<f8", "1000,", inputs.words(8_000))
    assert len(squeeze.compress(data, 1)) <= len(squeeze.compress(data, 1, parse=False))


def test_a_sample_has_whole_rows():
    medium = media.of_block(container.ARRAY)
    assert medium
    start, end, content = medium.sample(600_128, Content("array", 0, Layout(4, 3, FLOAT, 0, 128)), 9_000)
    assert (start - 128) % 12 == (end - start) % 12 == 0 and content.form == Layout(4, 3, FLOAT)
