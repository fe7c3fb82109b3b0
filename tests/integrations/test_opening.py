"""Folders open as they were meant to: every stored tensor has a place in the model, and none is left to chance."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

import squeeze
from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.engine import pipeline
from squeeze.errors import FormatError, ModelError
from squeeze.integrations import opening
from squeeze.integrations.load_model import load_model
from squeeze.quant.formats.squeeze import SqueezeFormat
from squeeze.recipes.train.distil import Training
from squeeze.recipes.train.retrain import heal, recover
from tests.makers import networks
from tests.makers.cases import every

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("squeeze.integrations.transformers")

IDS = torch.randint(0, 280, (2, 12), generator=torch.Generator().manual_seed(1))
CLOSE = 0.01  # of logits: activations are rounded to 15 bits, weights to bf16
WAYS = {
    "prune": (squeeze.prune, {"method": "magnitude"}),
    "factorize": (squeeze.factorize, {"method": "svd", "rank": 32}),
    "squeeze": (squeeze.quantize, {"method": "rtn", "format": "squeeze", "bits": 4}),
    "compressed-tensors": (squeeze.quantize, {"method": "rtn", "bits": "4,down_proj=8"}),
}


@pytest.fixture(scope="module")
def seeing(tmp_path_factory):
    return networks.save_seeing(tmp_path_factory.mktemp("seeing") / "model")


@pytest.fixture(scope="module")
def sparse(folders, tmp_path_factory):
    out = tmp_path_factory.mktemp("sparse") / "out"
    squeeze.prune(folders("llama"), "magnitude", out=out)
    return out


@pytest.fixture
def damaged(sparse, tmp_path):
    """Make a sparse folder whose tensors have other names."""

    def make(change):
        folder = shutil.copytree(sparse, tmp_path / "damaged")
        tensors = load_file(folder / "model.safetensors")
        save_file(change(tensors), folder / "model.safetensors", {"format": "pt"})
        return folder

    return make


def logits(folder, **options):
    """Return the logits of a vision-language model, by transformers."""
    kind = transformers.AutoModelForImageTextToText
    model, found = kind.from_pretrained(folder, dtype=torch.float32, output_loading_info=True, **options)
    assert not any(found.values())
    with torch.inference_mode():
        return model.eval()(input_ids=IDS).logits


def apart(ours, theirs):
    """Return the relative difference of logits."""
    return float((ours - theirs).norm() / theirs.norm())


def config_of(folder):
    return json.loads((folder / "config.json").read_text())["quantization_config"]


@pytest.mark.parametrize("way", every(2, WAYS))
def test_tensors_that_transformers_renames(seeing, tmp_path, way):
    change, options = WAYS[way]
    report = change(seeing, out=tmp_path / "out", **options)
    assert len(report.layers) == 14
    squeeze.densify(tmp_path / "out", tmp_path / "dense")
    dense = logits(tmp_path / "dense")
    assert apart(dense, logits(seeing)) > 0.1
    assert apart(logits(tmp_path / "out"), dense) < CLOSE
    with torch.inference_mode():
        assert apart(load_model(tmp_path / "out")(IDS).logits, dense) < CLOSE


def test_differences_from_a_base_that_transformers_renames(seeing, tmp_path):
    base, tuned = shutil.copytree(seeing, tmp_path / "base"), shutil.copytree(seeing, tmp_path / "tuned")
    tensors = load_file(tuned / "model.safetensors")
    moved = {name: (x.float() + 0.02 * torch.randn(x.shape)).to(x.dtype) for name, x in tensors.items() if x.ndim == 2}
    save_file({**tensors, **moved}, tuned / "model.safetensors", {"format": "pt"})
    squeeze.delta(base, tuned, out=tmp_path / "out", calibration=IDS, bits=4, embedding_bits=0)
    squeeze.densify(tmp_path / "out", tmp_path / "dense")
    dense = logits(tmp_path / "dense")
    assert apart(dense, logits(tuned)) < 0.5 * apart(dense, logits(base))
    assert apart(logits(tmp_path / "out"), dense) < CLOSE


def test_what_stays_dense_is_ignored_by_both_names(seeing, tmp_path):
    squeeze.quantize(seeing, "rtn", out=tmp_path / "out", ignore=("o_proj",))
    ignored = config_of(tmp_path / "out")["ignore"]
    assert "model.language_model.layers.0.self_attn.o_proj" in ignored
    assert "language_model.model.layers.0.self_attn.o_proj" in ignored
    assert "model.vision_tower.encoder.layers.0.mlp.fc1" in ignored
    assert "vision_tower.encoder.layers.0.mlp.fc1" in ignored


def test_matrices_that_transformers_wants_dense_while_it_loads(folders, tmp_path):
    report = squeeze.quantize(folders("gpt_bigcode"), "rtn", out=tmp_path / "out")
    left = {name: why for name, why in report.left.items() if "wants its dense weight" in why}
    assert set(left) == {f"transformer.h.{i}.{part}.c_proj" for i in (0, 1) for part in ("attn", "mlp")}
    assert set(left) <= set(config_of(tmp_path / "out")["ignore"]) and len(report.layers) == 4
    _, found = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(found.values())


def test_a_network_of_which_transformers_takes_nothing_is_refused(folders, tmp_path):
    with pytest.raises(FormatError, match=r"no matrix can be stored: transformers wants its dense weight .* squeeze"):
        squeeze.quantize(folders("falcon"), "rtn", out=tmp_path / "out")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["falcon", "gpt_bigcode", "mamba"])
def test_our_own_formats_need_no_dense_weight(folders, tmp_path, kind):
    report = squeeze.quantize(folders(kind), "rtn", out=tmp_path / "out", format="squeeze", bits=4)
    assert report.layers and not any("wants" in why for why in report.left.values())
    squeeze.densify(tmp_path / "out", tmp_path / "dense")
    with torch.inference_mode():
        ours, dense = load_model(tmp_path / "out")(IDS).logits, load_model(tmp_path / "dense")(IDS).logits
    assert apart(ours, dense) < 10 * CLOSE  # recurrences add up what is rounded


def test_layers_that_transformers_leaves_aside(folders, tmp_path):
    """Layers that predict several tokens ahead stay, and the config says that they are dense."""
    folder = shutil.copytree(folders("llama"), tmp_path / "model")
    extra = {"model.layers.2.eh_proj.weight": torch.ones(64, 128), "model.layers.2.norm.weight": torch.ones(64)}
    (folder / "model.safetensors.index.json").unlink()
    whole = [(path, load_file(path)) for path in folder.glob("model-*.safetensors")]
    for path, _ in whole:
        path.unlink()
    save_file({name: x for _, part in whole for name, x in part.items()} | extra, folder / "model.safetensors")
    report = squeeze.quantize(folder, "rtn", out=tmp_path / "out")
    assert report.left["model.layers.2.eh_proj"] == "is not part of the network that transformers runs"
    assert "model.layers.2.eh_proj" in config_of(tmp_path / "out")["ignore"]
    assert extra.keys() <= Checkpoint.open(tmp_path / "out").files.keys()


def test_what_would_not_load_takes_no_name(folders, tmp_path, monkeypatch):
    kept = SqueezeFormat.tensors

    def renamed(self, module, tensor, *rest):
        return kept(self, module.replace("q_proj", "other"), tensor, *rest)

    monkeypatch.setattr(SqueezeFormat, "tensors", renamed)
    place = r"out: would not load: LlamaForCausalLM has no place for 'model\.layers\.0\.self_attn\.other\.\w+', .* more"
    with pytest.raises(ModelError, match=place):
        squeeze.quantize(folders("llama"), "rtn", out=tmp_path / "out", format="squeeze")
    assert not list(tmp_path.iterdir())


def test_a_source_may_lack_and_have_in_excess_what_it_did(folders, tmp_path):
    folder = shutil.copytree(folders("llama"), tmp_path / "model")
    path = sorted(folder.glob("model-*.safetensors"))[0]
    save_file(load_file(path) | {"model.extra": torch.ones(3)}, path, {"format": "pt"})
    opening.check_opens(folder, Checkpoint.open(folder))
    with pytest.raises(ModelError, match=r"LlamaForCausalLM has no place for 'model\.extra'; nothing was written$"):
        opening.check_opens(folder)


def test_refuses_a_tensor_of_another_shape(folders, tmp_path):
    folder = shutil.copytree(folders("llama"), tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"intermediate_size": 80}))
    with pytest.raises(ModelError, match=r"'model\.layers\.0\.mlp\.\w+\.weight' has shape .*64.* LlamaForCausalLM has"):
        opening.check_opens(folder)


def test_the_loader_refuses_what_has_no_place(damaged):
    folder = damaged(
        lambda tensors: {name.replace("layers.1.mlp.up", "layers.1.mlp.over"): x for name, x in tensors.items()}
    )
    with pytest.raises(FormatError, match=r"damaged: LlamaForCausalLM has no place for .*layers\.1\.mlp\.over_proj"):
        transformers.AutoModelForCausalLM.from_pretrained(folder)


def test_the_loader_refuses_what_is_missing(damaged):
    folder = damaged(lambda tensors: {name: x for name, x in tensors.items() if name != "model.norm.weight"})
    with pytest.raises(FormatError, match=r"damaged: the checkpoint has no tensor for 'model\.norm\.weight'$"):
        transformers.AutoModelForCausalLM.from_pretrained(folder)


def test_what_is_planned_is_checked_before_any_work(tmp_path, monkeypatch):
    """Llama 4's experts stay dense, and transformers' loader of compressed-tensors splits them."""
    folder = networks.save("llama4", tmp_path / "model")
    monkeypatch.setattr(pipeline, "_blocks", lambda *given: pytest.fail("a block was compressed"))
    place = r"out: would not load: Llama4ForCausalLM has no place for '.*experts.*: use the format squeeze or dense$"
    with pytest.raises(ModelError, match=place):
        squeeze.quantize(folder, "rtn", out=tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize(("change", "options"), [WAYS["prune"], WAYS["factorize"]])
def test_training_reaches_tensors_that_transformers_renames(seeing, tmp_path, change, options):
    change(seeing, out=tmp_path / "out", **options)
    before = {name: x.clone() for name, x in load_file(tmp_path / "out" / "model.safetensors").items()}
    train = recover if change is squeeze.prune else heal
    tokens = torch.randint(0, 280, (8, 12), generator=torch.Generator().manual_seed(2))
    train(seeing, tmp_path / "out", tokens, Training(minutes=1, steps=2, batch=2))
    after = load_file(tmp_path / "out" / "model.safetensors")
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed and all(name.startswith("language_model.model.") for name in changed)
