"""Folders that were made smaller and then packed: they load as they are, and compute what the unpacked ones do."""

import itertools
import json
import re

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import squeeze
from squeeze.cli import main
from squeeze.errors import DamagedError, SqueezeError
from squeeze.integrations.load_model import load_model
from squeeze.packing import container
from squeeze.packing.record import Record
from squeeze.prune.scores import Magnitude
from squeeze.prune.stored import Sparse24Linear
from squeeze.quant.rtn import RTN
from tests.makers import tiny_models
from tests.makers.cases import every
from tests.makers.checkpoints import tensors, write

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

IDS = torch.randint(0, 300, (2, 20), generator=torch.Generator().manual_seed(1))
WAYS = {
    "sparse": lambda source, out: squeeze.prune(source, Magnitude(), out=out),
    "quantised": lambda source, out: squeeze.quantize(source, RTN(bits=4, group_size=32), out=out, format="squeeze"),
    "factorised": lambda source, out: squeeze.factorize(source, "svd", keep=0.7, out=out),
}


def logits(folder):
    with torch.no_grad():
        return load_model(folder)(IDS).logits


@pytest.mark.parametrize(("kind", "way"), every(2, itertools.product(["llama", "gpt2", "qwen2_moe"], WAYS)))
def test_packed_folders_compute_what_unpacked_ones_do(tmp_path, folders, kind, way):
    WAYS[way](folders(kind), tmp_path / "made")
    squeeze.pack(tmp_path / "made", tmp_path / "packed")
    assert torch.equal(logits(tmp_path / "packed"), logits(tmp_path / "made"))


@pytest.mark.parametrize("kind", ["llama", "qwen2_moe"])
def test_differences_and_archives_load(tmp_path, folders, kind):
    """Experts that transformers merges are decoded one by one."""
    squeeze.prune(folders(kind), Magnitude(), out=tmp_path / "made")
    squeeze.pack(tmp_path / "made", tmp_path / "one", level="archive")
    squeeze.pack(tmp_path / "made", tmp_path / "two", base=tmp_path / "one")
    (tmp_path / "alone").mkdir()
    (tmp_path / "two").rename(tmp_path / "alone" / "three")
    squeeze.pack(tmp_path / "made", tmp_path / "two", base=tmp_path / "one")
    expected = logits(tmp_path / "made")
    for name in ("one", "two"):
        assert torch.equal(logits(tmp_path / name), expected)
    with torch.no_grad():
        assert torch.equal(load_model(tmp_path / "alone" / "three", base=tmp_path / "made")(IDS).logits, expected)
    squeeze.densify(tmp_path / "alone" / "three", tmp_path / "dense", base=tmp_path / "made")


def test_eval_and_generate_read_packed_folders(tmp_path):
    model = tiny_models.write_folder(tmp_path / "model", tiny_models.byte_level(), vocab_size=400)
    text = tmp_path / "text.txt"
    text.write_text(tiny_models.TRAINING_TEXT.decode()[:2000])
    squeeze.prune(model, Magnitude(), out=tmp_path / "made")
    squeeze.pack(tmp_path / "made", tmp_path / "packed")
    assert any(isinstance(module, Sparse24Linear) for module in load_model(tmp_path / "packed").modules())
    found = []
    for name in ("made", "packed"):
        folder = str(tmp_path / name)
        done = [CliRunner().invoke(main, ["eval", folder, "--text", str(text), "--json", "-T", "1"])]
        done.append(CliRunner().invoke(main, ["generate", folder, "once", "-n", "5", "-q"]))
        assert [one.exit_code for one in done] == [0, 0], [one.output for one in done]
        found.append((json.loads(done[0].stdout)["perplexity"], done[1].stdout))
    assert found[0] == found[1]


def test_resident_tensors_are_decoded_once(tmp_path):
    values = np.linspace(0, 1, 4096, dtype=np.float32)
    write(tmp_path / "a.safetensors", {name: ("F32", (64, 64), values.tobytes()) for name in "abc"})
    squeeze.pack(tmp_path / "a.safetensors", tmp_path / "b.safetensors")
    coded = squeeze.load(tmp_path / "b.safetensors")
    for resident, kept in ((0, ""), (values.nbytes - 1, ""), (2 * values.nbytes, "ab"), ("1M", "abc")):
        weights = squeeze.load(tmp_path / "b.safetensors", resident=resident)
        assert weights.nbytes - coded.nbytes == sum(values.nbytes - coded.entries[name].nbytes for name in kept)
        for name in "abc":
            assert torch.equal(weights[name].view(-1), torch.from_numpy(values))
            assert (weights[name] is weights[name]) == (name in kept)
            buffer = torch.empty(64, 64)
            assert torch.equal(weights.decode(name, buffer), weights[name])
    with pytest.raises(squeeze.OptionError, match="'2 gigabytes' is not a size such as 65536, 64K or 4M"):
        squeeze.load(tmp_path / "b.safetensors", resident="2 gigabytes")


def test_resident_memory_changes_no_result_of_eval_and_generate(tmp_path):
    model = tiny_models.write_folder(tmp_path / "model", tiny_models.byte_level(), vocab_size=400)
    text = tmp_path / "text.txt"
    text.write_text(tiny_models.TRAINING_TEXT.decode()[:2000])
    squeeze.pack(model, tmp_path / "packed")
    folder, resident = str(tmp_path / "packed"), ["--resident", "64K"]
    for command, rest in {"eval": ["--text", str(text), "-q"], "generate": ["once", "-n", "5", "-q"]}.items():
        done = [CliRunner().invoke(main, [command, folder, *rest, *more]) for more in ((), resident)]
        assert [one.exit_code for one in done] == [0, 0], [one.output for one in done]
        assert len({re.sub("tokens per second.*", "", one.stdout) for one in done}) == 1
        bad = CliRunner().invoke(main, [command, folder, *rest, "--resident", "much"])
        assert bad.exit_code == 2 and "'much' is not a size such as 65536, 64K or 4M" in bad.output
        plain = CliRunner().invoke(main, [command, str(model), *rest, *resident])
        assert plain.output == f"Error: {model}: is not packed, so all of it is resident: leave out --resident\n"
    product, rest = ["--product", "fused"], ["once", "-n", "5", "-q"]
    assert CliRunner().invoke(main, ["generate", folder, *rest, *product]).exit_code == 0
    plain = CliRunner().invoke(main, ["generate", str(model), *rest, *product])
    assert plain.output == f"Error: {model}: is not packed, so no product decodes its weights: leave out --product\n"


@pytest.mark.parametrize("level", ["fast", "runtime", "archive"])
def test_a_damaged_tensor_is_named(level, tmp_path):
    raw = {name: value for name, value in tensors().items() if name in ("layer.weight", "half", "wide", "noise")}
    write(tmp_path / "a.safetensors", raw)
    path = tmp_path / "b.safetensors"
    squeeze.pack(tmp_path / "a.safetensors", path, level=level)
    whole = path.read_bytes()
    for tensor in container.read(path).file.tensors:
        hurt = bytearray(whole)
        hurt[tensor.begin + tensor.size // 2] ^= 0x10
        path.write_bytes(hurt)
        with pytest.raises(DamagedError, match=f"tensor '{tensor.name}'"):
            squeeze.load(path)[tensor.name]


def test_weights_load_without_the_base_of_the_states(tmp_path):
    states = [{"state": {0: {"exp_avg": torch.linspace(0, 1, 20_000) * (1 + 1e-6 * step)}}} for step in range(2)]
    for step, state in enumerate(states):
        (tmp_path / f"{step}").mkdir()
        torch.save(state, tmp_path / f"{step}" / "optimizer.pt")
    values = np.linspace(0, 1, 4096, dtype=np.float32)
    write(tmp_path / "1" / "model.safetensors", {"w": ("F32", (64, 64), values.tobytes())})
    (tmp_path / "packed").mkdir()
    squeeze.pack(tmp_path / "0", tmp_path / "packed" / "0")
    squeeze.pack(tmp_path / "1", tmp_path / "packed" / "1", base=tmp_path / "packed" / "0")
    for base in (None, tmp_path / "0"):
        squeeze.verify(tmp_path / "packed" / "1", base=base)
        weights = squeeze.load(tmp_path / "packed" / "1", base=base)
        assert torch.equal(weights["w"].view(-1), torch.from_numpy(values))


def test_refuses_a_base_that_is_not_needed(tmp_path):
    write(tmp_path / "a.safetensors", {"a": ("F32", (64,), bytes(256))})
    squeeze.pack(tmp_path / "a.safetensors", tmp_path / "b.safetensors")
    with pytest.raises(SqueezeError, match=r"^this checkpoint is not a difference: leave out the base$"):
        squeeze.load(tmp_path / "b.safetensors", base=tmp_path / "a.safetensors")


def test_empty_tensors_load(tmp_path):
    write(tmp_path / "a.safetensors", {"a": ("F32", (0, 7), b""), "b": ("F32", (), np.float32(2).tobytes())})
    squeeze.pack(tmp_path / "a.safetensors", tmp_path / "b.safetensors")
    weights = squeeze.load(tmp_path / "b.safetensors")
    assert weights["a"].shape == (0, 7) and weights["a"].dtype == torch.float32 and weights["b"] == 2


def test_a_checksum_is_compared_once(tmp_path, monkeypatch):
    write(tmp_path / "a.safetensors", {"a": ("F32", (64, 64), np.ones(4096, np.float32).tobytes())})
    squeeze.pack(tmp_path / "a.safetensors", tmp_path / "b.safetensors")
    weights = squeeze.load(tmp_path / "b.safetensors")
    calls, original = [], Record.check
    monkeypatch.setattr(Record, "check", lambda *rest: calls.append(original(*rest)))
    assert torch.equal(weights["a"], weights["a"])
    assert len(calls) == 1
