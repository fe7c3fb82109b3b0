"""Small tensors: coded in compiled calls of their own, to the same bytes as in steps."""

import numpy as np
import pytest

from squeeze.errors import DamagedError
from squeeze.packing.tensors import float_payload, floats, small
from squeeze.packing.tensors.content import InFile, InMemory
from squeeze.packing.tensors.float_plan import Plan
from squeeze.packing.tensors.float_writer import MemoryWriter
from squeeze.packing.tensors.small import SmallPlan
from squeeze.system.binary import Positional
from tests.makers.floats import as_bf16, bytes_of, weights

EDGES = (31, 32, 65, 1023, 4096, 9_001, 16_384, 32_767, 32_768, 32_769, 49_536, 70_001, 229_376)


def tensors(count):
    normal, generator = weights(count), np.random.default_rng(count)
    yield "BF16", as_bf16(normal)
    yield "BF16", as_bf16(np.where(generator.random(count) < 0.3, 0, normal))
    yield "F32", normal.astype(np.float32)
    yield "F32", as_bf16(normal).astype(np.uint32) << 16
    yield "F16", (normal * 30).astype(np.float16)
    yield "U16", generator.geometric(0.05, count).astype(np.uint16)
    yield "F8_E4M3", (as_bf16(normal) >> 4).astype(np.uint8)
    yield "I8", np.full(count, -3, np.int8)
    yield "I32", np.arange(count, dtype=np.int32) * 3
    yield "U8", generator.integers(0, 256, count, np.uint8)


def in_steps(data, dtype):
    plan, writer = Plan.of(InMemory(data), dtype, 1), MemoryWriter()
    if plan is None:
        return None, None
    size = plan.write(writer)
    return writer.payload(size), plan.most_zeros


@pytest.mark.parametrize("count", EDGES)
def test_small_tensors_get_the_bytes_of_large_ones(count):
    for dtype, values in tensors(count):
        data = bytes_of(values)
        expected, zeros = in_steps(data, dtype)
        plan = small.plan_of(InMemory(data), dtype, 1)
        if expected is None:
            assert plan is None
            continue
        assert isinstance(plan, SmallPlan) and (plan.count, plan.most_zeros) == (count, zeros)
        writer = MemoryWriter()
        payload = writer.payload(plan.write(writer))
        assert np.array_equal(payload, expected), dtype
        out = np.empty_like(data)
        assert small.decode(payload, dtype, out, 1) and np.array_equal(out, data)


@pytest.mark.parametrize(
    ("dtype", "count", "threads"), [("BF16", 229_377, 1), ("BF16", 131_072, 2), ("F64", 100, 1), ("BF16", 31, 1)]
)
def test_other_tensors_are_left_to_the_general_coder(dtype, count, threads):
    data = bytes_of(as_bf16(weights(count)) if dtype == "BF16" else weights(count))
    assert not isinstance(small.plan_of(InMemory(data), dtype, threads), SmallPlan)


def test_files_and_arrays_that_are_read_only_are_small_too(tmp_path):
    data = bytes_of(as_bf16(weights(4_000)))
    expected, _ = in_steps(data, "BF16")
    (tmp_path / "content").write_bytes(b"?" + data.tobytes())
    frozen = np.frombuffer(data.tobytes(), np.uint8)
    with (tmp_path / "content").open("rb") as file:
        for content in (InMemory(frozen), InFile(Positional(file), 1, data.size)):
            plan, writer = small.plan_of(content, "BF16", 1), MemoryWriter()
            assert isinstance(plan, SmallPlan)
            assert np.array_equal(writer.payload(plan.write(writer)), expected)
    out = np.empty_like(data)
    assert small.decode(np.frombuffer(expected.tobytes(), np.uint8), "BF16", out, 1) and np.array_equal(out, data)


def test_a_damaged_payload_is_left_to_what_names_its_fault():
    values = as_bf16(weights(3_000))
    data, generator = bytes_of(values), np.random.default_rng(8)
    payload, out = floats.encode(data, "BF16"), np.empty_like(data)
    for _ in range(500):
        hurt = payload.copy()
        hurt[generator.integers(0, 200)] ^= 1 << generator.integers(0, 8)
        try:
            coded = float_payload.parse(hurt, "BF16", data.size)
            expected = np.empty(values.size, np.uint16)
            floats.decode_segments(coded, 0, coded.segments, expected)
        except DamagedError as error:
            assert not small.decode(hurt, "BF16", out, 1)
            with pytest.raises(DamagedError) as found:
                floats.decode(hurt, "BF16", data.size)
            assert str(found.value) == str(error)
        else:
            assert small.decode(hurt, "BF16", out, 1) and np.array_equal(out, bytes_of(expected))
    for size in (0, 8, 16, 40, payload.size - 8):
        assert not small.decode(payload[:size].copy(), "BF16", out, 1)
