"""Decoding on accelerators: the reference equals the CPU decoder, and the Triton kernel equals the reference."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from squeeze.packing import device_decode
from squeeze.packing.device_decode import reference
from squeeze.packing.device_decode.together import Together
from squeeze.packing.tensors import fixed, float_payload, float_plan, floats
from tests.makers.floats import as_bf16, bytes_of, weights
from tests.makers.gpu import compile_for_a_gpu

kernel = pytest.importorskip("squeeze.packing.device_decode.kernel", reason="triton is not installed")

every = np.arange(1 << 16, dtype=np.uint16)
# dtype, values, lanes and rows of a segment: the interpreter takes milliseconds a row.
CASES = {
    "bf16": ("BF16", as_bf16(weights(1_000)), 32, 32),
    "bf16, one lane": ("BF16", as_bf16(weights(100)), 1, 128),
    "bf16, four lanes, odd": ("BF16", as_bf16(weights(203)), 4, 32),
    "bf16, several segments": ("BF16", as_bf16(weights(1_501)), 32, 16),
    "bf16, rows that fill no words": ("BF16", as_bf16(weights(1_400)), 32, 33),
    "bf16, most exponents": ("BF16", np.append(as_bf16(weights(3_000)), every[::97]), 64, 40),
    "bf16, constant": ("BF16", np.full(500, 0xBF80, np.uint16), 32, 8),
    "bf16, in two planes": ("BF16", np.random.default_rng(2).geometric(0.05, 800).astype(np.uint16), 32, 16),
    "fp16": ("F16", weights(1_500).astype(np.float16), 32, 32),
    "fp32": ("F32", weights(600).astype(np.float32), 32, 16),
    "fp32 that was bf16": ("F32", as_bf16(weights(550)).astype(np.uint32) << 16, 32, 16),
    "fp64": ("F64", weights(550), 32, 16),
    "fp8": ("F8_E4M3", (as_bf16(weights(1_500)) >> 4).astype(np.uint8), 16, 64),
    "int64": ("I64", np.arange(600) % 100, 32, 16),
    "int32, negative": ("I32", np.arange(-150, 150, dtype=np.int32), 16, 16),
}


@pytest.fixture(autouse=True)
def restore_geometry(monkeypatch):
    monkeypatch.setattr(float_plan, "geometry", float_plan.geometry)


def prepared_for(dtype, values, lanes, rows):
    """A payload with its parts as a kernel takes them, on the CPU."""
    data = bytes_of(values)
    float_plan.geometry = lambda count, dtype: (lanes, rows)
    payload = floats.encode(data, dtype)
    coded = float_payload.parse(payload, dtype, data.size)
    there = torch.from_numpy(payload)
    parts = (coded.count, coded.bits, coded.rotated, coded.lanes, coded.rows, device_decode.device_planes(coded, there))
    return data, device_decode.Prepared(dtype, data.size, there, *parts, coded)


def decode_with(module, monkeypatch, prepared, segments=None):
    """The bytes of the segments decoded by `module`, at their places or packed."""
    monkeypatch.setattr(device_decode, "_backend", lambda device: module)
    packed = segments is not None
    chosen = torch.tensor(segments) if packed else torch.arange(prepared.segments)
    count = len(chosen) * prepared.per_segment if packed else prepared.count
    out = torch.zeros(count, dtype=device_decode._WORDS[prepared.bits])
    device_decode.decode_planes(prepared, chosen, out, packed)
    return out.view(torch.uint8).numpy()


@pytest.mark.parametrize("case", list(CASES))
def test_reference_and_kernel_equal_the_cpu_decoder(case, monkeypatch):
    data, prepared = prepared_for(*CASES[case])
    for module in (reference, kernel):
        assert np.array_equal(decode_with(module, monkeypatch, prepared), data), module.__name__


def test_some_segments_in_any_order(monkeypatch):
    values = as_bf16(weights(2_500))
    _, prepared = prepared_for("BF16", values, 32, 32)
    for module in (reference, kernel):
        found = decode_with(module, monkeypatch, prepared, [2, 0]).view(np.uint16)
        size = prepared.per_segment
        assert np.array_equal(found[: len(values) - 2 * size], values[2 * size :])
        assert np.array_equal(found[size:], values[:size])


@pytest.mark.parametrize("coder", [floats, fixed])
def test_the_cpu_decodes_both_codings(coder):
    values = as_bf16(weights(200_000))
    payload = torch.from_numpy(coder.encode(bytes_of(values), "BF16"))
    prepared = device_decode.prepare(payload, "BF16", 2 * values.size, coder is fixed)
    expected = torch.from_numpy(values.view(np.int16)).view(torch.bfloat16)
    found = device_decode.decode(prepared, threads=2)
    assert found.dtype == torch.bfloat16
    assert torch.equal(found.view(torch.int16), expected.view(torch.int16))
    buffer = torch.zeros(2 * values.size, dtype=torch.uint8)
    assert device_decode.decode(prepared, buffer).data_ptr() == buffer.data_ptr()
    assert torch.equal(buffer, expected.view(torch.uint8))
    parts = device_decode.decode_segments(prepared, [1, 2])
    assert torch.equal(parts[0], expected[prepared.per_segment : 2 * prepared.per_segment])


COMPILE = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from squeeze.packing.device_decode.kernel import _decode

types = "*i16 *i64 *i32 *i64 *u8 *u8 *i64 *i16 i64 *i32 i64 i32 i32".split()
names = "out segments states starts ids table entries words limit raw count rows constant".split()
for lanes, precision, raw_bits in ((32, 13, 6), (64, 11, 0), (1, 10, 8), (16, 0, 5)):
    constants = dict(LANES=lanes, PRECISION=precision, WIDTH=16, RAW_BITS=raw_bits, ROTATED=True, PACKED=False)
    constants |= dict(PTX=True)
    signature = dict(zip(names, types)) | dict.fromkeys(constants, "constexpr")
    source = ASTSource(fn=_decode, signature=signature, constexprs=constants)
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 1})
    wanted = ("popc", "vote.sync.ballot", "prefetch") if lanes == 32 else ()
    assert all(name in compiled.asm["ptx"] for name in wanted)
"""


@pytest.mark.slow
def test_the_kernel_compiles_for_a_gpu_that_is_not_there(tmp_path):
    compile_for_a_gpu(COMPILE, tmp_path)


@pytest.mark.cuda
@pytest.mark.parametrize("case", list(CASES))
def test_a_gpu_decodes_as_the_cpu(case):
    data, prepared = prepared_for(*CASES[case])
    found = device_decode.decode(device_decode.prepare(prepared.payload.cuda(), prepared.dtype, data.size))
    assert np.array_equal(found.view(torch.uint8).cpu().numpy(), data)


@pytest.mark.parametrize("module", [reference, kernel], ids=["reference", "kernel"])
def test_damaged_segments_read_no_word_that_is_not_there(module):
    """States of 0 take a word for every value, beyond the last of the words: what lies there is not seen."""
    _, prepared = prepared_for(*CASES["bf16, several segments"])
    plane = prepared.planes[0]
    last = torch.tensor([prepared.segments - 1])
    found = []
    for behind in (1, -1):
        memory = torch.cat([plane.words, torch.full((prepared.per_segment,), behind, dtype=torch.int16)])
        hurt = replace(plane, states=torch.zeros_like(plane.states), words=memory[: plane.words.numel()])
        found.append(torch.zeros(prepared.per_segment, dtype=torch.int16))
        module.decode_plane(prepared, hurt, last, found[-1], prepared.rotated, True)
    assert torch.equal(*found)


def test_planes_are_where_the_payload_is():
    """A device holds nothing but tables besides the payload."""
    _, prepared = prepared_for(*CASES["bf16, several segments"])
    begin, plane = prepared.payload.data_ptr(), prepared.planes[0]
    for part in (plane.states, plane.words, plane.raw):
        assert begin <= part.data_ptr() <= begin + prepared.payload.nbytes - part.nbytes


def several() -> tuple[list, list]:
    """Tensors of several kinds of planes and sizes, as kernels take them: the CPU's own decoder is not asked."""
    cases = (
        ("BF16", as_bf16(weights(1_400)), 32, 32),
        ("BF16", as_bf16(weights(203)), 4, 32),
        ("F32", as_bf16(weights(600)).astype(np.uint32) << 16, 32, 32),
        ("BF16", np.full(300, 0xBF80, np.uint16), 32, 8),
    )
    data, prepared = zip(*(prepared_for(*case) for case in cases), strict=True)
    assert [one.planes[0].precision > 0 for one in prepared] == [True, True, True, False]
    return list(data), [replace(one, coded=None) for one in prepared]


def test_several_tensors_decode_at_once(monkeypatch):
    data, prepared = several()
    monkeypatch.setattr(device_decode, "_backend", lambda device: reference)
    both = Together([*prepared, prepared[1]])
    for _ in range(2):  # into another memory
        found = both.decode(torch.zeros(both.size, dtype=torch.uint8))
        for expected, values in zip([*data, data[1]], found, strict=True):
            assert np.array_equal(values.view(torch.uint8).numpy(), expected)


def test_tensors_of_one_kind_take_one_launch(monkeypatch):
    _, prepared = several()
    runs = []
    monkeypatch.setattr(kernel, "decode_several", lambda *given: runs.append(len(given[3])))
    monkeypatch.setattr(device_decode, "_backend", lambda device: reference)
    alike = [one for one in prepared if one.dtype == "BF16" and one.planes[0].precision]
    same = Together([alike[0]] * 3)
    same.decode(torch.zeros(same.size, dtype=torch.uint8))
    assert runs == [3 * alike[0].segments]


@pytest.mark.cuda
def test_several_tensors_decode_at_once_on_a_gpu():
    data, prepared = several()
    there = [device_decode.prepare(one.payload.cuda(), one.dtype, one.size) for one in prepared]
    both = Together(there)
    found = both.decode(torch.zeros(both.size, dtype=torch.uint8, device="cuda"))
    for expected, values in zip(data, found, strict=True):
        assert np.array_equal(values.view(torch.uint8).cpu().numpy(), expected)


@pytest.mark.parametrize("case", ["bf16, several segments", "bf16, in two planes", "fp32", "int32, negative"])
def test_a_device_that_decodes_wrongly_leaves_it_to_the_cpu(case, monkeypatch):
    _, prepared = prepared_for(*CASES[case])
    there, here = replace(prepared, coded=None), replace(prepared, planes=())
    monkeypatch.setattr(device_decode, "_known", {})
    monkeypatch.setattr(device_decode, "_backend", lambda device: reference)
    assert device_decode._is_right(there, here)

    def wrong(*given):
        reference.decode_plane(*given)
        given[3].view(torch.uint8)[0] ^= 1

    monkeypatch.setattr(device_decode, "_known", {})
    monkeypatch.setattr(device_decode, "_backend", lambda device: SimpleNamespace(decode_plane=wrong))
    with pytest.warns(UserWarning, match=r"^cpu decodes \w+ wrongly: the CPU decodes it, slowly$"):
        assert not device_decode._is_right(there, here)
    assert not device_decode._is_right(there, here)  # without another warning
