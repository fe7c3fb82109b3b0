"""Numbers whose bytes are in planes become arrays, and come back, also by the specification."""

import zlib

import numpy as np
import pytest

import squeeze
from squeeze.codecs.array.layout import FLOAT, SIGNED, UNSIGNED, Layout
from squeeze.codecs.content import Content
from squeeze.codecs.parse.planes import Numbers, Planes
from squeeze.codecs.parse.strips import strips_in
from squeeze.errors import DamagedError
from tests.codecs.parse import trees
from tests.makers import arrays, hdf5, images, inputs
from tests.references import naive_opened

HEIGHTS = np.frombuffer(arrays.heights(60, 80), ">i2").reshape(60, 80)
NOTHING = np.empty(0, np.uint8)


def arrays_in(data: bytes) -> list[tuple[Layout, bytes]]:
    """Return the arrays in wrappers of data, which comes back as it was."""
    root = trees.opened(data)
    return [(Layout(*node.content.form), node.own.tobytes()) for node in root.nodes() if node.content]


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize(("dtype", "kind"), [("<i2", SIGNED), (">f4", FLOAT), ("<f8", FLOAT), ("<u4", UNSIGNED)])
def test_chunks_become_arrays(shuffled, dtype, kind):
    made = HEIGHTS.astype(dtype)
    found = arrays_in(b"before" + hdf5.hdf5(made, 20, shuffled=shuffled))
    assert [form for form, _ in found] == [Layout(made.itemsize, 1, kind, int(dtype[0] == ">"), 0, 80)] * 3
    assert b"".join(numbers for _, numbers in found) == made.tobytes()


@pytest.mark.parametrize("dtype", ["<f2", "<f4", "<f8"])
@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("channels", [1, 3])
def test_floats_of_tiff_with_differences_become_arrays(dtype, order, channels):
    made = HEIGHTS.reshape(20, -1, channels).astype(dtype) / 8
    found = arrays_in(images.tiff(made, order, 2, coding=8, predictor=3))
    row = made.shape[1] * channels
    assert [form for form, _ in found] == [Layout(made.itemsize, channels, FLOAT, 1, 0, row)] * 2
    assert b"".join(numbers for _, numbers in found) == made.astype(made.dtype.newbyteorder(">")).tobytes()


@pytest.mark.parametrize("dtype", ["<u4", "<f8"])
def test_numbers_of_tiff_without_differences_become_arrays(dtype):
    made = HEIGHTS[..., None].astype(dtype)
    ((form, numbers),) = arrays_in(images.tiff(made, ">", coding=5))
    assert form == Layout(made.itemsize, 1, FLOAT if dtype == "<f8" else UNSIGNED, 1, 0, 80)
    assert numbers == made.astype(made.dtype.newbyteorder(">")).tobytes()


def test_differences_of_numbers_stay_what_they_are():
    assert strips_in(images.tiff(HEIGHTS[..., None].astype("<u4"), coding=5, predictor=2)) == {}


def test_a_chunk_of_another_size_stays_what_it_is():
    data = hdf5.hdf5(HEIGHTS.astype("<i4"), 20)
    short = data[: data.index(b"\x78\x9c")] + zlib.compress(bytes(range(256)) * 20 + b"!")
    assert arrays_in(short) == []


@pytest.mark.parametrize("width", [2, 4, 8])
@pytest.mark.parametrize(("row", "step"), [(0, 0), (0, 1), (12, 0), (12, 1), (12, 3), (12, 4)])
def test_any_bytes_come_back_by_the_specification(width, row, step):
    data = np.frombuffer(inputs.random_bytes(60 * width), np.uint8)
    found = Planes().undone(data, Numbers(Layout(width), True, row, step))
    assert found.content_kind == Content("array", 0, tuple(Layout(width)))
    assert Planes().close(found.content, NOTHING, found.extra).tobytes() == data.tobytes()
    assert naive_opened.planes(found.content.tobytes(), found.extra) == data.tobytes()


@pytest.mark.parametrize(
    "extra", [b"", b"\4", b"\4\0", b"\3\0\0", b"\0\0\0", b"\4\5\0", b"\4\0\5", b"\4\2\3", b"\4\0\x10", b"\4\0\0\0"]
)
def test_refuses_impossible_rows(extra):
    with pytest.raises(DamagedError):
        Planes().close(np.zeros(36, np.uint8), NOTHING, extra)
    with pytest.raises(DamagedError):
        Planes().close(NOTHING, NOTHING, b"\4\0\0")


def test_chunks_of_one_array_are_coded_as_one():
    data = hdf5.hdf5(HEIGHTS.astype("<f4") / 7, 6)
    plain = hdf5.hdf5(HEIGHTS.astype("<f4") / 7)
    coded = squeeze.compress(data, level=1)
    assert squeeze.decompress(coded) == data
    assert len(coded) < len(squeeze.compress(plain, level=1)) + 400
