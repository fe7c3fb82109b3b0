"""Formats that compressed-tensors wrote and no longer reads, laid out here as its source described them."""

import json

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file

from squeeze.checkpoint.pattern import Pattern
from squeeze.cli import main
from squeeze.errors import FormatError
from squeeze.prune import legacy
from squeeze.prune.magnitude import Magnitude
from squeeze.prune.sparse24 import SparseFormat
from squeeze.recipes.densify import densify


def pruned(outputs, inputs, dtype=torch.bfloat16):
    weight = torch.randn((outputs, inputs), generator=torch.Generator().manual_seed(outputs))
    return weight.masked_fill(~Pattern().mask(weight.abs()), 0).to(dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float8_e4m3fn])
def test_bitmask(dtype):
    weight = pruned(6, 20).to(dtype)
    mask = weight.float() != 0
    bits = torch.from_numpy(np.packbits(mask.numpy(), axis=1, bitorder="little"))
    values = weight.view(torch.uint8)[mask].view(dtype) if dtype.itemsize == 1 else weight[mask]
    stored = {"a.compressed": values.reshape(6, 10), "a.bitmask": bits, "a.shape": torch.tensor([[6], [20]])}
    found = legacy.bitmask("a", stored)
    assert torch.equal(found.dequantize(), weight.float()) and torch.equal(found.mask, mask)
    for leaf, value, message in (
        ("bitmask", bits[:, :2], r"tensor a\.bitmask has shape"),
        ("compressed", values[:-1], "60 bits are set, but there are 59 values"),
        ("shape", torch.tensor([6]), "is not a matrix"),
    ):
        with pytest.raises(FormatError, match=message):
            legacy.bitmask("a", {**stored, f"a.{leaf}": value})


def cutlass_place(row, column, rows):
    """Where one 16-bit word of metadata goes, in plain integers."""
    moved = row // 64 * 64 + row % 2 * 2 + row % 8 // 4 + row % 32 % 4 // 2 * 32 + row % 64 // 8 * 4
    if moved % 2 == 0 and column % 2 == 1:
        moved, column = moved + 1, column - 1
    elif moved % 2 == 1 and column % 2 == 0:
        moved, column = moved - 1, column + 1
    return column // 2 * rows * 2 + moved * 2 + column % 2


def marlin_places(bits):
    """The order in which a warp loads the values of four tiles, thread by thread."""
    places = []
    for thread in range(32):
        one = []
        for block in (0, 1):
            for row in (2 * (thread % 4), 2 * (thread % 4) + 1, 2 * (thread % 4 + 4), 2 * (thread % 4 + 4) + 1):
                one.append(16 * row + thread // 4 // 2 * 256 + 8 * (thread // 4 % 2) + 4 * block)
        for j in range(4):
            places += [place + j for place in one]
    within = [0, 2, 4, 6, 1, 3, 5, 7] if bits == 4 else [0, 2, 1, 3]
    size = len(within)
    return [places[start + i] for start in range(0, len(places), size) for i in within]


def stored_marlin(codes, place, scales, bits):
    """codes, place: [O, I / 2]; scales: [O, G]."""
    outputs, kept = codes.shape
    words = np.zeros(outputs * kept // 8, np.uint16)
    for row in range(outputs):
        for column in range(kept // 8):
            word = sum(int(place[row, 8 * column + i]) << 2 * i for i in range(8))
            words[cutlass_place(row, column, outputs)] = word
    q = codes.numpy().T.reshape(kept // 16, 16, outputs // 16, 16).transpose(0, 2, 1, 3).reshape(kept // 16, -1)
    order = marlin_places(bits)
    q = q.reshape(-1, len(order))[:, order].reshape(q.shape).astype(np.uint32)
    packed = np.zeros((q.shape[0], q.shape[1] * bits // 32), np.uint32)
    for i in range(32 // bits):
        packed |= q[:, i :: 32 // bits] << np.uint32(bits * i)
    one = [0, 4, 1, 5, 2, 6, 3, 7] if scales.shape[1] > 1 else list(range(8))
    laid = scales.T.contiguous().reshape(-1, 64)[:, [8 * i + j for i in range(8) for j in one]]
    return {
        "a.weight_packed": torch.from_numpy(packed.view(np.int32)),
        "a.meta": torch.from_numpy(words.view(np.int16)).reshape(kept // 16, 2 * outputs),
        "a.scale_packed": laid.reshape(scales.T.shape).contiguous(),
    }


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("outputs", "inputs", "groups"), [(64, 64, 1), (128, 256, 2)])
def test_marlin(bits, outputs, inputs, groups):
    generator = torch.Generator().manual_seed(bits)
    mask = Pattern().mask(torch.rand((outputs, inputs), generator=generator))
    place = (mask.nonzero()[:, 1] % 4).reshape(outputs, -1)
    codes = torch.randint(0, 1 << bits, (outputs, inputs // 2), generator=generator)
    scales = (torch.rand((outputs, groups), generator=generator) + 0.1).half()
    stored = stored_marlin(codes, place, scales, bits)
    found = legacy.marlin("a", stored, bits)
    wanted = torch.zeros((outputs, inputs))
    wanted[mask] = (codes - (1 << bits - 1)).float().reshape(-1)
    wanted *= scales.float().repeat_interleave(inputs // groups, 1)
    assert torch.equal(found.mask, mask)
    assert torch.equal(found.dequantize(), wanted)
    with pytest.raises(FormatError, match="do not fit each other"):
        legacy.marlin("a", {**stored, "a.meta": stored["a.meta"][:-1]}, bits)
    with pytest.raises(FormatError, match="has 4 or 8 bits"):
        legacy.marlin("a", stored, 3)
    with pytest.raises(FormatError, match=r"tensor a\.meta is missing"):
        legacy.marlin("a", {name: t for name, t in stored.items() if name != "a.meta"}, bits)


def test_folders_are_made_dense(tmp_path):
    source, out = tmp_path / "sparse", tmp_path / "out"
    source.mkdir()
    weight = pruned(64, 64)
    bits = torch.from_numpy(np.packbits((weight != 0).numpy(), axis=1, bitorder="little"))
    stored = {"a.compressed": weight[weight != 0].reshape(64, 32), "a.bitmask": bits, "norm.weight": torch.ones(4)}
    stored["a.shape"] = torch.tensor([[64], [64]])
    codes, place = torch.zeros((64, 32), dtype=torch.int64), torch.tensor([0, 1]).repeat(64, 16)
    of_marlin = stored_marlin(codes, place, torch.ones((64, 1)).half(), 8)
    stored |= {name.replace("a.", "b."): tensor for name, tensor in of_marlin.items()}
    stored |= SparseFormat().tensors("c", Magnitude().apply(weight))
    save_file(stored, source / "model.safetensors")
    groups = {"config_groups": {"group_0": {"weights": {"num_bits": 8}}}}
    described = {"model_type": "llama", "torch_dtype": "bfloat16", "quantization_config": groups}
    (source / "config.json").write_text(json.dumps(described))
    done = CliRunner().invoke(main, ["densify", str(source), str(out), "--json"])
    assert done.exit_code == 0 and json.loads(done.stdout)["bytes"] == 3 * 64 * 64 * 2 + 16, done.output
    found = load_file(out / "model.safetensors")
    assert found.keys() == {"a.weight", "b.weight", "c.weight", "norm.weight"}
    assert torch.equal(found["a.weight"], weight) and torch.equal(found["c.weight"], weight)
    wanted = torch.tensor([-128.0, -128, 0, 0]).repeat(64, 16)
    assert torch.equal(found["b.weight"].float(), wanted)
    assert "quantization_config" not in json.loads((out / "config.json").read_text())
    with pytest.raises(FormatError, match="its weights are dense"):
        densify(out, tmp_path / "again")
    assert not (tmp_path / "again").exists()
