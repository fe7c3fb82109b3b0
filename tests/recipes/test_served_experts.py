"""Mixtures of experts by schemes of compressed-tensors: what is stored, what runs, and what others can load."""

import functools

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file
from torch.nn import functional

import squeeze
from squeeze.cli import main
from squeeze.engine.experts import Layout
from squeeze.engine.report import Report
from squeeze.integrations.load_model import load_model
from squeeze.quant.activations import ACTIVATIONS
from squeeze.quant.formats import read
from squeeze.quant.methods import SCHEMES
from tests.makers import mixtures
from tests.makers.cases import all_slow_but, every
from tests.makers.mixtures import IDS, KINDS
from tests.makers.quantised import SERVED

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

TOKENS = torch.randint(3, 199, (4, 48), generator=torch.Generator().manual_seed(2))
LEAVES = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}
PUBLISHED = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}  # Mixtral
LOSSES = {8: 0.05, 4: 0.2}  # of weights, relative, by bits


@pytest.fixture(scope="module")
def mixture(tmp_path_factory):
    """Return a function that makes a folder, and its weights as transformers holds them."""

    @functools.cache
    def made(kind, fused, width):
        folder = mixtures.save(kind, tmp_path_factory.mktemp("mixtures") / kind, fused, width=width)
        return folder, dict(load_model(folder).named_parameters())

    return lambda kind, fused=False, width=None: made(kind, fused, width)


def cases():
    """Return every scheme with every kind; the quick ones cover each, and FP8 in fused checkpoints."""
    kinds = [(kind, False) for kind in KINDS] + [(kind, True) for kind in KINDS if kind != "gpt_oss"]
    quick = {("fp8_dynamic", "qwen3_moe", True), ("fp8", "mixtral", True), ("fp8_block", "deepseek_v3", False)}
    quick |= {("w8a8", "gpt_oss", False), ("w4a8", "mixtral", False), ("nvfp4", "qwen3_moe", False)}
    quick |= {("nvfp4a16", "gpt_oss", False), ("mxfp4", "deepseek_v3", True), ("w4a16", "mixtral", True)}
    for scheme in SERVED:
        for kind, fused in kinds:
            marks = [] if (scheme, kind, fused) in quick else [pytest.mark.slow]
            yield pytest.param(scheme, kind, fused, marks=marks, id=f"{scheme}-{kind}{'-fused' * fused}")


def layers(model):
    """Return the modules that hold experts, one for each layer with some."""
    found = [(number, layer.mlp) for number, layer in enumerate(model.model.layers)]
    return [(number, block.experts) for number, block in found if hasattr(block, "experts")]


def stored_name(kind, layer, expert, leaf):
    if kind == "mixtral":
        return f"model.layers.{layer}.block_sparse_moe.experts.{expert}.{PUBLISHED[leaf]}"
    return f"model.layers.{layer}.mlp.experts.{expert}.{leaf}"


def rounded(x, checkpoint, module):
    """Round inputs as a module's stored scheme says."""
    activations = checkpoint.spec.of(module).activations
    return ACTIVATIONS[activations](x, checkpoint.weight(module).input_range) if activations else x


def by_hand(kind, layer, experts, checkpoint):
    """Compute the output of an experts module with rounded inputs, token by token."""

    def matrix(name, expert):
        weight = getattr(experts, name)[expert]
        return weight.T if kind == "gpt_oss" else weight

    def forward(hidden, chosen, weights):
        out = torch.zeros_like(hidden)
        for token, rank in ((token, rank) for token in range(len(hidden)) for rank in range(chosen.shape[1])):
            expert = int(chosen[token, rank])
            bias = [getattr(experts, f"{name}_bias")[expert] if kind == "gpt_oss" else None for name in LEAVES]
            x = rounded(hidden[token, None], checkpoint, stored_name(kind, layer, expert, "gate_proj"))
            both = functional.linear(x, matrix("gate_up_proj", expert), bias[0])
            y = rounded(experts._apply_gate(both), checkpoint, stored_name(kind, layer, expert, "down_proj"))
            out[token] += weights[token, rank] * functional.linear(y, matrix("down_proj", expert), bias[1])[0]
        return out

    return forward


def reference(kind, dense, checkpoint):
    """Return the densified model with rounding of inputs in linear modules and experts."""
    model = load_model(dense)
    for name in checkpoint.modules:
        if ".experts." not in name:
            module = model.get_submodule(name.replace("block_sparse_moe", "mlp"))
            module.register_forward_pre_hook(lambda _, args, name=name: (rounded(args[0], checkpoint, name),))
    for layer, experts in layers(model):
        experts.forward = by_hand(kind, layer, experts, checkpoint)
    return model


def weights_of(kind, experts, expert):
    """Return the weights of an expert by leaf, for a module of either form."""
    if hasattr(experts, "experts"):
        return {leaf: getattr(experts.experts[expert], leaf).weight for leaf in PUBLISHED}
    layout = Layout(kind == "gpt_oss", kind == "gpt_oss", kind == "gpt_oss")
    return {
        leaf: layout.taken(name, number, getattr(experts, name)[expert])
        for name, leaves in LEAVES.items()
        for number, leaf in enumerate(leaves)
    }


@pytest.mark.parametrize("scheme, kind, fused", every(2, cases()))
def test_what_runs_is_what_is_stored(tmp_path, mixture, scheme, kind, fused):
    source, original = mixture(kind, fused, 128 if scheme == "fp8_block" else None)
    out, dense = tmp_path / "out", tmp_path / "dense"
    squeeze.quantize(source, "rtn", scheme=scheme, out=out, calibration=TOKENS)
    squeeze.densify(out, dense)
    checkpoint, model, wanted = read(out), load_model(out), reference(kind, dense, read(out))
    assert not [name for name in checkpoint.tensors if name.endswith(".experts.gate_up_proj")]
    before = dict(original)
    for (layer, experts), (_, others) in zip(layers(model), layers(wanted), strict=True):
        first = type(others)(model.config)
        for name in LEAVES:
            setattr(first, name, before[f"model.layers.{layer}.mlp.experts.{name}"])
        for expert in range(6):
            found, known = weights_of(kind, experts, expert), weights_of(kind, others, expert)
            origin = weights_of(kind, first, expert)
            for leaf, weight in found.items():
                own = checkpoint.weight(stored_name(kind, layer, expert, leaf)).dequantize(torch.bfloat16).float()
                assert torch.equal(weight, known[leaf]) and torch.equal(weight, own)
                assert (weight - origin[leaf]).norm() < LOSSES[SCHEMES[scheme].bits] * weight.norm()
    seen = []
    for (_, experts), (_, others) in zip(layers(model), layers(wanted), strict=True):
        experts.register_forward_hook(lambda _, args, y, others=others: seen.append((y, others.forward(*args))))
    with torch.no_grad():
        found, logits = model(IDS).logits, wanted(IDS).logits
    assert len(seen) == len(layers(model))
    for y, hand in seen:
        assert (y - hand).norm() < 1e-3 * hand.norm()
    assert ((found - logits).norm(dim=-1) / logits.norm(dim=-1)).median() < 0.01  # other matrices are dense in bf16


@pytest.mark.parametrize("scheme", ["nvfp4", "w8a8"])
def test_inputs_of_experts_are_rounded(tmp_path, mixture, scheme):
    source, _ = mixture("qwen3_moe")
    squeeze.quantize(source, "rtn", scheme=scheme, out=tmp_path / "out", calibration=TOKENS)
    model = load_model(tmp_path / "out")
    down = model.model.layers[1].mlp.experts.experts[3].down_proj
    seen = []
    down.register_forward_hook(lambda module, args, y: seen.append(args[0]))
    with torch.no_grad():
        model(TOKENS)
    x = seen[0]
    levels = [len(row.abs().unique()) for row in (x.unflatten(-1, (-1, 16)).flatten(0, 1) if scheme == "nvfp4" else x)]
    assert max(levels) <= (8 if scheme == "nvfp4" else 97)
    rounding = ACTIVATIONS[SCHEMES[scheme].activations]
    module = read(tmp_path / "out").weight("model.layers.1.mlp.experts.3.down_proj")
    torch.testing.assert_close(rounding(x, module.input_range), x, rtol=0.01, atol=1e-6)


def test_experts_of_which_we_cannot_round_inputs_are_named(tmp_path, mixture, monkeypatch):
    source, _ = mixture("qwen3_moe")
    squeeze.quantize(source, "rtn", scheme="fp8_dynamic", out=tmp_path / "out")
    monkeypatch.setattr(Layout, "of", classmethod(lambda cls, module: None))
    with pytest.warns(UserWarning, match="experts: the inputs of its experts are not rounded") as said:
        model = load_model(tmp_path / "out")
    assert len(said) == 1 and "\n" not in str(said[0].message)
    with torch.no_grad():
        assert model(IDS).logits.isfinite().all()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "scheme, kind, options",
    every(
        2,
        [
            ("nvfp4", "qwen3_moe", {"kv_scheme": "fp8"}),
            ("w8a8", "gpt_oss", {}),
            ("w4a16_asym", "mixtral", {}),
            ("fp8_block", "deepseek_v3", {}),
        ],
    ),
)
def test_after_our_import_transformers_runs_what_is_stored(tmp_path, mixture, scheme, kind, options):
    pytest.importorskip("compressed_tensors", reason="compressed-tensors is not installed")
    import squeeze.integrations.transformers  # it registers the loader

    out, auto = tmp_path / "out", transformers.AutoModelForCausalLM
    source, _ = mixture(kind, False, 128 if scheme == "fp8_block" else None)
    squeeze.quantize(source, "rtn", scheme=scheme, out=out, calibration=TOKENS, **options)
    squeeze.pack(out, tmp_path / "packed")
    with torch.no_grad():
        wanted = load_model(out)(IDS).logits
        for folder in (out, tmp_path / "packed"):
            model, told = auto.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
            assert not told["missing_keys"] and not told["unexpected_keys"]
            assert torch.equal(model.eval()(IDS).logits, wanted)
        squeeze.densify(out, tmp_path / "dense")
        whole = transformers.CompressedTensorsConfig(dequantize=True)
        model = auto.from_pretrained(out, dtype=torch.float32, quantization_config=whole).eval()
        assert torch.equal(model(IDS).logits, load_model(tmp_path / "dense")(IDS).logits)


def loaded_by_transformers(folder, dense):
    """Check that transformers alone loads the experts of the densified folder."""
    pytest.importorskip("compressed_tensors", reason="compressed-tensors is not installed")
    from transformers.quantizers.auto import AUTO_QUANTIZER_MAPPING
    from transformers.quantizers.quantizer_compressed_tensors import CompressedTensorsHfQuantizer

    auto = transformers.AutoModelForCausalLM
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(AUTO_QUANTIZER_MAPPING, "compressed-tensors", CompressedTensorsHfQuantizer)
        model, told = auto.from_pretrained(folder, output_loading_info=True)
    squeeze.densify(folder, dense)
    wanted = load_model(dense)
    assert not told["missing_keys"] and layers(model)
    for (_, experts), (_, others) in zip(layers(model), layers(wanted), strict=True):
        for name in LEAVES:
            assert torch.equal(getattr(experts, name).float(), getattr(others, name))


@pytest.mark.parametrize(
    "scheme, kind, fused",
    all_slow_but(
        [("w4a16", "mixtral", True), ("fp8_dynamic", "qwen3_moe", True)],
        [
            (scheme, *kind)
            for scheme in ("w4a16", "fp8_dynamic")
            for kind in (("mixtral", True), ("mixtral", False), ("qwen3_moe", True))
        ],
    ),
)
def test_transformers_takes_the_names(tmp_path, mixture, scheme, kind, fused):
    """Fused experts get the names that checkpoints of this architecture use."""
    source, _ = mixture(kind, fused)
    options = {"group_size": 32} if scheme == "w4a16" else {}
    squeeze.quantize(source, "rtn", scheme=scheme, out=tmp_path / "out", **options)
    names = load_file(tmp_path / "out" / "model.safetensors")
    assert all(f"{stored_name(kind, 1, 5, leaf)}.weight_scale" in names for leaf in PUBLISHED)
    loaded_by_transformers(tmp_path / "out", tmp_path / "dense")


def test_packed_mixtures_compute_the_same(tmp_path, mixture):
    """Use a folder with a quantised KV cache as well."""
    source, _ = mixture("gpt_oss")
    squeeze.quantize(source, "rtn", scheme="nvfp4", kv_scheme="fp8", out=tmp_path / "out", calibration=TOKENS[:1])
    squeeze.pack(tmp_path / "out", tmp_path / "packed")
    with torch.no_grad():
        assert torch.equal(*(load_model(tmp_path / name)(IDS).logits for name in ("out", "packed")))


def test_experts_without_published_names_are_read(tmp_path, mixture, monkeypatch):
    """Experts of an architecture whose checkpoints always hold them in one tensor are called as squeeze's modules."""
    source, _ = mixture("mixtral", True)
    squeeze.quantize(source, "rtn", scheme="mxfp4", out=tmp_path / "out")
    monkeypatch.setattr("squeeze.engine.sources.published", lambda *told: {})
    squeeze.quantize(source, "rtn", scheme="mxfp4", out=tmp_path / "old")
    assert "model.layers.1.mlp.experts.5.up_proj.weight_packed" in load_file(tmp_path / "old" / "model.safetensors")
    with torch.no_grad():
        assert torch.equal(*(load_model(tmp_path / name)(IDS).logits for name in ("out", "old")))


LOADS = "experts: transformers alone loads them wrongly or not at all in this form"


@pytest.mark.parametrize(
    "kind, options, said",
    every(
        3,
        [
            *(("qwen3_moe", {"scheme": scheme}, False) for scheme in ("fp8", "fp8_dynamic", "mxfp4")),
            *(("qwen3_moe", {"scheme": scheme, "group_size": 32}, False) for scheme in ("w4a16", "w8a16")),
            *(("qwen3_moe", {"bits": bits, "group_size": 32}, False) for bits in ("experts=8,4", "attention=8,4")),
            *(("qwen3_moe", {"scheme": scheme}, True) for scheme in ("w8a8", "nvfp4", "w4a16", "w4a16_asym")),
            ("qwen3_moe", {"bits": "layers.0.mlp=8,4", "group_size": 32}, True),
            *(("gpt_oss", {"scheme": scheme}, True) for scheme in ("fp8_dynamic", "w8a16")),
        ],
    ),
)
def test_the_report_says_what_transformers_does_not_load(tmp_path, mixture, kind, options, said):
    source, _ = mixture(kind)
    out = tmp_path / "out"
    report = squeeze.quantize(source, "rtn", out=out, calibration=TOKENS[:1], **options)
    assert any(note.startswith(LOADS) for note in report.fallbacks) == said
    assert Report.read(out).notes == report.notes and all(f"Note: {note}" in report.table() for note in report.notes)
    if not said:
        loaded_by_transformers(out, tmp_path / "dense")


def test_transformers_reads_experts_if_another_module_has_a_grid_of_its_own(tmp_path, mixture):
    source, _ = mixture("qwen3_moe")
    methods = {"model.layers.0.self_attn.q_proj": squeeze.RTN(bits=8, group_size=-1)}
    report = squeeze.quantize(source, squeeze.RTN(bits=4, group_size=32), methods=methods, out=tmp_path / "out")
    assert not any(note.startswith(LOADS) for note in report.fallbacks)
    loaded_by_transformers(tmp_path / "out", tmp_path / "dense")


def test_a_mixture_that_is_not_smoothed_is_said_to_be(tmp_path, mixture):
    command = ["quantize", str(mixture("qwen3_moe")[0]), str(tmp_path / "out"), "--scheme", "w8a8"]
    options = ["--samples", "2", "--sequence-length", "16", "--calibration", "self"]
    done = CliRunner().invoke(main, [*command, *options])
    assert done.exit_code == 0, done.output
    note = "inputs are not smoothed, with which w8a8 begins: architecture 'qwen3_moe' cannot be"
    assert f"Note: {note}" in done.output and note in Report.read(tmp_path / "out").fallbacks
    assert CliRunner().invoke(main, [*command, *options, "--smooth", "0", "-f"]).exit_code == 0
    assert note not in Report.read(tmp_path / "out").fallbacks
