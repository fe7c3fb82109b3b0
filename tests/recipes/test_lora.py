"""`squeeze delta --format peft`: adapters hold differences of low rank, and peft computes with them what we do."""

import json
from functools import partial

import pytest
import torch
from safetensors.torch import load_file, save_file

import squeeze
from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.checkpoint.lora_folder import ADAPTER, CONFIG
from squeeze.engine.network import Network, is_linear
from squeeze.errors import SqueezeError
from squeeze.factor.curvature import curvature, damage
from squeeze.factor.lora import LoraMethod, bits_of_rank
from squeeze.integrations.load_model import load_model
from squeeze.recipes.lora_ranks import ranked

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

TOKENS = torch.randint(0, 300, (4, 32), generator=torch.Generator().manual_seed(1))
PREFIX = "base_model.model."


def tune(base, folder, rank):
    """Save a network whose matrices differ from those of a folder by products of this rank."""
    model = load_model(base)
    torch.manual_seed(5)
    for module in [one for name, one in model.named_modules() if is_linear(one) and name != "lm_head"]:
        weight = module.weight.data
        weight += 0.05 * torch.randn(weight.shape[0], rank) @ torch.randn(rank, weight.shape[1])
    model.save_pretrained(folder)
    return folder


def weight_in(model, name):
    return model.get_submodule(name).weight.detach()


def merged(base, out):
    """Return the tensors of a base with an adapter's products added."""
    tensors, adapter = {}, load_file(out / ADAPTER)
    for path in base.glob("*.safetensors"):
        tensors |= load_file(path)
    config = json.loads((out / CONFIG).read_text())
    for module in config["target_modules"]:
        down, up = (adapter[f"{PREFIX}{module}.lora_{leaf}.weight"].float() for leaf in "AB")
        product = config["lora_alpha"] / config["r"] * up @ down
        weight = tensors[f"{module}.weight"]
        tensors[f"{module}.weight"] = weight.float() + (product.T if config["fan_in_fan_out"] else product)
    return tensors


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_a_difference_of_low_rank_is_held(tmp_path, folders, kind):
    base, tuned = folders(kind), tune(folders(kind), tmp_path / "tuned", 3)
    report = squeeze.delta(base, tuned, out=tmp_path / "out", format="peft", rank=3, calibration=TOKENS)
    wanted, found = load_file(tuned / "model.safetensors"), merged(base, tmp_path / "out")
    for layer in report.layers:
        weight = wanted[f"{layer.name}.weight"]
        assert (found[f"{layer.name}.weight"] - weight).norm() < 1e-3 * weight.norm(), layer.name
    assert {layer.rank for layer in report.layers} == {3}
    assert report.stored_bytes == (tmp_path / "out" / ADAPTER).stat().st_size
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "tuned"]


def test_factors_on_grids_are_floats_that_pack_stores_as_codes(tmp_path, folders):
    base, tuned = folders("llama"), tune(folders("llama"), tmp_path / "tuned", 3)
    shared = {"format": "peft", "rank": 16, "calibration": TOKENS}
    report = squeeze.delta(base, tuned, out=tmp_path / "out", bits=4, **shared)
    plain = squeeze.delta(base, tuned, out=tmp_path / "plain", **shared)
    wanted, found = load_file(tuned / "model.safetensors"), merged(base, tmp_path / "out")
    for layer in report.layers:
        change = wanted[f"{layer.name}.weight"] - weight_in(load_model(base), layer.name)
        assert (found[f"{layer.name}.weight"] - wanted[f"{layer.name}.weight"]).norm() < 0.25 * change.norm(), (
            layer.name
        )
    assert all(len(row.unique()) <= 16 for name, one in load_file(tmp_path / "out" / ADAPTER).items() for row in one
               if ".lora_B." in name)  # fmt: skip
    coded = sum(layer.bits * layer.shape[0] * layer.shape[1] / 8 for layer in report.layers)
    assert report.notes[-1].endswith(f"in about {coded:.0f} bytes")
    squeeze.pack(tmp_path / "out", tmp_path / "packed", level="archive")
    assert (tmp_path / "packed" / ADAPTER).stat().st_size < coded + 10_000 < 0.6 * plain.stored_bytes
    squeeze.unpack(tmp_path / "packed", tmp_path / "again")
    assert (tmp_path / "again" / ADAPTER).read_bytes() == (tmp_path / "out" / ADAPTER).read_bytes()


def test_a_size_chooses_the_rank_of_each_matrix(tmp_path, folders):
    base, tuned = folders("llama"), tune(folders("llama"), tmp_path / "tuned", 3)
    tensors = load_file(tuned / "model.safetensors")
    name = "model.layers.0.mlp.up_proj"
    weight = tensors[f"{name}.weight"]
    tensors[f"{name}.weight"] = weight + torch.randn(weight.shape, generator=torch.Generator().manual_seed(2))
    save_file(tensors, tuned / "model.safetensors", {"format": "pt"})
    report = squeeze.delta(base, tuned, out=tmp_path / "out", format="peft", target_bytes=40_000, calibration=TOKENS)
    bases = {layer.name: partial(weight_in, load_model(base), layer.name) for layer in report.layers}
    chosen = ranked(Network(Checkpoint.open(tuned)), bases, TOKENS, 40_000, None)
    ranks = {layer.name: layer.rank for layer in report.layers}
    assert ranks == {name: one.rank for name, one in chosen.items()}
    assert max(ranks, key=ranks.get) == name, sorted(ranks.items(), key=lambda one: -one[1])
    written = load_file(tmp_path / "out" / ADAPTER)
    assert 35_000 < sum(tensor.nbytes for tensor in written.values()) <= 40_000
    config = json.loads((tmp_path / "out" / CONFIG).read_text())
    assert config["r"] == max(ranks.values())
    assert {**dict.fromkeys(config["target_modules"], config["r"]), **config["rank_pattern"]} == ranks
    assert config["alpha_pattern"] == config["rank_pattern"]


@pytest.mark.parametrize("bits", [None, 3])
def test_ranks_for_a_size_are_not_worse_than_one_rank(tmp_path, folders, bits):
    base, tuned = folders("llama"), tune(folders("llama"), tmp_path / "tuned", 3)
    network, models = Network(Checkpoint.open(tuned)), [load_model(one) for one in (base, tuned)]
    leaves = {block: [name for name, one in network.module(block).named_modules() if is_linear(one)]
              for block in network.blocks}  # fmt: skip
    moments = curvature(network, TOKENS, leaves)
    bases = {name: partial(weight_in, models[0], name) for name in moments}

    def made(name, rank):
        method = LoraMethod.of_rank(rank, bases[name], bits, None if bits else moments[name].outputs)
        return method.compress(weight_in(models[1], name), moments[name].inputs).tensor

    def lost(ranks):
        return sum(
            damage(made(name, rank).dequantize() - weight_in(models[1], name), moments[name])
            for name, rank in ranks.items()
        )

    chosen = {name: one.rank for name, one in ranked(network, bases, TOKENS, 9_000, bits).items()}
    sizes = {rank: sum(made(name, rank).stored_bits for name in bases) for rank in (1, 2, 4, 8, 16)}
    assert sum(made(name, rank).stored_bits for name, rank in chosen.items()) <= 8 * 9_000
    alike = max(rank for rank, bits in sizes.items() if bits <= 8 * 9_000)
    assert lost(chosen) <= lost(dict.fromkeys(bases, alike)), chosen


@pytest.mark.parametrize("bits", [None, 2, 3, 4, 8])
@pytest.mark.parametrize(("outputs", "inputs", "rank"), [(32, 64, 1), (37, 96, 11), (64, 32, 32)])
def test_the_size_of_a_rank_is_that_of_its_tensors(outputs, inputs, rank, bits):
    base, tuned = torch.zeros(outputs, inputs), torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(1))
    made = LoraMethod.of_rank(rank, lambda: base, bits).compress(tuned, torch.eye(inputs)).tensor
    assert bits_of_rank((outputs, inputs), rank, bits, tuned.dtype) == made.stored_bits


def test_inputs_decide_what_a_small_rank_keeps():
    generator = torch.Generator().manual_seed(1)
    base, change = torch.zeros(8, 6), torch.randn(8, 6, generator=generator)
    inputs = torch.randn(50, 6, generator=generator) * torch.tensor([9.0, 9, 1, 1, 1, 1])
    hessian = inputs.T @ inputs / 50
    method = LoraMethod.of_rank(2, lambda: base)
    lost = [
        ((one.compress(change, hessian).tensor.dequantize() - change) @ inputs.T).norm()
        for one in (method, method.fallback())
    ]
    assert lost[0] < 0.8 * lost[1]


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of transformers, about what peft asks for
def test_peft_computes_what_the_fine_tune_does(tmp_path, folders):
    peft = pytest.importorskip("peft")
    tuned = tune(folders("llama"), tmp_path / "tuned", 3)
    squeeze.delta(folders("llama"), tuned, out=tmp_path / "out", format="peft", rank=3, calibration=TOKENS)
    model = peft.PeftModel.from_pretrained(load_model(folders("llama")), tmp_path / "out")
    with torch.no_grad():
        found, wanted = model(TOKENS).logits, load_model(tuned)(TOKENS).logits
    assert (found - wanted).norm() < 1e-2 * wanted.norm()


def test_what_an_adapter_does_not_hold_is_said(tmp_path, folders):
    tuned = tune(folders("llama"), tmp_path / "tuned", 1)
    tensors = load_file(tuned / "model.safetensors")
    tensors["model.norm.weight"] += 1
    save_file(tensors, tuned / "model.safetensors", {"format": "pt"})
    report = squeeze.delta(folders("llama"), tuned, out=tmp_path / "out", format="peft", rank=1, calibration=TOKENS)
    assert report.notes == ["the adapter does not hold model.norm.weight, which differ from the base's"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"format": "peft", "pattern": "2:4"}, "leave out `pattern`"),
        ({"format": "peft", "bits": 4, "group_size": 32}, "leave out `group_size`"),
        ({"format": "peft", "rank": 2, "target_bytes": 9000}, "leave out `rank`"),
        ({"format": "peft", "target_bytes": 9}, "an adapter of 9 bytes is too small"),
        ({"rank": 2, "bits": 2}, "`rank` needs the format peft"),
        ({"target_bytes": 9000, "bits": 2}, "`target_bytes` needs the format peft"),
        ({"format": "peft", "text": "x"}, "leave out `text`"),
    ],
)
def test_options_of_the_other_form_are_refused(tmp_path, folders, options, message):
    with pytest.raises(SqueezeError, match=message):
        squeeze.delta(folders("llama"), folders("llama"), out=tmp_path / "out", calibration=TOKENS, **options)


def test_an_adapter_has_the_names_of_modules_not_those_of_the_checkpoint(tmp_path, folders):
    base, tuned = folders("gpt2"), tune(folders("gpt2"), tmp_path / "tuned", 2)
    for source, folder in ((base, tmp_path / "short base"), (tuned, tmp_path / "short")):
        folder.mkdir()
        tensors = {name: tensor for path in source.glob("*.safetensors") for name, tensor in load_file(path).items()}
        short = {name.removeprefix("transformer."): value for name, value in tensors.items()}
        save_file(short, folder / "model.safetensors", {"format": "pt"})
        (folder / "config.json").write_text((source / "config.json").read_text())
    squeeze.delta(
        tmp_path / "short base", tmp_path / "short", out=tmp_path / "out", format="peft", rank=2, calibration=TOKENS
    )
    targets = json.loads((tmp_path / "out" / CONFIG).read_text())["target_modules"]
    assert targets[0].startswith("transformer.h.0.")
    adapter = load_file(tmp_path / "out" / ADAPTER)
    assert set(adapter) == {f"{PREFIX}{module}.lora_{leaf}.weight" for module in targets for leaf in "AB"}


def test_experts_are_left_out_and_named(tmp_path, folders):
    tuned = tune(folders("qwen2_moe"), tmp_path / "tuned", 2)
    tensors = load_file(tuned / "model.safetensors")
    name = next(name for name in tensors if ".experts." in name)
    tensors[name] += 1
    save_file(tensors, tuned / "model.safetensors", {"format": "pt"})
    report = squeeze.delta(folders("qwen2_moe"), tuned, out=tmp_path / "out", format="peft", rank=2, calibration=TOKENS)
    targets = json.loads((tmp_path / "out" / CONFIG).read_text())["target_modules"]
    assert targets and not any(".experts." in module for module in targets)
    assert report.notes[0].startswith(f"the adapter does not hold {name}")
