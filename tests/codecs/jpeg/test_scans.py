"""The header of an image says how its scans are read: their blocks, codes and intervals."""

import numpy as np
import pytest

from squeeze.codecs.jpeg import state
from squeeze.codecs.jpeg.frame import Segments, parse, scans_of
from squeeze.codecs.jpeg.image import open_image
from squeeze.codecs.jpeg.layout import ZIGZAG
from squeeze.codecs.jpeg.scans import cut, join, lookup, order, write_codes
from squeeze.errors import DamagedError
from tests.makers import jpegs


def frame_of(data):
    ranges, end = scans_of(Segments(data), 0)
    edges = [0, *(edge for scan in ranges for edge in scan), end]
    return parse(b"".join(data[edges[i] : edges[i + 1]] for i in range(0, len(edges), 2)))


def test_the_zigzag_order_goes_along_diagonals():
    assert ZIGZAG[:10].tolist() == [0, 1, 8, 16, 9, 2, 3, 10, 17, 24]
    assert sorted(ZIGZAG.tolist()) == list(range(64)) and ZIGZAG[-1] == 63


def test_subsampled_components_have_fewer_blocks():
    found = frame_of(jpegs.jpeg(33, 17)).components
    assert [(c.across, c.down, c.columns, c.rows, c.wide, c.high) for c in found] == [
        (2, 2, 5, 3, 6, 4),
        (1, 1, 3, 2, 3, 2),
        (1, 1, 3, 2, 3, 2),
    ]


@pytest.mark.parametrize("settings", [{}, {"progressive": True}, {"subsampling": 0}])
def test_the_first_scan_has_each_block_once(settings):
    frame = frame_of(jpegs.jpeg(33, 17, **settings))
    assert sorted(order(frame, frame.scans[0]).blocks.tolist()) == list(range(frame.blocks))


def test_a_scan_of_one_component_has_only_the_blocks_that_the_image_needs():
    frame = frame_of(jpegs.jpeg(33, 17, progressive=True))
    luma = next(scan for scan in frame.scans if scan.components == (0,))
    assert order(frame, luma).blocks.size == 5 * 3


def test_segments_behind_several_starts_are_read_once():
    """Otherwise the time to search bytes that look like images would grow with their square."""
    count = 100
    jumps = b"".join(b"\xff\xd8\xff\xe1" + (8 * (count - i) - 4).to_bytes(2, "big") + b"ab" for i in range(count))
    data = jumps + jpegs.segment(0xE1, b"") * 500
    segments = Segments(data)
    for i in range(count):
        assert scans_of(segments, 8 * i) is None
        assert sum(segments.seen) == 500 + i + 1


def test_the_data_of_scans_is_searched_a_few_times():
    """Many headers may say that their scans begin in the same data."""
    count, size = 100, 5_000
    scans = b"".join(b"\xff\xd8\xff\xda" + (6 * (count - i) - 4).to_bytes(2, "big") for i in range(count))
    segments = Segments(scans + bytes(size) + b"\xff\xd9")
    assert segments.end_of_scan(len(scans)) == len(scans) + size
    found = [scans_of(segments, 6 * i) for i in range(count)]
    assert found[0] and not any(found[1:])
    assert segments.end_of_scan(len(scans)) is None


def test_codes_are_read_as_they_are_written():
    frame = frame_of(jpegs.jpeg(33, 17, optimize=True))
    scan = frame.scans[0]
    codes, table = write_codes(scan), lookup(scan)
    for number in (*scan.dc, *scan.ac):
        for symbol in np.flatnonzero(codes.lengths[number]):
            length = int(codes.lengths[number, symbol])
            entry = int(table[number, int(codes.codes[number, symbol]) << (16 - length)])
            assert (entry >> 8, entry & 255) == (length, symbol)


def test_intervals_are_cut_and_joined():
    data = b"\x01\xff\x00\xff\xd0\x02\xff\xd1\x03"
    assert cut(data) == [b"\x01\xff", b"\x02", b"\x03"] and join(cut(data)) == data
    assert cut(b"\x01\xff\xd1\x02") is None


def test_a_model_takes_no_more_memory_than_estimated():
    frame = frame_of(jpegs.jpeg(200, 120))
    model = state.fresh(frame, np.zeros((frame.blocks, 64), np.int16))
    used = sum(array.nbytes for array in model if isinstance(array, np.ndarray))
    assert used <= state.memory(frame.blocks)


def test_a_header_of_too_many_scans_is_refused():
    header = open_image(jpegs.by_hand(16, 16)).header
    start = header.index(b"\xff\xda")
    scan = header[start:-2]
    with pytest.raises(DamagedError, match="impossible"):
        parse(header[:start] + scan * 129 + header[-2:])
    assert len(parse(header[:start] + scan * 128 + header[-2:]).scans) == 128
