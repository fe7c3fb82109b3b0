"""Tensors in the block types of GGUF: every bit in one stream, coded apart and restored, and damage is named."""

import gguf
import numpy as np
import pytest

from squeeze.checkpoint.ggml_types import BLOCKS
from squeeze.errors import DamagedError
from squeeze.packing import codings
from squeeze.packing.coding import Form, Subject
from squeeze.packing.tensors import archive, blocks, floats
from squeeze.packing.tensors.block_order import has_order, order_of
from squeeze.packing.tensors.block_peaks import PEAKS
from squeeze.packing.tensors.block_types import STREAMS, streams_of
from squeeze.packing.tensors.content import InMemory, whole
from squeeze.packing.tensors.float_writer import in_memory
from squeeze.packing.tensors.floats import Decoded
from tests.makers.floats import blocks as make
from tests.references import naive_archive, naive_blocks

every = pytest.mark.parametrize("dtype", list(BLOCKS))


def encode(data, dtype, content=InMemory, by_neighbours=False):
    def coder(values, kind, writer, threads, columns, scales):
        return floats.write(values, kind, writer, threads)

    return in_memory(lambda writer: blocks.write(content(data), dtype, writer, coder, 1, (data.size,), by_neighbours))


def read(section, kind, size, scales):
    return Decoded(section, kind, size)


def decode(payload, dtype, size):
    return whole(blocks.DecodedBlocks(InMemory(payload), dtype, size, read))


def inner(section, kind, size, scales):
    return floats.decode(np.frombuffer(section, np.uint8).copy(), kind, size).tobytes()


@every
def test_every_bit_of_a_block_is_in_one_element(dtype):
    seen = np.zeros((BLOCKS[dtype], 8), int)
    for stream in streams_of(dtype):
        for row in stream.elements.tolist():
            for byte, bit, bits in (row[:3], row[3:]):
                seen[byte, bit : bit + bits] += 1
    assert (seen == 1).all()
    assert set(STREAMS) <= set(BLOCKS)


@every
def test_blocks_are_restored_and_by_the_decoder_of_the_specification(dtype):
    data = make(dtype)
    payload = encode(data, dtype)
    assert payload.size < 0.95 * data.size

    assert np.array_equal(decode(payload, dtype, data.size), data)
    assert naive_blocks.SIZES[dtype] == BLOCKS[dtype]
    assert naive_blocks.decode(payload.tobytes(), dtype, data.size, inner) == data.tobytes()


def test_six_bits_in_two_bytes_cost_their_entropy():
    data = make("Q6_K", 2000)
    assert encode(data, "Q6_K").size < 0.98 * floats.encode(data, "U8").size


def test_parts_are_decoded_alone():
    data = make("Q4_K", 5000)
    parts = blocks.DecodedBlocks(InMemory(encode(data, "Q4_K")), "Q4_K", data.size, read)
    for begin, end in ((0, 4), (147_400, 147_500), (data.size - 400, data.size)):
        out = np.empty(end - begin, np.uint8)
        parts.fill(begin, out)
        assert np.array_equal(out, data[begin:end])


def of_scales(dtype, count):
    """Return blocks whose codes are wide where their scale is small, or lie around the zero point."""
    random = np.random.default_rng(2)
    scales = random.choice([0.5, 1, 2, 4], count).astype(np.float16)
    if dtype == "Q8_0":
        codes = random.normal(0, 30 / scales[:, None].astype(float), (count, 32)).round().clip(-127, 127)
        return np.hstack([scales[:, None].view(np.uint8), codes.astype(np.int8).view(np.uint8)]).reshape(-1)
    zero = random.integers(3, 13, count)
    nibbles = (zero[:, None] + random.normal(0, 1.5, (count, 32))).round().clip(0, 15).astype(np.uint8)
    minima = (-zero * scales).astype(np.float16)
    rows = scales[:, None].view(np.uint8), minima[:, None].view(np.uint8), nibbles[:, :16] | nibbles[:, 16:] << 4
    return np.hstack(rows).reshape(-1)


def test_the_order_is_stable_and_mirrors_zero_points_above_the_middle():
    one = np.array([2, 1, -2, 1], np.float16).view(np.uint16)
    assert order_of("Q8_0", [one]).places.tolist() == [1, 3, 0, 2]
    minima = np.array([-20, -7.5, 20, -4], np.float16).view(np.uint16)  # zero points 10, 7.5, 10, 4
    order = order_of("Q4_1", [one, minima])
    assert order.places.tolist() == [1, 0, 2, 3]
    assert (order.flips & 255).tolist() == [0, 255, 255, 0]
    assert {dtype for dtype in BLOCKS if has_order(dtype)} == {
        *("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL", "Q4_K", "Q5_K")
    }


def test_blocks_of_k_types_are_sorted_by_32_codes():
    scale, minimum = np.array([2], np.float16).view(np.uint16), np.array([1], np.float16).view(np.uint16)
    times = np.full(8, 2, np.uint8), np.array([40, 30, 4, 44, 30, 0, 36, 28], np.uint8)  # zero points 10, 7.5, 1, 11...
    order = order_of("Q4_K", [scale, minimum, *times])
    assert order.places.tolist() == [1, 4, 7, 6, 0, 3, 2, 5]
    assert (order.flips & 255).tolist() == [0, 0, 0, 255, 255, 255, 0, 0]


@pytest.mark.parametrize(("dtype", "most"), [("Q8_0", 0.94), ("Q4_1", 0.88)])
def test_codes_of_blocks_with_like_scales_are_coded_together(dtype, most):
    data = of_scales(dtype, 70_000)
    payload, plain = encode(data, dtype), floats.encode(data, "U8")
    assert payload.size < most * plain.size
    for one in (payload, encode(data, dtype, by_neighbours=True)):
        assert np.array_equal(decode(one, dtype, data.size), data)
        parts, out = blocks.DecodedBlocks(InMemory(one), dtype, data.size, read), np.empty(5000, np.uint8)
        begin = 65_536 * BLOCKS[dtype] - 2_345
        parts.fill(begin, out)
        assert np.array_equal(out, data[begin : begin + 5000])


@pytest.mark.parametrize("dtype", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL"])
def test_scales_that_are_no_numbers_are_restored(dtype):
    data = make(dtype, 600).reshape(600, -1).copy()
    odd = np.array([0, 0x8000, 0x7C00, 0xFC00, 0x7E00, 0xFE01, 1, 0x3C00], np.uint16)
    data[:, :2] = np.resize(odd, 600)[:, None].view(np.uint8)
    data[:, 2:4] = np.resize(np.repeat(odd, 8), 600)[:, None].view(np.uint8)
    payload = encode(data.reshape(-1), dtype)
    assert np.array_equal(decode(payload, dtype, data.size), data.reshape(-1))
    assert naive_blocks.decode(payload.tobytes(), dtype, data.size, inner) == data.tobytes()


def quantised(dtype, rows=600):
    """Return the blocks of a matrix of normal weights, some of them 0."""
    weights = np.random.default_rng(3).normal(0, 1, (rows, 256)).astype(np.float32)
    weights[5, :96] = 0
    weights[7, 32:64] = 0.25
    return gguf.quantize(weights, gguf.GGMLQuantizationType[dtype]).reshape(-1)


@pytest.mark.parametrize("dtype", list(PEAKS))
def test_peaks_of_blocks_are_coded_as_places(dtype):
    data = quantised(dtype, 1200)
    payload, plain = encode(data, dtype, by_neighbours=True), encode(data, dtype)
    assert payload[4:8].view(np.uint32)[0] & 2
    blocks_of = data.size // BLOCKS[dtype]
    assert payload.size < plain.size - PEAKS[dtype].number * blocks_of // 32  # a quarter of a bit each
    assert np.array_equal(decode(payload, dtype, data.size), data)
    assert naive_blocks.decode(payload.tobytes(), dtype, data.size, inner) == data.tobytes()


@pytest.mark.parametrize("dtype", ["Q4_0", "Q8_0"])
def test_peaks_are_the_same_in_parts(dtype):
    data = quantised(dtype, 9000)
    payload = encode(data, dtype, by_neighbours=True)
    assert np.array_equal(encode(data, dtype, InParts, by_neighbours=True), payload)
    out, begin = np.empty(9000, np.uint8), 65_536 * BLOCKS[dtype] - 4_321
    blocks.DecodedBlocks(InMemory(payload), dtype, data.size, read).fill(begin, out)
    assert np.array_equal(out, data[begin : begin + out.size])


@pytest.mark.parametrize("dtype", list(PEAKS))
def test_blocks_without_peaks_are_left_as_they_are(dtype):
    data = make(dtype, 600)
    rows = data.reshape(600, -1).copy()
    if dtype == "Q8_0":
        rows[:, 2:] = 5
        rows[9, 33] = 128  # no place has room for it
        rows[:, 2] = 127
        rows[9, 2] = 5
    payload = encode(rows.reshape(-1), dtype, by_neighbours=True)
    assert dtype != "Q8_0" or not payload[4:8].view(np.uint32)[0] & 2
    assert np.array_equal(decode(payload, dtype, data.size), rows.reshape(-1))


def test_impossible_places_of_peaks_do_no_harm():
    for dtype, peaks in PEAKS.items():
        places, rest = np.full(4 * peaks.number, 255, np.uint8), np.full(peaks.rest_size(4), 255, np.uint8)
        codes = np.empty(4 * peaks.width, np.uint8)
        for place in range(256):
            places[:] = place
            peaks.merge(places, rest, codes)
            assert codes.any(), dtype


def test_codes_of_8_bits_are_predicted_with_their_scales():
    random = np.random.default_rng(4)
    weights = random.normal(0, 1, (512, 256)) * random.gamma(2, 0.5, (1, 256)) * random.gamma(2, 0.5, (512, 1))
    data = gguf.quantize(weights.astype(np.float32), gguf.GGMLQuantizationType.Q8_0).reshape(-1)
    subject = Subject(InMemory(data), Form("Q8_0", (512, 256), data.size))
    coding, payload = codings.encode_in_memory(subject, "archive")
    assert coding.name == "blocks+archive"
    assert payload.size < 0.975 * codings.encode_in_memory(subject, "runtime")[1].size
    assert np.array_equal(coding.decode(payload, subject.form, None, 1), data)
    out = np.empty(333, np.uint8)
    coding.decode_parts(InMemory(payload), subject.form, None, 1).fill(70_001, out)
    assert np.array_equal(out, data[70_001:70_334])


def test_codes_predicted_with_scales_are_decoded_as_specified():
    weights = np.random.default_rng(6).normal(0, 1, (90, 192)) * np.random.default_rng(7).gamma(2, 0.5, (90, 1))
    weights[3] = 0  # scales of 0 count as 1
    data = gguf.quantize(weights.astype(np.float32), gguf.GGMLQuantizationType.Q8_0).reshape(-1)
    coding, payload = codings.encode_in_memory(Subject(InMemory(data), Form("Q8_0", (90, 192), data.size)), "archive")
    modes = []

    def of_archive(section, kind, size, scales):
        modes.append(section[1])
        return naive_archive.decode(section, kind, size, lambda *section: inner(*section, None), scales)

    assert coding.name == "blocks+archive"
    assert naive_blocks.decode(payload.tobytes(), "Q8_0", data.size, of_archive) == data.tobytes()
    assert modes[-1] == 2


class InParts:
    """A content that is read in parts, as a large tensor in a file is."""

    def __init__(self, data):
        self.size, self.fill = data.size, InMemory(data).fill


@pytest.mark.parametrize("dtype", ["Q8_0", "Q4_1"])
def test_tensors_of_several_parts_have_the_same_payload_in_a_file(dtype):
    data = make(dtype, (5 << 20) // BLOCKS[dtype])
    payload = encode(data, dtype)
    assert np.array_equal(encode(data, dtype, InParts), payload)
    assert np.array_equal(decode(payload, dtype, data.size), data)


def test_bytes_that_are_no_whole_blocks_are_left_to_other_codings():
    assert encode(make("Q8_0")[:-1], "Q8_0") is None
    assert encode(make("Q8_0")[:0], "Q8_0") is None


@pytest.mark.parametrize(("at", "value"), [(0, 2), (4, 2), (7, 1), (8, 255), (15, 255), (23, 9)])
def test_damaged_payloads_are_named(at, value):
    data = make("Q8_0")
    hurt = encode(data, "Q8_0").copy()
    hurt[at] = value
    with pytest.raises(DamagedError):
        decode(hurt, "Q8_0", data.size)


def test_truncated_payloads_and_other_sizes_are_damaged():
    data = make("Q8_0")
    payload = encode(data, "Q8_0")
    for hurt, size in (
        (payload[:16].copy(), data.size),
        (payload, data.size - 1),
        (payload, data.size + 34),
        (payload, 0),
    ):
        with pytest.raises(DamagedError):
            decode(hurt, "Q8_0", size)


def of_columns(count=512, columns=256):
    """Whole numbers of 8 bits whose columns differ."""
    random = np.random.default_rng(1)
    drawn = random.normal(0, 30, (count, columns)) * random.gamma(2, 0.5, (1, columns))
    return np.clip(np.round(drawn), -128, 127).astype(np.int8).view(np.uint8).reshape(-1)


def test_the_archive_predicts_whole_numbers_of_8_bits_from_their_neighbours():
    data = of_columns()
    payload = archive.encode(data, "I8", 1, 256)
    assert payload.size < 0.97 * floats.encode(data, "I8").size
    assert np.array_equal(archive.decode(payload, "I8", data.size), data)
    out = np.empty(101, np.uint8)
    archive.decoded(InMemory(payload), "I8", data.size).fill(777, out)
    assert np.array_equal(out, data[777:878])


def test_numbers_of_the_archive_that_are_no_whole_numbers_of_8_bits_are_damaged():
    halves = np.linspace(0, 300, 4096).astype(np.float16)
    payload = archive.encode(halves.view(np.uint8), "F16", 1, 64).copy()
    payload[1] = 2
    with pytest.raises(DamagedError, match="8 bits"):
        archive.decode(payload, "I8", 4096)
    with pytest.raises(DamagedError):
        archive.decode(payload, "F16", 8192)
