"""The tensor codecs: every bit pattern of every type comes back, sizes are near the entropy, damage is noticed."""

import itertools
import tracemalloc
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from squeeze.errors import DamagedError, SqueezeError
from squeeze.packing.tensors import archive, float_payload, floats, planes
from squeeze.packing.tensors.archive_payload import FORMS
from squeeze.packing.tensors.content import InFile
from squeeze.packing.tensors.float_payload import DTYPES
from squeeze.packing.tensors.float_writer import MemoryWriter
from squeeze.system.binary import Positional
from tests.makers.cases import every
from tests.makers.floats import as_bf16, bytes_of, weights
from tests.references import naive_archive

CODECS = [floats, archive]
both = pytest.mark.parametrize("codec", CODECS, ids=["runtime", "archive"])


def round_trip(codec, data, dtype, **options):
    """The coded size, after a check that the payload decodes to `data`."""
    before = data.copy()
    payload = codec.encode(data, dtype, **options)
    assert np.array_equal(data, before), "the input is not touched"
    if payload is None:
        return data.size
    assert payload.size < data.size
    assert np.array_equal(codec.decode(payload, dtype, data.size), data)
    return payload.size


@both
@pytest.mark.parametrize("dtype", ["BF16", "F16", "I16", "U16"])
def test_every_16_bit_pattern_is_restored(codec, dtype):
    every = np.arange(1 << 16, dtype=np.uint16)
    round_trip(codec, bytes_of(every), dtype)
    round_trip(codec, bytes_of(np.concatenate([every, np.zeros(300_000, np.uint16)])), dtype)
    round_trip(codec, bytes_of(np.random.default_rng(2).permutation(every)), dtype)


@both
@pytest.mark.parametrize("dtype", ["F8_E4M3", "F8_E5M2", "F8_E8M0", "U8", "I8", "BOOL", "F4", "F6_E2M3", "F6_E3M2"])
def test_every_8_bit_pattern_is_restored(codec, dtype):
    every = np.arange(256, dtype=np.uint8)
    round_trip(codec, every, dtype)
    round_trip(codec, np.concatenate([every, np.zeros(9_000, np.uint8)]), dtype)


@both
@pytest.mark.parametrize("dtype", ["F32", "F64", "I32", "U32", "I64", "U64", "C64"])
def test_random_patterns_are_restored(codec, dtype):
    width = 4 if DTYPES[dtype][0] == 32 else 8
    noise = np.random.default_rng(3).integers(0, 256, 8 * 5_000, np.uint8)
    assert round_trip(codec, noise, dtype) == noise.size
    usual = bytes_of(weights(20_000).astype(f"f{width}")).reshape(-1, width)
    usual[::97] = noise[: usual[::97].size].reshape(-1, width)
    assert round_trip(codec, usual.reshape(-1), dtype) < usual.size or not DTYPES[dtype][1]


@both
def test_nan_payloads_infinities_negative_zero_and_subnormals_are_restored(codec):
    special = [0x7FC0, 0x7F81, 0xFFFF, 0x7F80, 0xFF80, 0x8000, 0x0000, 0x0001, 0x807F, 0x7F7F]
    values = as_bf16(weights(40_000))
    values[:: len(values) // len(special)][: len(special)] = special
    assert round_trip(codec, bytes_of(values), "BF16") < 0.75 * 2 * values.size


@both
@pytest.mark.parametrize("count", [0, 1, 2, 31, 32, 33, 511, 513, 1023, 1025, 16_383, 16_384, 16_385, 32_769, 70_001])
def test_lengths_around_lanes_rows_and_segments_are_restored(codec, count):
    for dtype, values in (("BF16", as_bf16(weights(count))), ("F32", weights(count).astype(np.float32))):
        round_trip(codec, bytes_of(values), dtype)


@both
@pytest.mark.parametrize("dtype", list(DTYPES))
def test_constants_cost_next_to_nothing(codec, dtype):
    width = DTYPES[dtype][0] // 8
    for byte in (0, 1, 0x3F, 0xFF):
        data = np.full(100_000 * width, byte, np.uint8)
        assert round_trip(codec, data, dtype) < 3_000


@settings(max_examples=1000)
@given(
    st.sampled_from(sorted(DTYPES)),
    st.binary(max_size=80),
    st.integers(1, 60),
    st.integers(0, 2**32 - 1),
    st.sampled_from(CODECS),
)
def test_any_tensor_is_restored(dtype, start, repeats, seed, codec):
    generator = np.random.default_rng(seed)
    width = DTYPES[dtype][0] // 8
    data = np.frombuffer((start * repeats)[: len(start) * repeats // width * width], np.uint8).copy()
    noise = generator.integers(0, 256, data.size // 3, np.uint8)
    data[: noise.size] = noise
    round_trip(codec, data, dtype, columns=int(generator.integers(0, 50)))


def entropy(values):
    counts = np.bincount(values).astype(np.float64)
    counts = counts[counts > 0]
    return -(counts * np.log2(counts / counts.sum())).sum()


def test_bf16_is_within_half_a_per_cent_of_the_zero_order_bound():
    values = as_bf16(weights(1 << 20))
    bound = (entropy((values >> 7) & 0xFF) + entropy((values & 0x7F) | (values >> 8 & 0x80))) / 8
    assert round_trip(floats, bytes_of(values), "BF16") < 1.005 * bound


def test_archive_is_below_the_zero_order_bound():
    values = as_bf16(weights(1 << 20))
    bound = (entropy((values >> 7) & 0xFF) + entropy((values & 0x7F) | (values >> 8 & 0x80))) / 8
    assert round_trip(archive, bytes_of(values), "BF16", columns=256) < 0.997 * bound


def of_rows():
    """Return weights [40, 150] with scales of rows and columns, some of which are tiny or zero."""
    generator = np.random.default_rng(8)
    values = generator.normal(0, 0.02, (40, 150)) * generator.gamma(2, 0.5, (1, 150)) * generator.gamma(2, 0.5, (40, 1))
    values[5:9] *= 1e-12
    values[20, ::7] = 0
    values[30] *= 1e4
    return values.astype(np.float32)


def in_form(values, dtype):
    bits = values.view(np.uint32)
    if dtype in ("F8_E4M3", "F8_E5M2"):
        return (values.astype(np.float16).view(np.uint16) >> (8 if dtype == "F8_E5M2" else 7)).astype(np.uint8)
    return {"BF16": (bits >> 16).astype(np.uint16), "F16": values.astype(np.float16), "F32": values}[dtype]


@pytest.mark.parametrize(("columns", "dtype"), every(2, itertools.product([150, 0], FORMS)))
def test_a_decoder_written_from_the_specification_reads_archive(dtype, columns):
    data = bytes_of(in_form(of_rows(), dtype))
    payload = archive.encode(data, dtype, columns=columns)

    def inner(section, kind, size):
        return floats.decode(np.frombuffer(section, np.uint8).copy(), kind, size).tobytes()

    assert payload[1] == 1
    assert naive_archive.decode(payload.tobytes(), dtype, data.size, inner) == data.tobytes()


def test_rows_much_smaller_than_others_cost_no_more():
    """Check moments of rare words, which vanish: rows of like weights at scales of their own."""
    generator = np.random.default_rng(9)
    weights = generator.normal(0, 1, (300, 128))
    apart = weights * np.exp2(-generator.integers(0, 40, (300, 1)))
    like, tiny = (archive.encode(bytes_of(as_bf16(one)), "BF16", columns=128).size for one in (weights, apart))
    assert tiny < 1.05 * like


def test_side_information_is_below_a_twentieth_of_a_bit():
    values = as_bf16(weights(1 << 20))
    payload = floats.encode(bytes_of(values), "BF16")
    (plane,) = float_payload.parse(payload, "BF16", 2 * values.size).planes
    code = 2 * int(plane.starts[-1]) + plane.raw.nbytes
    assert 8 * (payload.size - code) < 0.05 * values.size


def test_lower_precision_kept_in_a_wider_type_is_found():
    values = as_bf16(weights(100_000)).astype(np.uint32) << 16
    half = floats.encode(bytes_of(values >> 16).reshape(-1, 4)[:, :2].copy().reshape(-1), "BF16")
    whole = round_trip(floats, bytes_of(values), "F32")
    assert whole < half.size * 1.02 + 1_000


def test_threads_make_no_difference_to_the_bytes():
    data = bytes_of(as_bf16(weights(500_000)))
    for codec in CODECS:
        one = codec.encode(data, "BF16", threads=1)
        assert np.array_equal(codec.encode(data, "BF16", threads=3), one)
        assert np.array_equal(codec.decode(one, "BF16", data.size, threads=3), data)


@pytest.mark.parametrize("dtype", ["BF16", "F32", "F64"])
def test_bytes_are_the_same_from_memory_and_from_a_file(dtype, tmp_path):
    scales = np.repeat(np.float32([1e-3, 1, 1e3]), 150_000)  # so that segments have tables of their own
    values = weights(450_000) * scales
    data = bytes_of(as_bf16(values) if dtype == "BF16" else values.astype({"F32": "f4", "F64": "f8"}[dtype]))
    (tmp_path / "tensor").write_bytes(data.tobytes())
    with (tmp_path / "tensor").open("rb") as file:
        writer = MemoryWriter()
        size = floats.write(InFile(Positional(file), 0, data.size), dtype, writer, threads=2)
        assert np.array_equal(writer.payload(size), floats.encode(data, dtype))


def test_segments_decode_on_their_own():
    values = as_bf16(weights(300_000))
    coded = float_payload.parse(floats.encode(bytes_of(values), "BF16"), "BF16", 2 * values.size)
    size = coded.lanes * coded.rows
    for first in range(coded.segments):
        part = np.zeros(min(size, values.size - first * size), np.uint16)
        floats.decode_segments(coded, first, first + 1, part)
        assert np.array_equal(part, values[first * size : (first + 1) * size])


@both
@pytest.mark.parametrize("dtype", ["BF16", "F32", "I64", "F8_E4M3"])
def test_mutated_payloads_never_crash(codec, dtype):
    """A damaged payload raises DamagedError or decodes to other values, which the container's checksum finds."""
    generator = np.random.default_rng(4)
    values = {
        "BF16": as_bf16(weights(20_000)),
        "F32": weights(20_000).astype(np.float32),
        "I64": np.arange(5_000),
        "F8_E4M3": (as_bf16(weights(20_000)) >> 4).astype(np.uint8) & 0x3F,
    }[dtype]
    data = bytes_of(values)
    payload = codec.encode(data, dtype)
    for _ in range(100):
        hurt = payload.copy()
        for _ in range(generator.integers(1, 4)):
            spot = generator.integers(0, hurt.size if generator.random() < 0.5 else 400)
            hurt[spot] = generator.integers(0, 256)
        with suppress(DamagedError):
            assert codec.decode(hurt, dtype, data.size).size == data.size
    for size in (0, 8, 15, 16, 24, 40, 200, payload.size // 16 * 8, payload.size - 8):
        with pytest.raises(SqueezeError):
            codec.decode(payload[:size].copy(), dtype, data.size)
    with pytest.raises(DamagedError):
        codec.decode(payload, dtype, data.size - 8)


def test_a_flipped_word_is_found_by_the_states_alone():
    values = as_bf16(weights(40_000))
    payload = floats.encode(bytes_of(values), "BF16")
    (plane,) = float_payload.parse(payload, "BF16", 2 * values.size).planes
    plane.words[100] ^= 1
    with pytest.raises(DamagedError, match="segment 0 does not decode"):
        floats.decode(payload, "BF16", 2 * values.size)


def test_planes_of_tiny_segments_are_put_together_many_at_a_time(monkeypatch):
    """Writers never make segments of one value, and readers must not take a step of Python for each."""
    values = np.arange(1 << 14, dtype=np.uint16)
    head = float_payload.HEAD.pack(1, 2, 0, 0, 1, values.size) + 2 * float_payload.PLANE.pack(8, 8, 0, 0, 0, 0)
    bytes_of_planes = [plane.astype(np.uint8).tobytes() for plane in (values >> 8, values & 255)]
    payload = np.frombuffer(head + b"".join(bytes_of_planes), np.uint8).copy()
    calls, original = [], planes.put_plane
    monkeypatch.setattr(planes, "put_plane", lambda *rest: calls.append(original(*rest)))
    assert np.array_equal(floats.decode(payload, "U16", values.nbytes), bytes_of(values))
    assert len(calls) < 100


def test_an_index_that_is_missing_takes_no_memory_for_it():
    head = float_payload.HEAD.pack(1, 0, 0, 0, 1, 1 << 22)
    plane = float_payload.PLANE.pack(8, 0, 10, 1, 5, 0)
    payload = np.frombuffer(head + plane + bytes([1, 0, 0, 128, 8, 0, 0, 0]), np.uint8).copy()
    with pytest.raises(DamagedError):
        floats.decode(payload, "U8", 1 << 22)  # loads kernels
    tracemalloc.start()
    with pytest.raises(DamagedError, match="ends too early"):
        floats.decode(payload, "U8", 1 << 22)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 24  # a table for each segment, and not eight bytes more
