"""Any bytes in place of a scan are read within its bounds: they are refused, or writing gives them again."""

import numpy as np
import pytest

from squeeze.codecs.jpeg import reading, scans, writing
from squeeze.codecs.jpeg.frame import parse
from squeeze.codecs.jpeg.image import open_image
from tests.makers import inputs, jpegs


@pytest.mark.parametrize("progressive", [False, True])
def test_random_bytes_are_refused_or_written_again(progressive):
    frame = parse(open_image(jpegs.jpeg(48, 32, progressive=progressive)).header)
    for number, scan in enumerate(frame.scans):
        order, coefficients = scans.order(frame, scan), np.zeros((frame.blocks, 64), np.int16)
        data = np.frombuffer(inputs.random_bytes(3000, number) + bytes(reading.SPARE), np.uint8)
        settings = np.array([scan.first, scan.last, scan.above, scan.low, progressive, 1], np.int64)
        tables = np.array([*zip(scan.dc, scan.ac, strict=True)], np.int64)
        place = order.blocks, order.components, order.blocks.size
        state, before = np.zeros(2, np.int64), np.zeros(4, np.int64)
        ends = np.array([3000])
        used = reading.read(data, ends, *place, settings[:5], tables, scans.lookup(scan), coefficients, state, before)
        if used < 0:
            continue
        out, kept = np.zeros(8000, np.uint8), np.zeros(writing.KEPT, np.uint8)
        settings[5] = used & 1
        state, before = np.zeros(5, np.int64), np.zeros(4, np.int64)
        codes = scans.write_codes(scan)
        size = writing.write(out, ends, *place, settings, tables, *codes, coefficients, state, before, kept)
        assert size < 0 or out[:size].tobytes() == data[: used >> 1].tobytes()
