"""Folders of LoRA adapters: products are added to a base as peft adds them, and what they do not fit is refused."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

import squeeze
from squeeze.checkpoint.lora_folder import ADAPTER, CONFIG, PREFIX, LoraFolder
from squeeze.errors import FormatError, SqueezeError
from squeeze.integrations.load_model import load_model
from tests.makers.command import call
from tests.makers.hf_models import tiny_model

Q, DOWN = "model.layers.0.self_attn.q_proj", "model.layers.1.mlp.down_proj"


@pytest.fixture
def base(tmp_path):
    return tiny_model(tmp_path / "base")


def adapter(folder, base, ranks, **changes):
    """Write an adapter with random factors of a rank for each module, and return them."""
    generator, factors, model = torch.Generator().manual_seed(3), {}, load_model(base)
    for module, rank in ranks.items():
        outputs, inputs = model.get_submodule(module).weight.shape
        factors[module] = [torch.randn(shape, generator=generator) for shape in ((outputs, rank), (rank, inputs))]
    folder.mkdir()
    names = {"B": 0, "A": 1}
    tensors = {f"{PREFIX}{m}.lora_{leaf}.weight": pair[i] for m, pair in factors.items() for leaf, i in names.items()}
    save_file(tensors, folder / ADAPTER, {"format": "pt"})
    config = {"peft_type": "LORA", "base_model_name_or_path": "else/where/base", "r": 4, "lora_alpha": 8}
    (folder / CONFIG).write_text(json.dumps({**config, **changes}))
    return factors


@pytest.mark.parametrize(
    ("changes", "scales"),
    [
        ({}, {Q: 2.0, DOWN: 4.0}),
        ({"use_rslora": True}, {Q: 4.0, DOWN: 8 / 2**0.5}),
        ({"alpha_pattern": {"down_proj": 3}}, {Q: 2.0, DOWN: 1.5}),
    ],
)
def test_products_are_added_as_peft_adds_them(tmp_path, base, changes, scales):
    factors = adapter(tmp_path / "lora", base, {Q: 4, DOWN: 2}, **changes)
    squeeze.densify(tmp_path / "lora", tmp_path / "out")
    wanted, found = (load_model(folder).state_dict() for folder in (base, tmp_path / "out"))
    for module, (left, right) in factors.items():
        wanted[f"{module}.weight"] += scales[module] * left @ right
    assert wanted.keys() == found.keys()
    assert all(torch.allclose(found[name], tensor, rtol=2**-7, atol=1e-3) for name, tensor in wanted.items())


def test_packed_adapters_are_merged_and_the_command_names_the_base(tmp_path, base):
    adapter(tmp_path / "lora", base, {Q: 4}, base_model_name_or_path=None)
    squeeze.pack(tmp_path / "lora", tmp_path / "packed")
    with pytest.raises(SqueezeError, match="it does not name its base: put it there, or name it with `base`"):
        squeeze.densify(tmp_path / "packed", tmp_path / "out")
    told = call("densify", tmp_path / "packed", tmp_path / "out", "--base", base)
    assert told.exit_code == 0, told.stderr
    squeeze.densify(tmp_path / "lora", tmp_path / "again", base=base)
    one, other = (load_model(tmp_path / name).state_dict() for name in ("out", "again"))
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"peft_type": "IA3"}, "expected a peft_type of LORA, got 'IA3'"),
        ({"use_dora": True}, "holds magnitudes"),
        ({"bias": "all"}, "holds biases"),
        ({"modules_to_save": ["lm_head"]}, "holds whole modules"),
        ({"layer_replication": [[0, 2], [1, 2]]}, "holds copies of layers"),
        ({"alora_invocation_tokens": [7]}, "holds tokens that invoke it"),
        ({"use_qalora": True}, "holds sums of inputs"),
        ({"init_lora_weights": "pissa_niter_16"}, r"holds a change of its base \(pissa_niter_16\)"),
        ({"init_lora_weights": "olora"}, r"holds a change of its base \(olora\)"),
        ({"lora_alpha": "8"}, "expected a number below 1e[+]09 as lora_alpha"),
        ({"lora_alpha": 10**400}, "expected a number below 1e[+]09 as lora_alpha"),
        ({"lora_alpha": float("nan")}, "expected a number below 1e[+]09 as lora_alpha"),
        ({"alpha_pattern": {".*proj": 2}}, "is a regular expression"),
    ],
)
def test_what_products_do_not_hold_is_refused(tmp_path, base, changes, message):
    adapter(tmp_path / "lora", base, {Q: 4}, **changes)
    with pytest.raises(FormatError, match=message):
        LoraFolder.open(tmp_path / "lora")


@pytest.mark.parametrize("packed", [False, True])
def test_the_tokenizer_of_an_adapter_replaces_the_bases(tmp_path, base, packed):
    for name in ("tokenizer.json", "merges.txt", "notes.txt"):
        (base / name).write_text('"of the base"')
    adapter(tmp_path / "lora", base, {Q: 4})
    for name in ("tokenizer.json", "chat_template.jinja", "README.md"):
        (tmp_path / "lora" / name).write_text('"of the adapter"')
    if packed:
        squeeze.pack(tmp_path / "lora", tmp_path / "packed")
    squeeze.densify(tmp_path / ("packed" if packed else "lora"), tmp_path / "out", base=base)
    names = ("tokenizer.json", "chat_template.jinja", "merges.txt", "notes.txt", "README.md")
    found = {path.name: path.read_text() for path in (tmp_path / "out").iterdir() if path.name in names}
    own = dict.fromkeys(["tokenizer.json", "chat_template.jinja"], '"of the adapter"')
    assert found == {**own, "notes.txt": '"of the base"'}


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        (f"{PREFIX}{Q}.lora_A.weight", None, "it lacks"),
        (f"{PREFIX}{Q}.lora_A.weight", torch.ones(3, 5), "are .* and"),
        (f"{PREFIX}{Q}.lora_A.weight", torch.full((4, 64), torch.nan), "not finite"),
        (f"{PREFIX}{Q}.lora_magnitude_vector", torch.ones(4), "no factor of a linear module"),
    ],
)
def test_tensors_that_do_not_fit_are_named(tmp_path, base, name, tensor, message):
    adapter(tmp_path / "lora", base, {Q: 4})
    tensors = load_file(tmp_path / "lora" / ADAPTER)
    tensors.pop(name, None)
    save_file(tensors | ({} if tensor is None else {name: tensor}), tmp_path / "lora" / ADAPTER)
    with pytest.raises(FormatError, match=message):
        squeeze.densify(tmp_path / "lora", tmp_path / "out")


def test_a_base_without_the_module_is_named_and_commands_say_how_to_merge(tmp_path, base):
    adapter(tmp_path / "lora", base, {Q: 4})
    tensors = load_file(tmp_path / "lora" / ADAPTER)
    renamed = {name.replace("layers.0", "layers.7"): tensor for name, tensor in tensors.items()}
    save_file(renamed, tmp_path / "lora" / ADAPTER)
    with pytest.raises(SqueezeError, match=r"has no module model\.layers\.7"):
        squeeze.densify(tmp_path / "lora", tmp_path / "out")
    with pytest.raises(FormatError, match="it is a LoRA adapter: `squeeze densify` merges it"):
        squeeze.quantize(tmp_path / "lora", "rtn", out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
