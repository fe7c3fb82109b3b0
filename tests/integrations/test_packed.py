"""Packed weights in a model: all are compared with their checksums while it is loaded, those that stay coded too."""

import itertools
import random
import sys
from pathlib import Path

import pytest
import torch

import squeeze
from squeeze.errors import DamagedError
from squeeze.packing import container
from tests.makers import mixtures
from tests.makers.cases import all_slow_but, every
from tests.makers.hf_models import IDS, tiny_model

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
integration = pytest.importorskip("squeeze.integrations.transformers")
experts = pytest.importorskip("squeeze.integrations.experts")

MAKERS = {
    "dense": lambda folder: tiny_model(folder, tied=False),
    "tied": lambda folder: tiny_model(folder, torch.float32),
    "experts": lambda folder: mixtures.save("mixtral", folder),
    "fused experts": lambda folder: mixtures.save("mixtral", folder, fused=True),
    "turned experts": lambda folder: mixtures.save("gpt_oss", folder),
}
FLIPS = 5
PAIRS = [(kind, "fast") for kind in MAKERS] + [("dense", "runtime"), ("turned experts", "runtime")]


def load(folder, **options):
    with integration.load_options(**options):
        return transformers.AutoModelForCausalLM.from_pretrained(folder).eval()


def staying(model):
    """Return the names of parameters that are held coded."""
    for name, module in model.named_modules():
        leaves = ["weight"] if "coded_weight" in module.__dict__ else list(experts.experts_of(module))
        yield from (f"{name}.{leaf}" for leaf in leaves)


def flip(path, tensor, random):
    hurt = bytearray(path.read_bytes())
    hurt[tensor.begin + random.randrange(tensor.size)] ^= 1 << random.randrange(8)
    path.write_bytes(hurt)


def large_payloads(folder, least):
    """Return the payloads of tensors of at least `least` bytes, each with its file."""
    for path in sorted(folder.glob("*.safetensors")):
        packed = container.read(path)
        pairs = zip(packed.file.tensors, packed.description.records, strict=True)
        yield from ((path, tensor) for tensor, record in pairs if record.size >= least)


@pytest.mark.parametrize(("kind", "level"), every(2, PAIRS))
def test_a_flipped_bit_is_told(tmp_path, kind, level):
    MAKERS[kind](tmp_path / "model")
    squeeze.pack(tmp_path / "model", tmp_path / "packed", level=level)
    coded = list(staying(load(tmp_path / "packed")))
    assert any(("experts" in kind) == (".experts." in name) for name in coded)
    assert kind != "dense" or {"model.embed_tokens.weight", "lm_head.weight"} <= set(coded)
    least = 12000 if kind == "experts" else 1 << 16
    payloads, chance = list(large_payloads(tmp_path / "packed", least)), random.Random(7)
    for path, tensor in chance.sample(payloads * FLIPS, FLIPS):
        sound = path.read_bytes()
        flip(path, tensor, chance)
        with pytest.raises(DamagedError) as told:
            load(tmp_path / "packed")
        assert str(told.value).startswith(f"tensor '{tensor.name}': ") and "\n" not in str(told.value)
        path.write_bytes(sound)


def test_checking_can_be_left_out(tmp_path):
    folder = tiny_model(tmp_path / "model")
    squeeze.pack(folder, tmp_path / "packed")
    sound = load(tmp_path / "packed", check=False)
    plain = transformers.AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        assert torch.equal(sound(IDS).logits, plain(IDS).logits)
    path, tensor = next(large_payloads(tmp_path / "packed", 1 << 16))
    hurt = bytearray(path.read_bytes())
    hurt[tensor.begin + tensor.size - 100] ^= 1  # of a mantissa
    path.write_bytes(hurt)
    load(tmp_path / "packed", check=False)
    with pytest.raises(DamagedError, match="its checksum differs"):
        load(tmp_path / "packed")
    weights = squeeze.load(tmp_path / "packed")
    with pytest.raises(DamagedError, match="its checksum differs"):
        weights[tensor.name]


def test_pruned_weights_that_are_packed(tmp_path):
    """Squeeze's own forms have an option of their own for it."""
    tiny_model(tmp_path / "model")
    squeeze.prune(tmp_path / "model", "magnitude", out=tmp_path / "sparse")
    squeeze.pack(tmp_path / "sparse", tmp_path / "packed")
    load(tmp_path / "packed")
    path, tensor = next((p, t) for p, t in large_payloads(tmp_path / "packed", 1 << 16) if "embed" in t.name)
    flip(path, tensor, random.Random(1))
    with pytest.raises(DamagedError, match=f"tensor '{tensor.name}'"):
        load(tmp_path / "packed")
    load(tmp_path / "packed", check=False)


def test_a_damaged_weight_that_is_decoded_at_once_is_named(tmp_path):
    config = transformers.LlamaConfig(
        vocab_size=97, hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2
    )
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "model")
    squeeze.pack(tmp_path / "model", tmp_path / "packed")
    path = tmp_path / "packed" / "model.safetensors"
    tensor = container.read(path).file.by_name["model.layers.0.self_attn.q_proj.weight"]
    flip(path, tensor, random.Random(3))
    with pytest.raises(DamagedError, match=f"tensor '{tensor.name}'"):
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "packed")


@pytest.mark.cuda
@pytest.mark.parametrize("level", ["fast", "runtime"])
def test_a_flipped_bit_is_told_on_a_gpu(tmp_path, level):
    tiny_model(tmp_path / "model", tied=False)
    squeeze.pack(tmp_path / "model", tmp_path / "packed", level=level)
    auto, chance = transformers.AutoModelForCausalLM, random.Random(7)
    auto.from_pretrained(tmp_path / "packed", device_map="cuda")
    for path, tensor in chance.sample(list(large_payloads(tmp_path / "packed", 1 << 14)), 6):
        sound = path.read_bytes()
        flip(path, tensor, chance)
        with pytest.raises(DamagedError, match=f"tensor '{tensor.name}'"):
            auto.from_pretrained(tmp_path / "packed", device_map="cuda")
        with pytest.raises(DamagedError, match=f"tensor '{tensor.name}'"):
            squeeze.load(tmp_path / "packed", device="cuda")[tensor.name]
        path.write_bytes(sound)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells of mappings")
def test_payloads_of_what_is_resident_are_no_longer_in_memory(tmp_path):
    """Count the bytes of the file that the system holds in memory."""
    config = transformers.LlamaConfig(
        vocab_size=4096, hidden_size=512, intermediate_size=2048, num_hidden_layers=2, num_attention_heads=8,
        tie_word_embeddings=False,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).bfloat16().save_pretrained(tmp_path / "model")
    squeeze.pack(tmp_path / "model", tmp_path / "packed")
    ids = torch.arange(3, 43)[None]
    original = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    decoded = sum(parameter.nbytes for parameter in original.parameters())
    path = tmp_path / "packed" / "model.safetensors"
    for share, most in ((0, 1.01), (0.5, 0.6), (1, 0.1)):
        model = load(tmp_path / "packed", resident=int(share * decoded))
        with torch.no_grad():
            logits = [one(ids, logits_to_keep=1).logits for one in (original, model)]
        assert torch.equal(*logits)
        assert in_memory(path) <= most * path.stat().st_size


def in_memory(path):
    """Return the bytes of a mapped file that are in memory."""
    lines = Path("/proc/self/smaps").read_text().splitlines()
    place = next((k for k, line in enumerate(lines) if line.endswith(str(path))), len(lines))
    return 1024 * int(next((line.split()[1] for line in lines[place:] if line.startswith("Rss:")), 0))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_resident_layer_computes_what_the_original_does(dtype, bias):
    """Compare the last position of a prompt as well, where torch sums differently if the weight takes no gradients."""
    from squeeze.integrations import coded_layers

    layers = [torch.nn.Linear(576, 512, bias=bias, dtype=dtype) for _ in range(2)]
    layers[1].load_state_dict(layers[0].state_dict())
    layers[1].requires_grad_(False).__class__ = coded_layers.ResidentLinear
    x = torch.randn(4, 7, 576, generator=torch.Generator().manual_seed(1)).to(dtype)
    for given in (x, x[:, -1:], x[:, -3:], x[:1, -1:], x[:, -1], x.transpose(0, 1), x.view(2, 2, 7, 576)[:, :, 2:]):
        with torch.no_grad():
            assert torch.equal(layers[0](given), layers[1](given))


@pytest.mark.parametrize(
    ("kind", "dtype"),
    all_slow_but(
        [("llama", torch.bfloat16), ("gpt2", torch.float32)],
        itertools.product(["llama", "gpt2"], [torch.float32, torch.bfloat16]),
    ),
)
def test_logits_of_the_last_positions_are_the_originals(tmp_path, kind, dtype):
    folder = tiny_model(tmp_path / "model", dtype, tied=False, kind=kind)
    squeeze.pack(folder, tmp_path / "packed")
    original = transformers.AutoModelForCausalLM.from_pretrained(folder)
    for resident in (0, 1 << 30):
        packed = load(tmp_path / "packed", resident=resident)
        for kept in (1, 3):
            with torch.no_grad():
                found = [model(IDS, logits_to_keep=kept).logits for model in (original, packed)]
            assert torch.equal(*found)
