"""Packed folders in transformers: the logits and the text are those of the original, to the bit."""

import itertools
import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import squeeze
from squeeze.errors import DamagedError, OptionError
from squeeze.integrations.load_model import load_model
from squeeze.packing.device_decode.cpu import Tiles
from squeeze.packing.device_decode.together import Together
from tests.makers.cases import all_slow_but, every
from tests.makers.hf_models import IDS, tiny_model

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
integration = pytest.importorskip("squeeze.integrations.transformers")
coded = pytest.importorskip("squeeze.integrations.coded_layers")


def load(folder, **options):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, **options).eval()


def logits(model, ids):
    with torch.no_grad():
        return model(ids).logits


@pytest.mark.parametrize(
    ("dtype", "kind", "tied"),
    all_slow_but(
        [
            (torch.bfloat16, "llama", True),
            (torch.bfloat16, "gpt2", False),
            (torch.float32, "gpt2", True),
            (torch.float16, "llama", False),
        ],
        itertools.product([torch.bfloat16, torch.float32, torch.float16], ["llama", "gpt2"], [True, False]),
    ),
)
def test_logits_and_text_are_those_of_the_original(tmp_path, dtype, kind, tied):
    folder = tiny_model(tmp_path / "model", dtype, tied, kind)
    squeeze.pack(folder, tmp_path / "packed")
    original, packed = load(folder), load(tmp_path / "packed")
    assert packed.dtype == original.dtype == dtype
    assert torch.equal(logits(original, IDS), logits(packed, IDS))
    with torch.no_grad():
        texts = [model.generate(IDS[:1, :7], max_new_tokens=12, do_sample=False) for model in (original, packed)]
    assert torch.equal(*texts)


@pytest.mark.parametrize("level", ["fast", "runtime"])
def test_weights_stay_coded(tmp_path, level):
    squeeze.pack(tiny_model(tmp_path / "model", tied=False), tmp_path / "packed", level=level)
    model = load(tmp_path / "packed")
    assert torch.equal(logits(model, IDS), logits(load(tmp_path / "model"), IDS))
    layer = model.model.layers[0].mlp.up_proj
    assert isinstance(layer, integration.CodedLinear)
    assert layer._parameters["weight"].dtype == torch.uint8
    assert isinstance(model.model.embed_tokens, integration.CodedEmbedding)
    memory = integration.memory_of(model)
    plain = load(tmp_path / "model")
    original = sum(tensor.nbytes for tensor in [*plain.parameters(), *plain.buffers()])
    assert memory["decoded"] == original
    assert memory["tensors"] < 0.8 * original


@pytest.mark.parametrize("count", every(2, [0, 2, 3, 9, 100]))
def test_linear_layers_are_resident_first(tmp_path, count):
    squeeze.pack(tiny_model(tmp_path / "model", tied=False), tmp_path / "packed")
    with integration.load_options(resident=count * 352 * 128 * 2):
        packed = load(tmp_path / "packed")
    assert torch.equal(logits(packed, IDS), logits(load(tmp_path / "model"), IDS))
    layers = [
        one for layer in packed.model.layers for one in (layer.mlp.gate_proj, layer.mlp.up_proj, layer.mlp.down_proj)
    ]
    coded = [isinstance(layer, integration.CodedLinear) for layer in layers]
    assert coded == [k >= count for k in range(9)]
    assert isinstance(packed.lm_head, integration.CodedLinear) == (count < 100)
    assert isinstance(packed.model.embed_tokens, integration.CodedEmbedding) == (count < 100)


@pytest.mark.parametrize(
    ("dtype", "level"),
    all_slow_but(
        [(torch.bfloat16, "fast"), (torch.float32, "runtime")],
        itertools.product([torch.bfloat16, torch.float32], ["fast", "runtime"]),
    ),
)
def test_fused_products_are_close_and_run_on_few_rows(tmp_path, monkeypatch, level, dtype):
    folder = tiny_model(tmp_path / "model", tied=False)
    squeeze.pack(folder, tmp_path / "packed", level=level)
    models = [load(folder, dtype=torch.float32), load(folder, dtype=dtype)]
    for product in ("exact", "fused"):
        with integration.load_options(product=product):
            models.append(load(tmp_path / "packed", dtype=dtype))
    calls, multiply = [], Tiles.multiply
    monkeypatch.setattr(Tiles, "multiply", lambda *given: calls.append(given) or multiply(*given))
    exact, dense, decoded = (logits(model, IDS[:, :3]) for model in models[:3])
    assert torch.equal(decoded, dense) and not calls
    fused = logits(models[3], IDS[:, :3])
    assert len(calls) == 10  # of 64 KiB or more: three of each layer, and the head
    error, usual = ((found - exact).norm() / exact.norm() for found in (fused, dense))
    assert error <= max(1.1 * usual, 1e-6)
    calls.clear()
    assert torch.equal(logits(models[3], IDS), logits(models[1], IDS))
    assert not calls  # many rows are multiplied by torch


def test_refuses_an_unknown_product(tmp_path):
    squeeze.pack(tiny_model(tmp_path / "model"), tmp_path / "packed")
    choices = r"^expected a product of exact, fused, got 'sparse'$"
    with pytest.raises(OptionError, match=choices), integration.load_options(product="sparse"):
        load(tmp_path / "packed")


@pytest.mark.parametrize("share", [0, 1, 64])
def test_large_heads_are_applied_in_pieces(tmp_path, monkeypatch, share):
    monkeypatch.setattr("squeeze.integrations.packed._LEAST_PIECE", 1 << 12)
    squeeze.pack(tiny_model(tmp_path / "model"), tmp_path / "packed")
    with integration.load_options(large_share=share):
        original, packed = load(tmp_path / "model"), load(tmp_path / "packed")
    assert torch.equal(logits(original, IDS), logits(packed, IDS))
    pieces = {0: 997 * 128 * 2, 1: 997 * 128 * 2}
    if share in pieces:
        assert packed.squeeze_buffers.nbytes >= pieces[share]
    else:
        assert packed.squeeze_buffers.nbytes < pieces[0]


@pytest.mark.parametrize("share", [0, 16])
def test_a_block_is_decoded_at_once(tmp_path, monkeypatch, share):
    """Like a GPU, it decodes blocks that are small for the model once in each pass."""
    monkeypatch.setattr(coded, "_at_once", lambda device: True)
    decoded = []
    decode = Together.decode
    monkeypatch.setattr(Together, "decode", lambda *given: decoded.append(given[0]) or decode(*given))
    squeeze.pack(tiny_model(tmp_path / "model", tied=False), tmp_path / "packed")
    with integration.load_options(large_share=share):
        original, packed = load(tmp_path / "model"), load(tmp_path / "packed")
    for _ in range(2):
        assert torch.equal(logits(original, IDS), logits(packed, IDS))
    blocks = len(packed.model.layers)
    assert len(decoded) == (2 * blocks if share == 0 else 0)
    assert len(set(map(id, decoded))) == len(decoded) // 2


def test_the_weight_of_a_coded_module_can_be_read(tmp_path):
    squeeze.pack(tiny_model(tmp_path / "model"), tmp_path / "packed")
    original, packed = load(tmp_path / "model"), load(tmp_path / "packed")
    for name, module in packed.named_modules():
        if "coded_weight" in module.__dict__:
            assert torch.equal(module.weight, original.get_submodule(name).weight)


def test_gradients_of_the_input_are_right(tmp_path):
    squeeze.pack(tiny_model(tmp_path / "model", torch.float32), tmp_path / "packed")
    found = []
    for name in ("model", "packed"):
        model = load(tmp_path / name)
        model.requires_grad_(False)
        generator = torch.Generator().manual_seed(2)
        start = torch.randn((1, 5, 128), generator=generator, requires_grad=True)
        model(inputs_embeds=start).logits.square().sum().backward()
        found.append(start.grad)
    assert torch.equal(*found)


def test_a_model_whose_config_names_no_type(tmp_path):
    squeeze.pack(tiny_model(tmp_path / "model"), tmp_path / "packed")
    path = tmp_path / "packed" / "config.json"
    config = json.loads(path.read_text())
    config.pop("dtype", None)
    path.write_text(json.dumps(config))
    assert load(tmp_path / "packed", dtype="auto").dtype == torch.bfloat16


def test_what_is_packed_for_storage_is_decoded_once(tmp_path):
    folder = tiny_model(tmp_path / "model", tied=False)
    squeeze.pack(folder, tmp_path / "archive", level="archive")
    model, plain = load(tmp_path / "archive"), load(folder)
    assert torch.equal(logits(model, IDS), logits(plain, IDS))
    memory = integration.memory_of(model)
    assert memory["tensors"] == memory["decoded"] == sum(t.nbytes for t in [*plain.parameters(), *plain.buffers()])


def moved(folder, step):
    """Change all weights of a folder a little, and one matrix completely."""
    for path in sorted(folder.glob("*.safetensors")):
        state = load_file(path)
        for number, (name, value) in enumerate(sorted(state.items())):
            noise = torch.randn(value.shape, generator=torch.Generator().manual_seed(100 * step + number))
            state[name] = (noise if "layers.0.mlp.up_proj" in name else value * (1 + 1e-3 * noise)).to(value.dtype)
        save_file(state, path, {"format": "pt"})
    return folder


@pytest.fixture
def chain(tmp_path):
    """Make three checkpoints, and pack each as the difference from the one before."""
    models, before = [tiny_model(tmp_path / "c1", tied=False)], None
    models += [moved(Path(shutil.copytree(models[0], tmp_path / f"c{step}")), step) for step in (2, 3)]
    (tmp_path / "run").mkdir()
    for model in models:
        squeeze.pack(model, tmp_path / "run" / model.name, base=before)
        before = tmp_path / "run" / model.name
    return models


def test_differences_are_decoded_once(chain):
    """Check that a chain gives the logits of its checkpoint, and that tensors which are not differences stay coded."""
    for model in chain:
        packed = load(model.parent / "run" / model.name)
        assert torch.equal(logits(packed, IDS), logits(load(model), IDS))
    up, down = packed.model.layers[0].mlp.up_proj, packed.model.layers[0].mlp.down_proj
    assert type(down) is torch.nn.Linear and down.weight.dtype == torch.bfloat16
    assert isinstance(up, integration.CodedLinear)


def test_the_base_of_a_difference_can_be_named(chain, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    difference = (tmp_path / "run" / "c2").rename(tmp_path / "elsewhere" / "c2")
    with pytest.raises(squeeze.SqueezeError, match=r"c2 is stored as a difference, and its base is not in"):
        load(difference)
    for base in (chain[0], tmp_path / "run" / "c1"):
        with integration.load_options(base=base):
            assert torch.equal(logits(load(difference), IDS), logits(load(chain[1]), IDS))
        found = load_model(difference, torch.bfloat16, base=base)
        assert torch.equal(logits(found, IDS), logits(load(chain[1]), IDS))
    with pytest.raises(squeeze.SqueezeError, match="is not the base that this checkpoint is the difference from"):
        load_model(difference, base=chain[2])
    with pytest.raises(squeeze.SqueezeError, match=r"run/c1: is no difference from a base, and needs none$"):
        load_model(tmp_path / "run" / "c1", base=chain[0])


def test_a_model_packed_against_itself_loads(tmp_path):
    """Its payloads are much smaller than the model that they represent."""
    folder = tiny_model(tmp_path / "model", tied=False)
    squeeze.pack(folder, tmp_path / "one")
    squeeze.pack(folder, tmp_path / "two", base=tmp_path / "one")
    assert torch.equal(logits(load_model(tmp_path / "two", torch.bfloat16), IDS), logits(load(folder), IDS))


def test_a_damaged_base_is_named(chain, tmp_path):
    path = min((tmp_path / "run" / "c1").glob("*.safetensors"))
    data = bytearray(path.read_bytes())
    data[-40] ^= 1
    path.write_bytes(data)
    with pytest.raises(
        DamagedError, match=rf"^the base {path}: tensor '[^']*': its checksum differs: the file is dama"
    ):
        load(tmp_path / "run" / "c3")


def test_squeeze_load_returns_the_state_dict(tmp_path):
    folder = tiny_model(tmp_path / "model")
    state = load(folder).state_dict()
    for level, base in (("runtime", None), ("archive", None), ("runtime", folder)):
        packed = tmp_path / f"{level}-{base is None}"
        squeeze.pack(folder, packed, level=level, base=base)
        weights = squeeze.load(packed, base=base)
        assert set(weights) <= set(state)
        assert len(weights) >= len(state) - 1
        for name, tensor in weights.items():
            assert torch.equal(tensor, state[name])
            assert tensor.dtype == state[name].dtype
    weights = squeeze.load(tmp_path / "runtime-True")
    assert weights.nbytes < 0.85 * sum(tensor.nbytes for tensor in weights.values())
    name = "model.layers.0.mlp.up_proj.weight"
    buffer = torch.empty_like(state[name])
    assert weights.decode(name, buffer).data_ptr() == buffer.data_ptr()
    assert torch.equal(buffer, state[name])
    with pytest.raises(squeeze.SqueezeError, match="needs a contiguous buffer of"):
        weights.decode(name, torch.empty(3))
    assert torch.equal(squeeze.load(tmp_path / "runtime-False")[name], state[name])  # its base lies packed beside it
    (tmp_path / "alone").mkdir()
    (tmp_path / "runtime-False").rename(tmp_path / "alone" / "runtime-False")
    with pytest.raises(squeeze.SqueezeError, match="or name the base"):
        squeeze.load(tmp_path / "alone" / "runtime-False")


def test_importing_squeeze_imports_neither_torch_nor_triton():
    import subprocess
    import sys

    names = ("torch", "triton", "numba", "numpy")
    script = f"import sys, squeeze, squeeze.cli; print([n for n in {names} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=Path.cwd())
    assert done.stdout == "[]\n"
