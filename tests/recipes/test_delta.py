"""`squeeze delta`: fine-tunes of tiny models of several architectures as differences, and every way back."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

import squeeze
from squeeze.errors import DamagedError, FormatError, ModelError, SqueezeError
from squeeze.integrations.load_model import load_model
from squeeze.prune.delta.stored import DeltaLinear
from tests.makers.cases import every
from tests.makers.command import call, fails

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

TOKENS = torch.randint(0, 300, (8, 32), generator=torch.Generator().manual_seed(1))
CLOSE = {"rtol": 0.0, "atol": 2e-3}  # of logits of about 10: activations are rounded to 15 bits, sums to other orders
LAYERS = {"llama": 14, "qwen2": 14, "gpt2": 8}


def write_tuned(base, folder, seed=0, rows_of_embeddings=5):
    """Write a fine-tune: all matrices and norms change a little, and some rows of the embeddings."""
    shutil.copytree(base, folder)
    generator = torch.Generator().manual_seed(seed)
    for path in sorted(folder.glob("*.safetensors")):
        tensors = load_file(path)
        for name, weight in tensors.items():
            noise = 0.05 * weight.float().std(correction=0) * torch.randn(weight.shape, generator=generator)
            rows = rows_of_embeddings if "embed" in name or "wte" in name else len(weight)
            weight[:rows] += noise[:rows].to(weight.dtype)
        save_file(tensors, path, {"format": "pt"})
    return folder


@pytest.fixture
def pair(folders, tmp_path):
    """Make a base and a fine-tune of it."""

    def make(kind):
        base = shutil.copytree(folders(kind), tmp_path / "base")
        return base, write_tuned(base, tmp_path / "tuned")

    return make


@pytest.fixture(scope="module")
def llama(folders, tmp_path_factory):
    """Make a base, a fine-tune of it and the difference."""
    place = tmp_path_factory.mktemp("llama")
    base = shutil.copytree(folders("llama"), place / "base")
    delta(base, write_tuned(base, place / "tuned"), place / "out")
    return place


@pytest.fixture
def made(llama, tmp_path):
    """Copy base and fine-tune into the test's folder, with the difference as `out`."""
    shutil.copytree(llama, tmp_path, dirs_exist_ok=True)
    return tmp_path / "base", tmp_path / "tuned"


def delta(base, tuned, out, **options):
    return squeeze.delta(
        base, tuned, out=out, calibration=TOKENS, **{"bits": 2, "pattern": "2:4", "embedding_bits": 0, **options}
    )


def logits(folder, **options):
    with torch.inference_mode():
        return load_model(folder, **options)(TOKENS).logits


def tensors_of(folder):
    found = {}
    for path in folder.glob("*.safetensors"):
        found |= load_file(path)
    return found


@pytest.mark.parametrize(
    ("kind", "options"),
    every(
        2,
        [
            *((kind, {}) for kind in LAYERS),
            ("llama", {"pattern": None, "bits": 4, "group_size": 32}),
            ("llama", {"bits": None, "pattern": "50%"}),
            ("gpt2", {"pattern": None, "bits": 3}),
        ],
    ),
    ids=str,
)
def test_every_architecture_is_stored_as_differences(tmp_path, pair, kind, options):
    base, tuned = pair(kind)
    report = delta(base, tuned, tmp_path / "out", **options)
    assert len(report.layers) == LAYERS[kind] and not report.fallbacks
    model = load_model(tmp_path / "out")
    assert sum(isinstance(module, DeltaLinear) for module in model.modules()) == LAYERS[kind]
    squeeze.densify(tmp_path / "out", tmp_path / "dense")
    expanded, exact, first = tensors_of(tmp_path / "dense"), tensors_of(tuned), tensors_of(base)
    assert expanded.keys() == exact.keys()
    matrices = {f"{layer.name}.weight" for layer in report.layers}
    assert set(report.left) >= {name for name in exact if name not in matrices and name != "lm_head.weight"}
    for name, weight in exact.items():
        if name not in matrices:
            assert torch.equal(expanded[name], weight)
            continue
        before, after = (float((w[name].float() - weight.float()).norm()) for w in (first, expanded))
        assert after < before
    model.to(torch.float32)
    with torch.inference_mode():
        found = model(TOKENS).logits
    for name, module in model.named_modules():
        if isinstance(module, DeltaLinear):
            dense = torch.nn.Linear(module.in_features, module.out_features, bias=module.bias is not None)
            dense.weight.data = module.weight
            dense.bias = module.bias
            model.set_submodule(name, dense)
    with torch.inference_mode():
        torch.testing.assert_close(found, model(TOKENS).logits, **CLOSE)


def test_embeddings_and_heads_are_rounded(tmp_path, folders):
    base = shutil.copytree(folders("llama"), tmp_path / "base")
    tuned = write_tuned(base, tmp_path / "tuned", rows_of_embeddings=1000)
    exact, first = tensors_of(tuned), tensors_of(base)
    names, errors, sizes = {"model.embed_tokens.weight", "lm_head.weight"}, [], []
    for bits in (0, 4, 1):
        report = delta(base, tuned, tmp_path / f"{bits}", embedding_bits=bits, correction=0.0)
        told = {name: told for name, told in report.left.items() if "rounded to" in told}
        assert told.keys() == (names if bits else set())
        squeeze.densify(tmp_path / f"{bits}", tmp_path / f"dense-{bits}")
        found = tensors_of(tmp_path / f"dense-{bits}")
        sizes.append(sum(path.stat().st_size for path in (tmp_path / f"{bits}").glob("*.safetensors")))
        errors.append([])
        for name, weight in exact.items():
            lost, whole = (float((one[name].float() - weight.float()).norm()) for one in (found, first))
            if name in names:
                errors[-1].append(lost / whole)
            elif "norm" in name:
                assert lost == 0
    assert sizes[0] > sizes[1] > sizes[2]
    assert max(errors[0]) == 0 < min(errors[1]) <= max(errors[1]) < 0.5 < min(errors[2]) <= max(errors[2]) < 1
    report = delta(base, tuned, tmp_path / "left", embedding_bits=None, ignore=("lm_head",), correction=0.0)
    assert (
        "rounded to" not in str(report.left.get("lm_head.weight"))
        and "rounded to" in report.left["model.embed_tokens.weight"]
    )


def test_few_rows_are_multiplied_by_codes(tmp_path, pair):
    base, tuned = pair("llama")
    delta(base, tuned, tmp_path / "out", group_size=32)
    model = load_model(tmp_path / "out")
    x = torch.randn(2, 64, generator=torch.Generator().manual_seed(2))
    for name, module in model.named_modules():
        if isinstance(module, DeltaLinear) and module.in_features == 64:
            wanted = torch.nn.functional.linear(x, module.weight)
            assert torch.allclose(module(x), wanted, atol=1e-3), name


def test_unpacked_it_is_the_same(tmp_path, made):
    base = made[0]
    squeeze.verify(tmp_path / "out", base=base)
    squeeze.unpack(tmp_path / "out", tmp_path / "unpacked", base=base)
    assert torch.equal(logits(tmp_path / "out"), logits(tmp_path / "unpacked"))
    for name in ("out", "unpacked"):
        squeeze.densify(tmp_path / name, tmp_path / f"{name}-dense")
    one, other = tensors_of(tmp_path / "out-dense"), tensors_of(tmp_path / "unpacked-dense")
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_models_share_their_base(tmp_path, pair):
    base, tuned = pair("qwen2")
    delta(base, tuned, tmp_path / "one")
    for seed, name in ((5, "other"), (6, "third")):
        delta(base, write_tuned(base, tmp_path / f"{name}-tuned", seed, 0), tmp_path / name, pattern=None)
    models = [load_model(tmp_path / name) for name in ("one", "other")]
    layers = [[module for module in model.modules() if isinstance(module, DeltaLinear)] for model in models]
    for ours, theirs in zip(*layers, strict=True):
        assert ours.base.data_ptr() == theirs.base.data_ptr()
    assert not torch.equal(models[0](TOKENS).logits, models[1](TOKENS).logits)
    assert torch.equal(logits(tmp_path / "one"), models[0](TOKENS).logits)
    models.append(load_model(tmp_path / "third"))
    embeddings = [model.get_input_embeddings().weight.data_ptr() for model in models]
    assert embeddings[0] != embeddings[1] == embeddings[2]
    assert models[2].lm_head.weight.data_ptr() == embeddings[2]


def test_a_packed_base_is_found_by_its_hash(tmp_path, made):
    base, tuned = made
    (tmp_path / "out").rename(tmp_path / "same")
    squeeze.pack(base, tmp_path / "first-packed")
    delta(tmp_path / "first-packed", tuned, tmp_path / "out")
    wanted = logits(tmp_path / "same")
    (tmp_path / "first-packed").rename(tmp_path / "packed")
    shutil.rmtree(base)
    assert torch.equal(logits(tmp_path / "out"), wanted)
    assert torch.equal(logits(tmp_path / "same"), wanted)


def test_auto_model_takes_a_base_elsewhere(tmp_path, made):
    from squeeze.integrations.transformers import load_options

    base = made[0]
    wanted = logits(tmp_path / "out")
    moved = base.rename(tmp_path.parent / f"{tmp_path.name}-moved")
    with load_options(base=moved):
        model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    with torch.inference_mode():
        assert torch.equal(model(TOKENS).logits, wanted)
    assert torch.equal(logits(tmp_path / "out", base=moved), wanted)
    squeeze.densify(tmp_path / "out", tmp_path / "dense", base=moved)
    moved.rename(base)


def test_what_did_not_change_takes_nothing(tmp_path, pair):
    base, _ = pair("llama")
    report = delta(base, shutil.copytree(base, tmp_path / "same"), tmp_path / "out", correction=0.0)
    assert torch.equal(logits(tmp_path / "out"), logits(base))
    assert report.stored_bytes < report.raw_bytes


def test_experts_come_back_dense(tmp_path, pair):
    base, tuned = pair("qwen2_moe")
    delta(base, tuned, tmp_path / "out")
    with pytest.raises(ModelError, match="run `squeeze densify` first"):
        load_model(tmp_path / "out")
    squeeze.densify(tmp_path / "out", tmp_path / "dense")
    assert torch.isfinite(logits(tmp_path / "dense")).all()


def test_a_stopped_run_goes_on(tmp_path, made, monkeypatch):
    from squeeze.recipes import quantize as recipe

    base, tuned = made
    (tmp_path / "out").rename(tmp_path / "wanted")
    with monkeypatch.context() as patch:
        patch.setattr(recipe, "pack", lambda *arguments, **options: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            delta(base, tuned, tmp_path / "out")
    delta(base, tuned, tmp_path / "out", resume=True)
    assert torch.equal(logits(tmp_path / "out"), logits(tmp_path / "wanted"))
    assert not list(tmp_path.glob(".out*"))


def damaged(path):
    data = bytearray(path.read_bytes())
    data[-1000] ^= 1
    path.write_bytes(data)


def test_another_base_is_refused(tmp_path, made):
    base, tuned = made
    refusals = "is not the base that this checkpoint is the difference from: the SHA-256 of its files differ"
    for ways in (load_model, lambda folder, base=None: squeeze.densify(folder, tmp_path / "dense", base=base)):
        with pytest.raises(SqueezeError, match=refusals):
            ways(tmp_path / "out", base=tuned)
    damaged(next(base.glob("*.safetensors")))
    with pytest.raises(SqueezeError, match=refusals):
        load_model(tmp_path / "out")
    shutil.rmtree(base)
    with pytest.raises(SqueezeError, match="from a base, base, which is not next to it: put it there"):
        load_model(tmp_path / "out")
    assert not (tmp_path / "dense").exists()


@pytest.mark.parametrize("cut", [True, False])
def test_damage_is_told(tmp_path, made, cut):
    path = tmp_path / "out" / "model.safetensors"
    if cut:
        path.write_bytes(path.read_bytes()[:-10])
    else:
        damaged(path)
    for way in (load_model, lambda folder: squeeze.densify(folder, tmp_path / "dense")):
        with pytest.raises(DamagedError):
            way(tmp_path / "out")
    message = fails("densify", tmp_path / "out", tmp_path / "dense")
    assert message.count("\n") == 1 and not (tmp_path / "dense").exists()


def test_refuses_a_base_of_another_architecture_or_shape(tmp_path, folders, pair):
    base, tuned = pair("llama")
    with pytest.raises(ModelError, match=r"tuned: expected the base's architecture qwen2 \(.*\), got llama"):
        delta(folders("qwen2"), tuned, tmp_path / "out")
    path = next(path for path in tuned.glob("*.safetensors") if "model.norm.weight" in load_file(path))
    tensors = load_file(path)
    save_file({**tensors, "model.norm.weight": torch.ones(32)}, path)
    with pytest.raises(FormatError, match=r"'model.norm.weight': expected shape \[64\] of the base .*, got \[32\]"):
        delta(base, tuned, tmp_path / "out")
    save_file({**tensors, "extra.weight": torch.ones(32)}, path)
    with pytest.raises(FormatError, match=r"the base .* has no tensor 'extra.weight'"):
        delta(base, tuned, tmp_path / "out")
    with pytest.raises(SqueezeError, match="needs `bits`, a `pattern`, or both"):
        delta(base, tuned, tmp_path / "out", bits=None, pattern=None)
    with pytest.raises(SqueezeError, match="is no difference from a base, and needs none"):
        load_model(base, base=base)
    with pytest.raises(SqueezeError, match="is no difference from a base, and needs none"):
        squeeze.densify(base, tmp_path / "out", base=base)
    assert not (tmp_path / "out").exists() and not list(tmp_path.glob(".out*"))


@pytest.mark.parametrize("described", [None, {}, {"name": "base"}, {"name": "../base", "sha256": ["0"]}], ids=str)
def test_refuses_an_invalid_description_of_the_base(tmp_path, made, described):
    path = tmp_path / "out" / "config.json"
    config = json.loads(path.read_text())
    config["quantization_config"]["base"] = described
    path.write_text(json.dumps(config))
    with pytest.raises(DamagedError, match="does not name the base of the difference"):
        load_model(tmp_path / "out")
    config["quantization_config"]["version"] = 2
    path.write_text(json.dumps(config))
    with pytest.raises(FormatError, match="unknown version 2 of differences from a base"):
        load_model(tmp_path / "out")


def test_the_command_measures_and_packs(tmp_path, folders):
    from tests.makers import tiny_models

    base = tiny_models.write_folder(tmp_path / "base", tiny_models.byte_level(), vocab_size=400)
    tuned, text = write_tuned(base, tmp_path / "tuned"), tmp_path / "text.txt"
    text.write_bytes(tiny_models.TRAINING_TEXT[:20_000])
    given = ["--calibration", text, "--samples", 8, "--sequence-length", 64, "--text", text, "--windows", 1]
    done = call("delta", base, tuned, tmp_path / "out", "--bits", 4, "--group-size", 16, *given)
    assert done.exit_code == 0 and "KL from the original" in done.output and "kept exactly" in done.output
    done = call("eval", tmp_path / "out", "--base", base, "--text", text, "--original", tuned, "--windows", 1)
    assert done.exit_code == 0 and "kl mean" in done.output
    again = fails("delta", base, tuned, tmp_path / "out", "--bits", 4, *given)
    assert "exists" in again
