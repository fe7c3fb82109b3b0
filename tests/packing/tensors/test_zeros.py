"""Tensors with many zeros: coded by where and what the other values are, and back, bit for bit."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from safetensors.torch import load_file, save_file

import squeeze
from squeeze.checkpoint.pattern import Pattern
from squeeze.checkpoint.sparse import mask_of
from squeeze.errors import DamagedError
from squeeze.packing import container
from squeeze.packing.tensors import archive, floats, zeros
from squeeze.packing.tensors.archive import decoded
from squeeze.packing.tensors.content import InMemory, whole
from squeeze.packing.tensors.float_writer import in_memory
from squeeze.packing.tensors.floats import Decoded


def pruned(pattern="2:4", rows=256, columns=512, dtype=torch.bfloat16):
    weight = torch.randn((rows, columns), generator=torch.Generator().manual_seed(2))
    return weight.masked_fill(~mask_of(Pattern.parse(pattern), weight.abs()), 0).to(dtype)


def raw(tensor):
    return tensor.contiguous().view(torch.uint8).numpy().reshape(-1)


def encode(data, dtype, coder=floats, columns=0):
    content = InMemory(data)
    counts = zeros.count(content, dtype)
    return in_memory(lambda writer: zeros.write(content, dtype, writer, coder.write, 1, columns, counts))


def decode(payload, dtype, size, reader=Decoded):
    return whole(zeros.DecodedZeros(InMemory(payload), dtype, size, reader))


@pytest.mark.parametrize(("pattern", "bits"), [("2:4", 0.6462), ("1:4", 0.5), ("4:8", 0.7662), ("6:8", 0.6009)])
def test_masks_take_the_logarithm_of_the_number_of_masks(pattern, bits):
    mask = mask_of(Pattern.parse(pattern), torch.rand((1024, 1024))).numpy().reshape(-1)
    payload = zeros.encode_mask(mask)
    assert np.array_equal(zeros.decode_mask(payload, mask.size), mask)
    assert bits <= 8 * payload.size / mask.size < bits + 0.02


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn])
@pytest.mark.parametrize(("coder", "reader"), [(floats, Decoded), (archive, decoded)])
def test_tensors_are_restored(dtype, coder, reader):
    names = {torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32", torch.float8_e4m3fn: "F8_E4M3"}
    for pattern in ("2:4", "50%", "3:5"):
        data = raw(pruned(pattern, dtype=dtype))
        payload = encode(data, names[dtype], coder, 512)
        assert payload.size < 0.8 * data.size
        assert np.array_equal(decode(payload, names[dtype], data.size, reader), data)


@settings(max_examples=50)
@given(st.lists(st.sampled_from([0, 0, 0, 0x8000, 1, 0x3F80, 0xFFFF, 0x7FC1]), max_size=300))
def test_every_bit_pattern_comes_back(values):
    data = np.array(values, np.uint16).view(np.uint8)
    payload = encode(data, "BF16")
    if payload is not None:
        assert np.array_equal(decode(payload, "BF16", data.size), data)


def test_damaged_payloads_are_named():
    data = raw(pruned())
    payload = encode(data, "BF16")
    for at, value in ((0, payload[0] ^ 1), (6, 255), (8, payload[8] ^ 255), (14, 255)):
        hurt = payload.copy()
        hurt[at] = value
        with pytest.raises(DamagedError):
            decode(hurt, "BF16", data.size)
    with pytest.raises(DamagedError):
        decode(payload[:8], "BF16", data.size)


@pytest.mark.parametrize("level", ["runtime", "archive"])
def test_pack_saves_what_zeros_allow(tmp_path, level):
    tensors = {"a.weight": pruned(), "b.weight": pruned("50%", dtype=torch.float32), "dense": torch.randn(64, 64)}
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    squeeze.pack(tmp_path / "model.safetensors", tmp_path / "packed.safetensors", level=level)
    packed = container.read(tmp_path / "packed.safetensors")
    by_name = {t.name: r for t, r in zip(packed.file.tensors, packed.description.records, strict=True)}
    assert by_name["a.weight"].coding.name.startswith("zeros+")
    assert not by_name["dense"].coding.name.startswith("zeros+")
    size = next(t.size for t in packed.file.tensors if t.name == "a.weight")
    assert 8 * size / tensors["a.weight"].numel() < 6.3  # 16 bits stored
    for name, tensor in squeeze.load(tmp_path / "packed.safetensors").items():
        assert torch.equal(tensor, tensors[name])
    squeeze.unpack(tmp_path / "packed.safetensors", tmp_path / "back.safetensors")
    assert (tmp_path / "back.safetensors").read_bytes() == (tmp_path / "model.safetensors").read_bytes()
    assert set(load_file(tmp_path / "back.safetensors")) == set(tensors)
