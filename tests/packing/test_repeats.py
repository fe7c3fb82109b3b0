"""Tensors and pieces that a checkpoint holds twice are stored once, and every reader follows them."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import squeeze
from squeeze.checkpoint import safetensors as tensorfile
from squeeze.errors import DamagedError, SqueezeError
from squeeze.packing import container, repeats
from squeeze.packing.pack import shared_in
from squeeze.packing.shared import LITERAL, PIECE
from tests.makers.checkpoints import same, write
from tests.makers.command import fails
from tests.makers.floats import as_bf16, weights

LEVELS = ("fast", "runtime", "archive")


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def matrix(rows, seed):
    values = as_bf16(weights(rows * 512, seed)).view(np.int16)
    return torch.from_numpy(values).view(torch.bfloat16).view(rows, 512)


def twice(path):
    """Write a folder with the same weights as safetensors and, under other names, as a file of torch."""
    (path / "original").mkdir(parents=True)
    tensors = {f"layer.{n}.weight": matrix(200, n) for n in range(3)} | {"norm": matrix(2, 9)}
    save_file(tensors, path / "model.safetensors")
    torch.save({f"blocks.{name}": tensor.clone() for name, tensor in tensors.items()}, path / "original/all.pth")
    return path


def pieces(path):
    """Write a file with a matrix, and one that has its second half, other rows, and its first piece."""
    one, other = matrix(256, 1), matrix(64, 2)
    save_file({"a": one, "b": torch.cat([one[128:], other, one[:64]])}, path)
    return path


def codings(path):
    return {
        tensor.name: record.coding.name
        for packed in [container.read(path)]
        for tensor, record in zip(packed.file.tensors, packed.description.records, strict=True)
    }


@pytest.mark.parametrize("level", LEVELS)
def test_a_folder_that_holds_its_weights_twice_takes_half(tmp_path, level):
    folder = twice(tmp_path / "twice")
    squeeze.pack(folder / "model.safetensors", "one.safetensors", level=level)
    squeeze.pack(folder, "packed", level=level)
    size = sum(path.stat().st_size for path in (tmp_path / "packed").rglob("*") if path.is_file())
    assert size < 1.02 * (tmp_path / "one.safetensors").stat().st_size
    assert set(codings(tmp_path / "packed/original/all.pth").values()) == {"shared+stored"}
    squeeze.verify("packed", threads=2)
    squeeze.unpack("packed", "back")
    for name in ("model.safetensors", "original/all.pth"):
        assert same(f"back/{name}", folder / name)


@pytest.mark.parametrize("level", LEVELS)
def test_pieces_of_a_tensor_are_shared(tmp_path, level):
    path = pieces(tmp_path / "a.safetensors")
    sharing = shared_in({"": path})[""]["b"]
    assert [run.size // PIECE for run in sharing.table.runs] == [2, 1, 1]
    assert [run.source for run in sharing.table.runs] == [0, LITERAL, 0]
    squeeze.pack(path, "packed.safetensors", level=level)
    assert codings(tmp_path / "packed.safetensors")["b"].startswith("shared+")
    squeeze.unpack("packed.safetensors", "back.safetensors")
    assert same("back.safetensors", path)


@pytest.mark.parametrize("level", LEVELS)
def test_a_rest_that_no_coding_shortens_is_stored(tmp_path, level):
    noise = torch.from_numpy(np.random.default_rng(0).integers(0, 256, 5 * PIECE, np.uint8))
    save_file({"a": noise[: 2 * PIECE], "b": noise[PIECE:].clone()}, tmp_path / "a.safetensors")
    squeeze.pack("a.safetensors", "packed.safetensors", level=level, verify=False)
    assert codings(tmp_path / "packed.safetensors")["b"] == "shared+stored"
    squeeze.unpack("packed.safetensors", "back.safetensors")
    assert same("back.safetensors", tmp_path / "a.safetensors")


@pytest.mark.parametrize("level", LEVELS)
def test_loaders_follow_what_is_shared(tmp_path, level):
    one = matrix(256, 1)
    save_file({"embed": one, "head": one.clone(), "view": one.clone().view(128, 1024)}, "tied.safetensors")
    for path in (tmp_path / "tied.safetensors", pieces(tmp_path / "pieces.safetensors")):
        squeeze.pack(path, "packed.safetensors", level=level, overwrite=True)
        expected = load_file(path)
        loaded = squeeze.load("packed.safetensors")
        assert all(torch.equal(loaded[name], tensor) for name, tensor in expected.items())
        with squeeze.safe_open("packed.safetensors", framework="pt") as file:
            assert all(torch.equal(file.get_tensor(name), tensor) for name, tensor in expected.items())
            name = sorted(expected)[1]
            assert torch.equal(file.get_slice(name)[3:70], expected[name][3:70])
    assert loaded.nbytes < 2 * one.nbytes + 2 * 256 * 1024


def test_a_tied_head_stays_coded(tmp_path):
    one = matrix(256, 1)
    save_file({"embed": one, "head": one.clone()}, "tied.safetensors")
    squeeze.pack("tied.safetensors", "packed.safetensors")
    loaded = squeeze.load("packed.safetensors")
    assert loaded.nbytes < 2 * 0.8 * one.nbytes


def test_a_tensor_with_a_base_is_shared_only_whole(tmp_path):
    path = pieces(tmp_path / "a.safetensors")
    tensors = load_file(path) | {"c": matrix(256, 1)}
    tensors["b"][0, 0] += 1
    save_file(tensors, "b.safetensors")
    squeeze.pack("b.safetensors", "packed.safetensors", base="a.safetensors")
    found = codings(tmp_path / "packed.safetensors")
    assert found["c"] == "shared+stored"
    assert not found["b"].startswith("shared")
    squeeze.unpack("packed.safetensors", "back.safetensors", base="a.safetensors")
    assert same("back.safetensors", "b.safetensors")


def test_a_base_may_share(tmp_path):
    folder = twice(tmp_path / "twice")
    squeeze.pack(folder, "base")
    tuned = tmp_path / "tuned"
    (tuned / "original").mkdir(parents=True)
    tensors = load_file(folder / "model.safetensors")
    for tensor in tensors.values():
        tensor.view(torch.int16)[:, ::50] += 1
    save_file(tensors, tuned / "model.safetensors")
    torch.save({f"blocks.{name}": tensor.clone() for name, tensor in tensors.items()}, tuned / "original/all.pth")
    squeeze.pack(tuned, "packed", base="base")
    squeeze.unpack("packed", "back")
    assert same("back/original/all.pth", tuned / "original/all.pth")
    assert codings(tmp_path / "packed/model.safetensors")["layer.0.weight"] in ("ulps", "delta+rans")


def test_a_file_that_repeats_a_difference_finds_the_base(tmp_path):
    one, other = matrix(256, 1), matrix(256, 2)
    tuned = one.clone()
    tuned.view(torch.int16)[:, ::50] += 1
    for name, tensors in (("base", {"1": one, "2": other}), ("tuned", {"1": tuned, "2": tuned})):
        (tmp_path / name).mkdir()
        for number, tensor in tensors.items():
            save_file({f"{name if number == '2' else ''}{number}": tensor}, tmp_path / name / f"{number}.safetensors")
    squeeze.pack("base", "packed-base")
    squeeze.pack("tuned", "packed", base="base")
    assert codings(tmp_path / "packed/1.safetensors") == {"1": "ulps"}
    assert codings(tmp_path / "packed/2.safetensors") == {"tuned2": "shared+stored"}
    with squeeze.safe_open("packed/2.safetensors", framework="pt") as file:
        assert torch.equal(file.get_tensor("tuned2"), tuned)
    squeeze.unpack("packed/2.safetensors", "back.safetensors", base="packed-base")
    assert same("back.safetensors", "tuned/2.safetensors")
    with pytest.raises(SqueezeError, match="put it there, or name the base"):
        squeeze.verify("packed/2.safetensors")


def test_limits_of_memory_are_those_of_parts(tmp_path):
    noise = torch.from_numpy(np.random.default_rng(0).integers(0, 256, 1 << 26, np.uint8))
    (tmp_path / "model").mkdir()
    for name in ("1", "2"):
        save_file({name: noise}, tmp_path / "model" / f"{name}.safetensors")
    squeeze.pack("model", "packed", verify=False)
    assert codings(tmp_path / "packed/2.safetensors") == {"2": "shared+stored"}
    limits = squeeze.Limits(memory=100 << 20)
    assert squeeze.verify("packed", limits=limits).raw > 2 << 26
    with pytest.raises(squeeze.LimitError):
        squeeze.verify("packed", limits=squeeze.Limits(memory=50 << 20))


def test_a_stopped_run_continues_with_what_is_shared(tmp_path):
    folder = twice(tmp_path / "twice")
    squeeze.pack(folder, "whole")

    def stop(raw, coded, seen=[]):  # noqa: B006
        seen.append(raw)
        if len(seen) == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        squeeze.pack(folder, "packed", on_tensor=stop)
    squeeze.pack(folder, "packed")
    assert same("packed/original/all.pth", "whole/original/all.pth")


def test_damage_is_named_with_all_that_need_it(tmp_path):
    squeeze.pack(twice(tmp_path / "twice"), "packed")
    path = tmp_path / "packed/model.safetensors"
    whole = path.read_bytes()
    tensor = tensorfile.read(path).by_name["layer.1.weight"]
    damaged = bytearray(whole)
    damaged[tensor.begin + tensor.size // 2] ^= 64
    path.write_bytes(damaged)
    needed = "(also needed by tensor 'blocks.layer.1.weight' of original/all.pth)"
    assert fails("verify", "packed").endswith(f"{needed}\n")
    said = fails("verify", "packed/original/all.pth")
    assert "tensor 'layer.1.weight' of model.safetensors is damaged" in said
    assert said.count("\n") == 1
    path.unlink()
    said = fails("verify", "packed")
    assert said.startswith("Error: packed: model.safetensors is missing from the packed folder (also needed by tensor ")
    said = fails("unpack", "packed/original/all.pth", "back.pth")
    assert "model.safetensors is missing from the folder, and others repeat its tensors" in said
    (tmp_path / "packed/original/all.pth").rename("alone.pth")
    assert fails("verify", "alone.pth") == (
        "Error: its tensors repeat those of 'model.safetensors': leave it in its folder, with the manifest\n"
    )


def test_refuses_a_reference_to_a_reference(tmp_path):
    one = matrix(256, 1)
    save_file({"a": one, "b": one.clone(), "c": one.clone()}, "tied.safetensors")
    squeeze.pack("tied.safetensors", "packed.safetensors")
    data = (tmp_path / "packed.safetensors").read_bytes()
    for name, message in (("b", "is repeated, but repeats another one itself"), ("x", "is missing, and others")):
        (tmp_path / "bad.safetensors").write_bytes(data.replace(b'["","a"]', f'["","{name}"]'.encode()))
        with pytest.raises(DamagedError, match=message):
            squeeze.verify("bad.safetensors")
        with pytest.raises(SqueezeError, match=message):
            squeeze.load("bad.safetensors")


def test_constants_and_small_tensors_are_not_looked_up(tmp_path):
    zeros, small = ("F32", (64, 1024), bytes(64 * 4096)), ("U8", (1000,), bytes(range(250)) * 4)
    path = write(tmp_path / "a.safetensors", {"a": zeros, "b": zeros, "c": small, "d": small})
    assert repeats.find({"": tensorfile.read(path)}) == {}
