"""Mixtures of experts, whose matrices checkpoints hold one by one or in one tensor: compressed, stored and loaded."""

import itertools
import json

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file

import squeeze
from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.cli import main
from squeeze.engine.network import Network, run_block
from squeeze.errors import SqueezeError
from squeeze.integrations.load_model import load_model
from squeeze.quant.formats import read
from squeeze.quant.gptq import GPTQ
from tests.makers import mixtures, zoo
from tests.makers.cases import all_slow_but, every
from tests.makers.mixtures import IDS, KINDS

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

TOKENS = torch.randint(3, 199, (9, 128), generator=torch.Generator().manual_seed(2))
GRID = {"group_size": 32, "calibration": TOKENS}
LEAVES = ("gate_proj", "up_proj", "down_proj")


def logits(folder, **options):
    with torch.no_grad():
        return load_model(folder, **options)(IDS).logits


def expert_layers(report):
    return [layer for layer in report.layers if ".experts." in layer.name]


def layers_of(kind):
    return 1 if kind == "deepseek_v3" else 2


@pytest.mark.parametrize("kind", KINDS)
def test_a_network_of_experts_taken_apart_computes_the_same(mixture, kind):
    network = Network(Checkpoint.open(mixture(kind)))
    calls, hidden = network.calls(IDS), list(network.first_inputs(IDS))
    model = load_model(mixture(kind))
    wanted = []
    hook = model.model.layers[-1].register_forward_hook(lambda *args: wanted.append(args[2]))
    with torch.no_grad():
        model(IDS[:1])
        x = hidden[0]
        for name, call in zip(network.blocks, calls, strict=True):
            x = run_block(network.load(name), x, call)
    hook.remove()
    found = wanted[0][0] if isinstance(wanted[0], tuple) else wanted[0]
    torch.testing.assert_close(x[None], found, rtol=1e-4, atol=1e-4)


def kinds_and_formats():
    """Return all pairs; the quick ones cover each format and kind with separate experts, and each way to join them."""
    quick = {
        "dense": ("mixtral",),
        "compressed-tensors": ("qwen3_moe fused",),
        "gptq": ("gpt_oss",),
        "squeeze": ("deepseek_v3",),
    }
    for format, chosen in quick.items():
        for kind, fused in [*((kind, False) for kind in KINDS), ("qwen3_moe", True)]:
            slow = kind + " fused" * fused not in chosen
            yield pytest.param(kind, fused, format, marks=[pytest.mark.slow] * slow)


@pytest.mark.parametrize("kind, fused, format", [*kinds_and_formats()])
def test_every_expert_is_quantised_and_loads(tmp_path, mixture, kind, fused, format):
    source = mixture(kind, fused)
    report = squeeze.quantize(source, "gptq", bits=8, out=tmp_path / "out", format=format, **GRID)
    assert len(expert_layers(report)) == layers_of(kind) * 6 * 3
    prefix, leaves = ("block_sparse_moe", ("w1", "w2", "w3")) if kind == "mixtral" else ("mlp", LEAVES)
    names = {f"model.layers.1.{prefix}.experts.5.{leaf}" for leaf in leaves}
    assert names <= {layer.name for layer in report.layers}
    assert not any(name.endswith((".gate", ".router")) for name in (layer.name for layer in report.layers))
    wanted = logits(source)
    found = logits(tmp_path / "out")
    assert ((wanted - found).norm(dim=-1) / wanted.norm(dim=-1)).median() < 0.02
    stored = load_file(tmp_path / "out" / "model.safetensors")
    if format == "dense":
        assert sorted(stored) == sorted(load_file(source / "model.safetensors"))
        assert all(
            stored[name].shape == tensor.shape for name, tensor in load_file(source / "model.safetensors").items()
        )
        return
    assert len([name for name in read(tmp_path / "out").modules if ".experts." in name]) == layers_of(kind) * 6 * 3
    squeeze.densify(tmp_path / "out", tmp_path / "dense")
    torch.testing.assert_close(found, logits(tmp_path / "dense"), rtol=0.02, atol=0.02)


@pytest.mark.parametrize(
    "bits, kind",
    all_slow_but(
        [(4, "deepseek_v3"), ("experts=2,attention=8", "mixtral")],
        itertools.product([4, "experts=2,attention=8"], ["mixtral", "qwen3_moe", "deepseek_v3"]),
    ),
)
def test_transformers_itself_loads_experts(tmp_path, mixture, kind, bits):
    pytest.importorskip("compressed_tensors", reason="compressed-tensors is not installed")
    squeeze.quantize(mixture(kind), "rtn", bits=bits, group_size=32, out=tmp_path / "out")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    with torch.no_grad():
        found = model(IDS).logits
    torch.testing.assert_close(found, logits(tmp_path / "out"), rtol=0.02, atol=0.02)


def test_packed_experts_that_were_one_tensor_load(tmp_path, mixture):
    squeeze.quantize(mixture("gpt_oss"), "rtn", group_size=32, out=tmp_path / "out", format="squeeze")
    squeeze.pack(tmp_path / "out", tmp_path / "packed")
    assert torch.equal(logits(tmp_path / "packed"), logits(tmp_path / "out"))


def test_experts_that_few_tokens_reach_are_shown_all_of_the_layer(tmp_path, mixture):
    """They are then quantised by the tokens of the whole layer, also behind the gate."""
    seen = {}
    compress = GPTQ.compress

    def spy(self, weight, hessian=None):
        seen[len(seen)] = (weight, hessian)
        return compress(self, weight, hessian)

    patch = pytest.MonkeyPatch()
    patch.setattr(GPTQ, "compress", spy)
    few = TOKENS[:3, :48]  # 144 tokens, of which an expert gets 48 on average, and needs 64 or 96
    options = {"calibration": few, "group_size": 32, "format": "dense", "correction": 0.0}
    report = squeeze.quantize(mixture("mixtral"), "gptq", bits=8, out=tmp_path / "out", **options)
    patch.undo()
    noted = [layer for layer in expert_layers(report) if layer.notes]
    assert noted and all(layer.method == "gptq" and layer.tokens == 144 for layer in noted)
    assert all("calibration tokens reached" in layer.notes[0] for layer in noted)
    assert all(layer.notes[0].endswith("calibrated on all 144 tokens of the layer") for layer in noted)
    assert all(layer.tokens >= 64 for layer in expert_layers(report) if not layer.notes)
    place = next(i for i, layer in enumerate(report.layers) if layer.name.endswith("1.block_sparse_moe.experts.0.w2"))
    expert, inputs = Network(Checkpoint.open(tmp_path / "out")), []
    block = expert.load("model.layers.1").mlp.experts
    model = load_model(tmp_path / "out")
    hook = model.model.layers[1].mlp.experts.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
    with torch.no_grad():
        model(few)
    hook.remove()
    x = inputs[0].reshape(-1, 64)
    with torch.no_grad():
        one = block.experts[0]
        hidden = torch.nn.functional.silu(one.gate_proj(x)) * one.up_proj(x)
    if report.layers[place].notes:
        torch.testing.assert_close(seen[place][1], hidden.T @ hidden / 144, rtol=1e-2, atol=1e-2 * float(hidden.var()))


@pytest.mark.parametrize("format", ["compressed-tensors", "gptq", "squeeze"])
def test_bits_by_name(tmp_path, mixture, format):
    command = ["quantize", str(mixture("qwen3_moe")), str(tmp_path / "out"), "--method", "rtn", "--group-size", "32"]
    done = CliRunner().invoke(main, [*command, "--bits", "experts=2,attention=8", "--format", format, "-q"])
    assert done.exit_code == 0, done.output
    quantised = read(tmp_path / "out")
    for name, weight in quantised.weights():
        assert weight.bits == (2 if ".experts." in name else 8), name
    described = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    assert len(json.dumps(described)) < 2000  # rules for all experts, and not one for each
    report = json.loads((tmp_path / "out" / "compression_report.json").read_text())
    assert report["settings"]["bits"] == "experts=2,attention=8,4"
    assert logits(tmp_path / "out").isfinite().all()


def test_bits_of_experts_and_nothing_else(tmp_path, mixture):
    report = squeeze.quantize(
        mixture("deepseek_v3"), "rtn", bits="experts=3,16", out=tmp_path / "out", format="squeeze"
    )
    assert [layer.name for layer in report.layers] == [layer.name for layer in expert_layers(report)] != []
    assert report.left["model.layers.0.self_attn.o_proj"] == "as asked for"
    found = squeeze.quantize(
        mixture("deepseek_v3"), "rtn", bits="shared_experts=8,2", out=tmp_path / "two", format="squeeze"
    )
    bits = {name: weight.bits for name, weight in read(tmp_path / "two").weights()}
    assert {bits[name] for name in bits if ".shared_experts." in name} == {8}
    assert {bits[name] for name in bits if ".shared_experts." not in name} == {2}
    assert len(found.layers) == len(report.layers) + 3 + 3 + 2 * 5
    alone = {name for name in report.left if ".shared_experts." in name}
    assert len(alone) == 3 and {report.left[name] for name in alone} == {"sees every token"}


@pytest.mark.parametrize(
    "bits, message",
    [
        ("expertz=2", "no matrix is named 'expertz', as in `bits`"),
        ("experts=", "bits 'experts=': expected 4, or rules as in experts=2,attention=4,8"),
        ("=2", "bits '=2': expected 4"),
        ("2,3", "bits '2,3': expected one number without a name, got two"),
        ("experts=9", "bits must be from 2 to 8, got 9"),
    ],
)
def test_refuses_bits_by_name_that_match_nothing(tmp_path, mixture, bits, message):
    with pytest.raises(SqueezeError) as caught:
        squeeze.quantize(mixture("qwen3_moe"), "rtn", bits=bits, out=tmp_path / "out")
    assert message in str(caught.value) and "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("format", all_slow_but(["compressed-tensors"], ["squeeze", "compressed-tensors"]))
def test_bits_of_experts_within_a_size(tmp_path, mixture, format):
    report = squeeze.quantize(mixture("gpt_oss"), "rtn", out=tmp_path / "out", target_bits=4.0, format=format, **GRID)
    assert report.bits_per_weight <= 4.001
    bits = {name: weight.bits for name, weight in read(tmp_path / "out").weights()}
    experts = {name: number for name, number in bits.items() if ".experts." in name}
    by_layer = [{number for name, number in experts.items() if f".{i}.mlp" in name} for i in range(2)]
    assert len(experts) == 36 and len(set(bits.values())) > 1
    assert format == "squeeze" or all(len(one) == 1 for one in by_layer)
    assert logits(tmp_path / "out").isfinite().all()


@pytest.mark.parametrize("kind", every(2, ["gpt_oss", "qwen3_moe"]))
def test_experts_are_pruned_and_factorised(tmp_path, mixture, kind):
    wanted = logits(mixture(kind))
    pruned = squeeze.prune(mixture(kind), "sparsegpt", pattern="2:4", calibration=TOKENS, out=tmp_path / "pruned")
    factors = squeeze.factorize(mixture(kind), "whitened", keep=0.9, calibration=TOKENS, out=tmp_path / "factors")
    for report in (pruned, factors):
        assert len(expert_layers(report)) == 36
        squeeze.densify(report.target, tmp_path / "dense", overwrite=True)
        found = logits(report.target)
        assert ((found - wanted).norm(dim=-1) / wanted.norm(dim=-1)).median() < 0.9
        torch.testing.assert_close(found, logits(tmp_path / "dense"), rtol=0.03, atol=0.03)
    dense = squeeze.prune(mixture(kind), "magnitude", dense=True, out=tmp_path / "zeros")
    assert dense.sparsity == pytest.approx(0.5)
    assert sorted(load_file(tmp_path / "zeros" / "model.safetensors")) == sorted(
        load_file(mixture(kind) / "model.safetensors")
    )


@pytest.mark.parametrize(
    ("kind", "prefix", "leaves"),
    [
        ("aria_text", "mlp", LEAVES),
        ("granitemoe", "block_sparse_moe", LEAVES),
        ("lfm2_moe", "feed_forward", ("w1", "w2", "w3")),
    ],
)
def test_experts_whose_tensors_have_other_names_in_files(tmp_path, kind, prefix, leaves):
    """experts.fc1.weight (Aria) and block_sparse_moe.input_linear.weight (Granite) hold all experts of a layer. LFM2's
    are separate, below the module's own name, as w1 to w3.
    """
    source = zoo.write(tmp_path / "model", kind, torch.float32)
    report = squeeze.prune(source, "magnitude", pattern="2:4", out=tmp_path / "out")
    expert = f"model.layers.1.{prefix}.experts.3."
    assert {layer.name for layer in report.layers if layer.name.startswith(expert)} == {expert + one for one in leaves}
    squeeze.densify(tmp_path / "out", tmp_path / "dense")
    torch.testing.assert_close(logits(tmp_path / "out"), logits(tmp_path / "dense"), rtol=0.03, atol=0.03)


def test_the_choice_of_experts_is_that_of_the_checkpoint(tmp_path):
    """Check that a routing bias in a buffer, as in DeepSeek-V3, counts in the calibration as well."""
    folder = mixtures.save("deepseek_v3", tmp_path / "model")
    tensors, name = load_file(folder / "model.safetensors"), "model.layers.1.mlp.gate.e_score_correction_bias"
    tensors[name] = torch.arange(6).to(tensors[name].dtype)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    router = Network(Checkpoint.open(folder)).load("model.layers.1").mlp.gate
    assert router.e_score_correction_bias.tolist() == [0, 1, 2, 3, 4, 5]
