"""Packed mixtures of experts: those that tokens reach are decoded, one at a time, and nothing computed changes."""

import itertools
import json

import pytest
import torch
from safetensors.torch import load_file, save_file

import squeeze
from tests.makers.cases import every
from tests.makers.mixtures import IDS, KINDS, save

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
integration = pytest.importorskip("squeeze.integrations.transformers")
experts = pytest.importorskip("squeeze.integrations.experts")

EXPERT = 2 * 96 * 64 * 2  # bytes of the larger matrix of one expert
SEGMENT = 1 << 16  # bytes


@pytest.fixture(scope="module")
def mixtures(tmp_path_factory):
    """Return a function that makes the folder of a kind, and the same folder packed."""
    made = {}

    def make(kind, fused=False, level="runtime", **options):
        key = kind, fused, level, *options.values()
        if key not in made:
            root = tmp_path_factory.mktemp("mixtures")
            save(kind, root / "model", fused, **options)
            squeeze.pack(root / "model", root / "packed", level=level)
            made[key] = root / "model", root / "packed"
        return made[key]

    return make


def load(folder, **options):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, **options).eval()


def modules_of(model):
    return [module for module in model.modules() if experts.experts_of(module)]


@torch.no_grad()
def compare(original, packed):
    """Compare the logits and a generated text."""
    assert modules_of(packed)
    assert torch.equal(original(IDS).logits, packed(IDS).logits)
    texts = [model.generate(IDS[:1, :5], max_new_tokens=6, do_sample=False) for model in (original, packed)]
    assert torch.equal(*texts)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_logits_and_text_are_those_of_the_original(mixtures, kind, fused):
    model, packed = mixtures(kind, fused)
    assert any(("experts.0" in name) != fused for name in squeeze.load(packed)) or kind == "gpt_oss"
    compare(load(model), load(packed))


@pytest.mark.parametrize("fused", [False, True])
def test_experts_in_codes_of_fixed_length(mixtures, fused):
    model, packed = mixtures("mixtral", fused, level="fast")
    compare(load(model), load(packed))


@pytest.mark.parametrize(
    ("kind", "way"), every(2, itertools.product(["mixtral", "gpt_oss"], ["eager", "grouped_mm", "batched_mm"]))
)
def test_every_way_to_compute_experts(mixtures, kind, way):
    model, packed = mixtures(kind)
    compare(*(load(folder, experts_implementation=way) for folder in (model, packed)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_types_of_weights_and_of_what_is_computed(mixtures, dtype):
    model, packed = mixtures("qwen3_moe")
    compare(*(load(folder, dtype=dtype) for folder in (model, packed)))
    model, packed = mixtures("qwen3_moe", dtype=dtype)
    compare(load(model), load(packed))


@pytest.mark.parametrize("kind", ["qwen3_moe", "gpt_oss"])
def test_only_experts_that_tokens_reach_are_decoded(mixtures, kind, monkeypatch):
    packed = load(mixtures(kind)[1])
    chosen, original = set(), experts.ExpertStack.experts_in

    def watch(self, first, last):
        assert last == first + 1
        chosen.add((self.payload.data_ptr(), first))
        return original(self, first, last)

    monkeypatch.setattr(experts.ExpertStack, "experts_in", watch)
    with torch.no_grad():
        packed(IDS[:1, :1])
    stacks = 2 * len(modules_of(packed))  # gate_up and down
    assert len({payload for payload, _ in chosen}) == stacks
    assert len(chosen) == 2 * stacks  # two experts a token


@pytest.mark.parametrize("kind", KINDS)
def test_memory_is_that_of_a_few_experts(mixtures, kind):
    model, packed = (load(folder) for folder in mixtures(kind))
    with torch.no_grad():
        packed(IDS)
    memory = integration.memory_of(packed)
    original = sum(tensor.nbytes for tensor in [*model.parameters(), *model.buffers()])
    assert memory["decoded"] == original
    assert memory["tensors"] < 0.85 * original
    assert memory["buffers"] <= 2 * (EXPERT + 4 * SEGMENT)  # two matrices, and two segments more at either end


def test_gradients_of_the_input_are_right(mixtures):
    for way in ("eager", "grouped_mm"):
        found = []
        for folder in mixtures("mixtral"):
            model = load(folder, dtype=torch.float32, experts_implementation=way).requires_grad_(False)
            start = torch.randn((1, 5, 64), generator=torch.Generator().manual_seed(2), requires_grad=True)
            model(inputs_embeds=start).logits.square().sum().backward()
            found.append(start.grad)
        assert torch.equal(*found)


def test_whatever_else_is_done_with_experts_decodes_all(mixtures):
    model, packed = (load(folder) for folder in mixtures("mixtral"))
    theirs, ours = model.model.layers[0].mlp.experts, packed.model.layers[0].mlp.experts
    assert type(ours).__name__ == "MixtralExperts" and isinstance(ours, type(theirs))
    assert ours._parameters["gate_up_proj"].dtype == torch.uint8
    for leaf in ("gate_up_proj", "down_proj"):
        stack, dense = getattr(ours, leaf), getattr(theirs, leaf)
        assert (stack.shape, stack.dtype, stack.stride()) == (dense.shape, dense.dtype, dense.stride())
        assert torch.equal(stack + 0, dense)
        assert torch.equal(stack[-1], dense[-1])
        assert torch.equal(stack[:, 3], dense[:, 3])
        assert torch.equal(stack.transpose(-1, -2)[2], dense.transpose(-1, -2)[2])
        assert torch.equal(stack.transpose(0, 1)[2], dense.transpose(0, 1)[2])
        assert torch.equal(stack[torch.tensor([[1, 0], [1, -1]])], dense[torch.tensor([[1, 0], [1, -1]])])
        assert torch.equal(stack.detach()[dense[:, 0, 0] > 0], dense[dense[:, 0, 0] > 0])
        assert "ExpertStack" in repr(stack)


@pytest.mark.parametrize("share", [0, 0.5, 1])
def test_what_fits_is_resident(mixtures, share):
    model, folder = mixtures("mixtral")
    original = load(model)
    coded = integration.memory_of(load(folder))
    limit = int(share * coded["decoded"])
    with integration.load_options(resident=f"{limit // 1024}K"):
        packed = load(folder)
    memory = integration.memory_of(packed)
    assert memory["decoded"] == coded["decoded"]
    if share == 1:
        assert not modules_of(packed) and memory["tensors"] == coded["decoded"]
    else:
        compare(original, packed)
        assert coded["tensors"] <= memory["tensors"] <= coded["tensors"] + limit
    if share == 0.5:
        assert memory["tensors"] > 1.05 * coded["tensors"]


def test_small_experts_are_decoded_once(mixtures, monkeypatch):
    monkeypatch.setattr("squeeze.integrations.places._LEAST_CODED", 1 << 30)
    for fused in (False, True):
        model, packed = (load(folder) for folder in mixtures("mixtral", fused))
        assert not modules_of(packed)
        with torch.no_grad():
            assert torch.equal(model(IDS).logits, packed(IDS).logits)


def test_experts_that_a_converter_turns(tmp_path):
    text = {
        **{"vocab_size": 199, "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "head_dim": 16},
        "num_key_value_heads": 2,
        **{"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 96, "intermediate_size": 96},
        "rope_parameters": {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 10000.0},
    }
    seen = {"depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 64}
    config = transformers.Qwen3VLMoeConfig(text_config=text, vision_config={**seen, "deepstack_visual_indexes": []})
    folder = tmp_path / "model"
    transformers.Qwen3VLMoeForConditionalGeneration(config).bfloat16().save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    for name in tensors:
        if ".experts." in name:
            tensors[name] = tensors[name].transpose(1, 2).contiguous()
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    squeeze.pack(folder, tmp_path / "packed")
    auto = transformers.AutoModelForImageTextToText
    model, packed = (auto.from_pretrained(path).eval() for path in (folder, tmp_path / "packed"))
    compare(model, packed)


def test_a_damaged_expert_that_is_decoded_at_once_is_named(tmp_path, monkeypatch):
    from squeeze.errors import DamagedError
    from squeeze.packing import container

    monkeypatch.setattr("squeeze.integrations.places._LEAST_CODED", 1 << 30)
    save("mixtral", tmp_path / "model")
    squeeze.pack(tmp_path / "model", tmp_path / "packed")
    path = tmp_path / "packed" / "model.safetensors"
    tensor = next(tensor for name, tensor in container.read(path).file.by_name.items() if "experts.3.w1" in name)
    hurt = bytearray(path.read_bytes())
    hurt[tensor.begin + tensor.size // 2] ^= 0x10
    path.write_bytes(hurt)
    with pytest.raises(DamagedError, match=f"tensor '{tensor.name}'"):
        load(tmp_path / "packed")
    assert json.loads((tmp_path / "packed" / "config.json").read_text())["quantization_config"]
