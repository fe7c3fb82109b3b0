"""Tensors on a grid: found, coded as codes and scales, and restored bit for bit."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from squeeze.errors import DamagedError
from squeeze.packing.tensors import archive, floats, grid, grid_plan
from squeeze.packing.tensors.archive import decoded
from squeeze.packing.tensors.content import InMemory, whole
from squeeze.packing.tensors.distinct import distinct
from squeeze.packing.tensors.float_writer import in_memory
from squeeze.packing.tensors.floats import Decoded
from squeeze.packing.tensors.grid_codes import rebuild, widen
from squeeze.packing.tensors.grid_fit import Space
from squeeze.packing.tensors.grid_levels import AFFINE, E4M3, E5M2, FP4, INT, NF4, PALETTE, SIGNED, TABLES
from tests.references import naive_grid

NAMES = {torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32"}
every = pytest.mark.parametrize("dtype", list(NAMES), ids=list(NAMES.values()))


def weights(rows=64, columns=256):
    return torch.randn((rows, columns), generator=torch.Generator().manual_seed(3)) * 0.02


def nearest(values, levels):
    return levels[(values[..., None] - levels).abs().argmin(-1)]


def whole_numbers(group, most, by_columns=False):
    weight = weights().T.contiguous() if by_columns else weights()
    values = weight.reshape(-1, group)
    scale = values.abs().amax(1, keepdim=True) / most
    found = (torch.round(values / scale).to(torch.int32) * scale).reshape(weight.shape)
    return found.T.contiguous() if by_columns else found


def with_zero_points(group=64, most=15):
    values = weights().reshape(-1, group)
    least, greatest = values.amin(1, keepdim=True), values.amax(1, keepdim=True)
    scale = (greatest - least) / most
    zero = torch.round(-least / scale)
    codes = torch.clamp(torch.round(values / scale) + zero, 0, most).to(torch.int32)
    return ((codes - zero.to(torch.int32)) * scale).reshape(64, 256)


def with_offsets(group=32):
    values = weights().reshape(-1, group)
    least = values.amin(1, keepdim=True)
    scale = (values.amax(1, keepdim=True) - least) / 15
    codes = torch.clamp(torch.floor((values - least) / scale + 0.5), 0, 15)
    return (codes * scale.half().float() + least.half().float()).reshape(64, 256)


def of_floats(dtype, most, by_blocks=False):
    values = weights(256, 256)
    scale = values.abs().amax(1, keepdim=True) / most
    if by_blocks:
        scale = values.reshape(2, 128, 2, 128).abs().amax((1, 3), keepdim=True) / most
        return ((values.reshape(2, 128, 2, 128) / scale).to(dtype).float() * scale).reshape(256, 256)
    return (values / scale).to(dtype).float() * scale


def of_levels(kind, group):
    values = weights().reshape(-1, group)
    levels = torch.from_numpy(np.concatenate((-TABLES[kind, 1, :8], TABLES[kind, 0, : 9 if kind == NF4 else 8])))
    scale = values.abs().amax(1, keepdim=True) / levels.max()
    return (nearest(values / scale, levels) * scale).reshape(64, 256)


CASES = {  # name: levels, tile, values
    "int8 of rows": (INT, (1, 256), lambda: whole_numbers(256, 127)),
    "int8 of columns": (INT, (64, 1), lambda: whole_numbers(64, 127, by_columns=True)),
    "int4 of groups": (INT, (1, 64), lambda: whole_numbers(64, 7)),
    "int4 with zero points": (INT, (1, 64), with_zero_points),
    "int4 with negative zeros": (SIGNED, (1, 64), lambda: -whole_numbers(64, 7)),
    "Q4_1": (AFFINE, (1, 32), with_offsets),
    "Q4_1 of one block": (AFFINE, (1, 64 * 256), lambda: with_offsets(64 * 256)),
    "FP8 of rows": (E4M3, (1, 256), lambda: of_floats(torch.float8_e4m3fn, 448.0)),
    "FP8 of blocks": (E4M3, (128, 128), lambda: of_floats(torch.float8_e4m3fn, 448.0, by_blocks=True)),
    "E5M2 of rows": (E5M2, (1, 256), lambda: of_floats(torch.float8_e5m2, 57344.0)),
    "FP4 of groups": (FP4, (1, 16), lambda: of_levels(FP4, 16)),
    "NF4 of groups": (NF4, (1, 64), lambda: of_levels(NF4, 64)),
    "a palette": (PALETTE, (1, 16384), lambda: weights(1, 40)[0][torch.arange(16384) * 7919 % 40].reshape(64, 256)),
}


def raw(tensor):
    return tensor.contiguous().view(torch.uint8).numpy().reshape(-1)


def encode(data, dtype, shape, coder=floats):
    content = InMemory(data)
    found = grid_plan.find(content, dtype, shape)
    return found, in_memory(lambda writer: grid.write(content, dtype, found, writer, coder.write, 1))


def decode(payload, dtype, size, reader=Decoded):
    return whole(grid.DecodedGrid(InMemory(payload), dtype, size, reader))


@every
@pytest.mark.parametrize("name", list(CASES))
def test_grids_are_found_and_restored(dtype, name):
    kind, tile, make = CASES[name]
    tensor = make().to(dtype)
    data = raw(tensor)
    found, payload = encode(data, NAMES[dtype], tuple(tensor.shape))
    assert (found.tiles.rows, found.tiles.width) == tile
    assert found.kind == kind or (found.kind, kind) == (SIGNED, INT)  # both have the whole numbers up to 127
    assert payload.size < 0.9 * floats.encode(data, NAMES[dtype]).size
    assert np.array_equal(decode(payload, NAMES[dtype], data.size), data)


@every
def test_the_archive_codes_codes_and_scales_with_contexts(dtype):
    data = raw(of_floats(torch.float8_e4m3fn, 448.0).to(dtype))
    _, payload = encode(data, NAMES[dtype], (256, 256), archive)
    assert np.array_equal(decode(payload, NAMES[dtype], data.size, decoded), data)


@every
@pytest.mark.parametrize("name", list(CASES))
def test_the_decoder_of_the_specification_restores_them(dtype, name):
    tensor = CASES[name][2]().to(dtype)[: 64 if CASES[name][1] == (64, 1) else 8, :64]
    data = raw(tensor)
    found, payload = encode(data, NAMES[dtype], tuple(tensor.shape))

    def inner(section, kind, size):
        return floats.decode(np.frombuffer(section, np.uint8).copy(), kind, size).tobytes()

    assert found is not None
    assert naive_grid.decode(payload.tobytes(), NAMES[dtype], tensor.numel(), inner) == data.tobytes()


@every
def test_weights_on_no_grid_are_none(dtype):
    tensor = weights().to(dtype)
    assert grid_plan.find(InMemory(raw(tensor)), NAMES[dtype], tuple(tensor.shape)) is None


@pytest.mark.parametrize("bad", [float("inf"), float("nan"), 1e-3])
def test_one_value_off_the_grid_makes_it_none(bad):
    tensor = whole_numbers(256, 127)
    tensor[40, 9] = bad
    assert grid_plan.find(InMemory(raw(tensor)), "F32", (64, 256)) is None


def test_every_bf16_and_fp16_is_its_own_value_and_rounded_to_itself():
    for form, dtype in enumerate((torch.bfloat16, torch.float16)):
        words = torch.arange(1 << 16).to(torch.uint16).view(dtype)
        words = words[words.isfinite()]
        values, back = np.empty(len(words), np.float32), np.empty(len(words), np.uint16)
        widen(raw(words).view(np.uint16), form, values)
        assert np.array_equal(values.view(np.uint32), words.float().numpy().view(np.uint32))
        none, firsts = np.zeros(1, np.float32), np.zeros(1, np.int16)
        for k in range(0, len(words), 256):  # as levels of a scale of 1
            levels = np.resize(values[k : k + 256], 256)
            codes, out = np.arange(256).astype(np.uint8), back[k : k + 256]
            rebuild(codes[: out.size], 0, form, E4M3, 256, 1, 256, none + 1, none, firsts, levels, out)
        assert np.array_equal(back, raw(words).view(np.uint16))


def test_products_are_rounded_as_torch_rounds_them():
    for form, dtype in enumerate((torch.bfloat16, torch.float16)):
        levels = (
            torch.randn(256, generator=torch.Generator().manual_seed(1)) * 2.0 ** torch.arange(-28, 4).repeat(8)
        ).numpy()
        out, one = np.empty(256, np.uint16), np.full(1, 0.7431, np.float32)
        codes, firsts = np.arange(256).astype(np.uint8), np.zeros(1, np.int16)
        rebuild(codes, 0, form, E4M3, 256, 1, 256, one, one, firsts, levels, out)
        assert np.array_equal(out, raw(torch.from_numpy(levels * one).to(dtype)).view(np.uint16))


def test_distinct_words_are_counted_up_to_a_limit():
    space = Space()
    words = (np.arange(1000) % 300).astype(np.uint32)
    assert distinct(words, 0, 300, space.slots, space.words) == 300
    assert sorted(space.words[:300]) == list(range(300))
    space.slots[:] = 0
    assert distinct(words, 0, 299, space.slots, space.words) == -1


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.sampled_from([0, 1, 0x8000, 0x3F80, 0xBF80, 0x4000, 0xC040, 0x7F80, 0xFFFF]), min_size=1, max_size=9)
)
def test_every_bit_pattern_comes_back(values):
    data = np.resize(np.array(values, np.uint16), 4096).view(np.uint8)
    _, payload = encode(data, "BF16", (64, 64))
    assert np.array_equal(decode(payload, "BF16", data.size), data)


def test_parts_are_decoded_alone():
    data = raw(whole_numbers(64, 7).repeat(20, 1))
    _, payload = encode(data, "F32", (1280, 256))
    content = grid.DecodedGrid(InMemory(payload), "F32", data.size, Decoded)
    for begin, end in ((0, 4), (262_000, 263_000), (data.size - 400, data.size)):
        out = np.empty(end - begin, np.uint8)
        content.fill(begin, out)
        assert np.array_equal(out, data[begin:end])


@pytest.mark.parametrize(
    ("at", "value"),
    [(0, 2), (1, 8), (2, 2), (3, 3), (3, 48), (4, 1), (8, 0), (15, 255), (16, 0), (23, 255), (24, 0), (31, 255)]
    + [(place, 255) for place in (39, 47, 55, 63, 32, 40)],
)
def test_damaged_payloads_are_named(at, value):
    data = raw(whole_numbers(64, 7))
    _, payload = encode(data, "F32", (64, 256))
    hurt = payload.copy()
    hurt[at] = value
    with pytest.raises(DamagedError):
        decode(hurt, "F32", data.size)


def test_truncated_payloads_and_infinite_scales_are_damaged():
    data = raw(whole_numbers(64, 7))
    found, payload = encode(data, "F32", (64, 256))
    with pytest.raises(DamagedError):
        decode(payload[:40].copy(), "F32", data.size)
    scales = np.full(found.scales.size, np.inf, np.float32).view(np.uint8)
    rest = payload[64 + -(-int(payload[32:40].view(np.uint64)[0]) // 8) * 8 :]
    hurt = np.concatenate((payload[:64], scales, rest))
    hurt[32:40] = np.array([scales.size], np.uint64).view(np.uint8)
    hurt[3] = hurt[3] & 0xF0 | 2
    with pytest.raises(DamagedError, match="finite"):
        decode(hurt, "F32", data.size)
