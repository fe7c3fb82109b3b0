"""Weights are those of the source, the same from every format, and damage is refused."""

import json
import shutil

import gguf
import numpy as np
import pytest
from safetensors import safe_open

from squeeze.errors import ModelError
from squeeze.lm import loading
from squeeze.lm.loading import cached, load
from squeeze.lm.weights import Matrix, Weights
from squeeze.numerics import int8
from tests.makers import tiny_models
from tests.references.naive_llama import rotated

pytestmark = pytest.mark.usefixtures("own_cache")


def floats(matrix: Matrix) -> np.ndarray:
    return int8.unpack(matrix.values, matrix.outputs, matrix.inputs) * matrix.scales[:, None]


def assert_close(matrix: Matrix, expected: np.ndarray) -> None:
    """Half a step of a row's quantisation at most, and what float32 rounds."""
    assert (matrix.outputs, matrix.inputs) == expected.shape
    assert (np.abs(floats(matrix) - expected) <= matrix.scales[:, None] * 0.501).all()
    np.testing.assert_allclose(matrix.scales, np.abs(expected).max(axis=1) / 127, rtol=1e-5)


def by_head(matrix: np.ndarray, size: int, axis: int) -> np.ndarray:
    """Rotate the rows or columns of each head."""
    shape = matrix.shape
    heads = (*shape[:axis], -1, size, *shape[axis + 1 :])
    return rotated(matrix.reshape(heads), axis + 1).reshape(shape)


def assert_same(a: Weights, b: Weights) -> None:
    assert a.config == b.config and a.tokens == b.tokens and a.identity == b.identity
    for x, y in zip(_arrays(a), _arrays(b), strict=True):
        assert (x is None and y is None) or (x.dtype == y.dtype and np.array_equal(x, y))


def _arrays(weights: Weights) -> list:
    parts = [weights.embedding, weights.embedding_scales, weights.leaves, weights.head]
    for layer in weights.layers:
        parts += vars(layer).values()
    return [a for p in parts for a in ((p.values, p.scales) if isinstance(p, Matrix) else (p,))]


def assert_holds(weights: Weights, original: dict[str, np.ndarray]) -> None:
    """Every tensor, by its name in safetensors, is in the weights, rotated; norms are in the matrices after them."""
    size = weights.config.head_size

    def behind(norm: str, name: str) -> np.ndarray:
        return rotated(original[name].astype(np.float64) * original[norm])

    for i, layer in enumerate(weights.layers):
        block = f"model.layers.{i}."
        attention, mlp = f"{block}self_attn.", f"{block}mlp."
        first, second = f"{block}input_layernorm.weight", f"{block}post_attention_layernorm.weight"
        query, key, value = (behind(first, f"{attention}{part}_proj.weight") for part in "qkv")
        assert_close(layer.qkv, np.concatenate([query, key, by_head(value, size, 0)]))
        assert_close(layer.output, rotated(by_head(original[f"{attention}o_proj.weight"], size, 1), 0))
        assert_close(
            layer.gate_up, np.concatenate([behind(second, f"{mlp}{part}_proj.weight") for part in ("gate", "up")])
        )
        assert_close(layer.down, rotated(rotated(original[f"{mlp}down_proj.weight"]), 0))
        for name, norm in {"q_norm": layer.query_norm, "k_norm": layer.key_norm}.items():
            wanted = original.get(f"{attention}{name}.weight")
            assert (norm is None) == (wanted is None) and (norm is None or np.array_equal(norm, wanted))
        biases = [original.get(f"{attention}{part}_proj.bias") for part in "qkv"]
        assert (layer.qkv_bias is None) == (biases[0] is None)
        if layer.qkv_bias is not None:
            expected = np.concatenate([*biases[:2], by_head(biases[2], size, 0)])
            np.testing.assert_allclose(layer.qkv_bias, expected, rtol=1e-5, atol=1e-6)
    embedding = rotated(original["model.embed_tokens.weight"])
    assert np.abs(weights.embedding * weights.embedding_scales[:, None] - embedding).max() < 0.05
    head = "lm_head.weight" if "lm_head.weight" in original else "model.embed_tokens.weight"
    assert_close(weights.head, behind("model.norm.weight", head)[weights.leaves])


@pytest.mark.parametrize("architecture", ["llama", "mistral", "qwen2", "qwen3"])
def test_folders_of_transformers_are_loaded(tmp_path, tokenizer, architecture):
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    settings = {**tiny_models.CONFIG, "vocab_size": tokenizer.get_vocab_size(), "head_dim": 16, "eos_token_id": 0}
    settings |= {"tie_word_embeddings": architecture == "qwen2", "pad_token_id": 0}
    if architecture == "qwen2":
        settings["head_dim"] = 8  # which it derives
    config = transformers.AutoConfig.for_model(architecture, **{k: v for k, v in settings.items() if k != "model_type"})
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape))
    angles = model.model.rotary_emb.inv_freq.clone()
    if architecture == "mistral":
        model = model.to(torch.bfloat16)
    model.save_pretrained(tmp_path / "model", max_shard_size="20KB")
    (tmp_path / "model" / "tokenizer.json").write_text(tokenizer.to_str())
    weights = load(tmp_path / "model")
    assert_holds(weights, {name: tensor.float().numpy() for name, tensor in model.state_dict().items()})
    assert weights.config.architecture == architecture and weights.config.start_token == 1
    np.testing.assert_allclose(weights.config.frequencies, angles, rtol=1e-5)


def test_gguf_equals_safetensors(folder, tokenizer):
    path = tiny_models.write_gguf(folder.parent / "tiny.gguf", tokenizer)
    assert_same(load(path), load(folder))
    assert load(folder).name == load(path).name == "tiny"


def test_gguf_of_eight_bits_is_loaded(tmp_path, tokenizer):
    original = tiny_models.tensors(tokenizer.get_vocab_size())
    kind = gguf.GGMLQuantizationType.Q8_0
    weights = load(tiny_models.write_gguf(tmp_path / "tiny.gguf", tokenizer, original, kind))
    rounded = {
        name: array if array.ndim == 1 or array.shape[1] % 32 else gguf.dequantize(gguf.quantize(array, kind), kind)
        for name, array in original.items()
    }
    assert_holds(weights, rounded)


def test_weights_are_rotated_and_hold_their_norms(tmp_path, tokenizer):
    original = tiny_models.tensors(tokenizer.get_vocab_size())
    original["model.norm.weight"] = np.linspace(0.5, 2, 32, dtype=np.float32)
    original["model.layers.1.input_layernorm.weight"] = np.linspace(-1, 1, 32, dtype=np.float32)
    assert_holds(load(tiny_models.write_folder(tmp_path / "tiny", tokenizer, original)), original)


def test_leaves_are_sorted_and_distinct(folder):
    weights = load(folder)
    spelling = [weights.tokens[i] for i in weights.leaves]
    assert spelling == sorted(set(spelling)) and b"" not in spelling
    assert set(spelling) == set(weights.tokens) - {b""}
    assert weights.tokens[:2] == (b"", b"") and b" the" in spelling


def test_second_load_comes_from_the_cache(folder, monkeypatch):
    first = load(folder)
    monkeypatch.setattr("squeeze.lm.loading.open_source", pytest.fail)
    assert_same(load(folder), first)
    assert load(folder).tokenizer == first.tokenizer


def test_models_of_equal_weights_keep_their_own_tokenizers(folder, tmp_path):
    first = load(folder)
    other = shutil.copytree(folder, tmp_path / "other")
    described = json.loads((other / "tokenizer.json").read_text())
    described["pre_tokenizer"] = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
    (other / "tokenizer.json").write_text(json.dumps(described))
    changed = load(other)
    assert changed.identity == first.identity and changed.tokenizer != first.tokenizer
    assert load(folder).tokenizer == first.tokenizer
    assert load(other).tokenizer == changed.tokenizer


def test_cached_file_is_aligned_and_valid(folder):
    identity = load(folder).identity
    path = loading.cache_folder() / f"{identity}.safetensors"
    with safe_open(path, "np") as file:
        assert file.metadata()["identity"] == identity
    known = cached(identity)
    assert known is not None
    assert all(a.ctypes.data % 64 == 0 for a in _arrays(known) if a is not None)


def test_damaged_cache_is_rebuilt(folder):
    first = load(folder)
    path = loading.cache_folder() / f"{first.identity}.safetensors"
    good = path.read_bytes()
    for place in [0, 20, 100, len(good) // 2, len(good) - 1]:
        bad = bytearray(good)
        bad[place] ^= 1
        path.write_bytes(bad)
        assert cached(first.identity) is None, place
        assert_same(load(folder), first)
        assert path.read_bytes() == good
    path.write_bytes(good[:1000])
    assert cached(first.identity) is None
    assert cached("no identity") is None and cached("0" * 64) is None


def test_works_without_a_cache(folder, monkeypatch, tmp_path):
    first = load(folder)
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("SQUEEZE_CACHE", str(tmp_path / "file"))
    assert_same(load(folder), first)
    assert cached(first.identity) is None


def test_changed_weights_have_another_identity(folder, tokenizer):
    first = load(folder).identity
    values = tiny_models.tensors(tokenizer.get_vocab_size())
    values["model.layers.1.mlp.up_proj.weight"][3, 5] *= -1
    assert load(tiny_models.write_folder(folder, tokenizer, values)).identity != first
    assert load(tiny_models.write_folder(folder, tokenizer, rms_norm_eps=1e-6)).identity != first
    assert load(tiny_models.write_folder(folder, tokenizer)).identity == first


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "gpt2"}, "architecture 'gpt2'"),
        ({"model_type": "mixtral"}, "architecture 'mixtral'"),
        ({"partial_rotary_factor": 0.5}, "partial rotary embedding"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "rotary scaling 'longrope'"),
        ({"hidden_act": "gelu"}, "activation 'gelu'"),
        ({"quantization_config": {"bits": 4}}, "a folder of quantised tensors"),
    ],
)
def test_refuses_unsupported_folders(tmp_path, tokenizer, config, message):
    path = tiny_models.write_folder(tmp_path / "tiny", tokenizer, **config)
    with pytest.raises(ModelError) as error:
        load(path)
    assert str(error.value) == f"tiny: {message} is not supported; plain llama, mistral, qwen2 and qwen3 models are"


def test_refuses_unsupported_gguf_files(tmp_path, tokenizer):
    experts = tiny_models.write_gguf(tmp_path / "a.gguf", tokenizer, llama__expert_count=8)
    with pytest.raises(ModelError, match="tiny: a mixture of experts is not supported; plain llama"):
        load(experts)
    part = tiny_models.write_gguf(tmp_path / "b.gguf", tokenizer, split__count=2)
    with pytest.raises(ModelError, match="this is one part of a split model: join the parts"):
        load(part)
    with pytest.raises(ModelError, match="architecture 'gemma2' is not supported"):
        load(tiny_models.write_gguf(tmp_path / "c.gguf", tokenizer, architecture="gemma2"))


def test_sliding_window_bounds_the_context(tmp_path, tokenizer):
    path = tiny_models.write_folder(tmp_path / "tiny", tokenizer, model_type="mistral", sliding_window=100)
    assert load(path).config.context == 100


def test_refuses_damaged_weights(tmp_path, tokenizer):
    values = tiny_models.tensors(tokenizer.get_vocab_size())
    path = tmp_path / "tiny"
    values["model.layers.0.mlp.down_proj.weight"][3, 5] = np.nan
    with pytest.raises(ModelError, match=r"^tiny: the model is damaged: tensor 0\.down is not all finite numbers$"):
        load(tiny_models.write_folder(path, tokenizer, values))
    values["model.layers.0.mlp.down_proj.weight"] = np.zeros((3, 3), np.float32)
    with pytest.raises(ModelError, match=r"has shape \[3, 3\], and its description says \[32, 48\]$"):
        load(tiny_models.write_folder(path, tokenizer, values))
    del values["model.layers.0.mlp.down_proj.weight"]
    with pytest.raises(ModelError, match=r"^tiny: the model is damaged or incomplete: it has no tensor 0\.down$"):
        load(tiny_models.write_folder(path, tokenizer, values))
    with pytest.raises(ModelError, match="no such model"):
        load(tmp_path / "nothing")
    (path / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match=r"not a model folder: it has no tokenizer\.json$"):
        load(path)


def test_refuses_tensors_that_only_some_layers_have(tmp_path, tokenizer):
    values = tiny_models.tensors(tokenizer.get_vocab_size())
    for part, size in (("q_proj.bias", 32), ("k_proj.bias", 16), ("v_proj.bias", 16)):
        values[f"model.layers.1.self_attn.{part}"] = np.ones(size, np.float32)
    with pytest.raises(ModelError, match=r"^tiny: the model is damaged or incomplete: it has no tensor 0\.qkv_bias$"):
        load(tiny_models.write_folder(tmp_path / "tiny", tokenizer, values))


def test_refuses_heads_that_overflow_a_sum(tmp_path, tokenizer):
    path = tiny_models.write_folder(tmp_path / "tiny", tokenizer, head_dim=514)
    with pytest.raises(ModelError, match="attention heads of size 514"):
        load(path)


def test_refuses_truncated_sources(folder, tokenizer):
    path = tiny_models.write_gguf(folder.parent / "tiny.gguf", tokenizer)
    for file, source in ((path, path), (folder / "model.safetensors", folder)):
        whole = file.read_bytes()
        for size in [0, 3, 10, 60, 500, 5_000, len(whole) // 2, len(whole) - 40]:
            file.write_bytes(whole[:size])
            with pytest.raises(ModelError):
                load(source)


def test_refuses_impossible_counts(tmp_path, tokenizer):
    path = tiny_models.write_gguf(tmp_path / "tiny.gguf", tokenizer)
    whole = path.read_bytes()
    scores = whole.index(b"tokenizer.ggml.token_type") + len("tokenizer.ggml.token_type") + 8
    for count in (8, 16, 24, scores):  # of tensors, of metadata, of a key's bytes, of an array's items
        path.write_bytes(whole[:count] + b"\xff" * 7 + whole[count + 7 :])
        with pytest.raises(ModelError, match="the model is damaged or incomplete"):
            load(path)
    head_size = whole.index(b"llama.embedding_length") + len("llama.embedding_length") + 4
    path.write_bytes(whole[:head_size] + b"\xff" * 4 + whole[head_size + 4 :])
    with pytest.raises(ModelError, match="description is damaged: embedding_length is 4294967295"):
        load(path)


def test_refuses_a_description_that_is_not_json(folder):
    for name in ("tokenizer.json", "config.json"):
        for text in ("{", "[]", "{}", "null", '{"model": 3}'):
            (folder / name).write_text(text)
            with pytest.raises(ModelError):
                load(folder)


def test_rows_of_zeros_stay_zeros(tmp_path, tokenizer):
    values = tiny_models.tensors(tokenizer.get_vocab_size())
    values["model.layers.0.mlp.gate_proj.weight"][3] = 0
    values["model.layers.0.mlp.gate_proj.weight"][4] = 1e-42
    gate = load(tiny_models.write_folder(tmp_path / "tiny", tokenizer, values)).layers[0].gate_up
    assert gate.scales[3] == gate.scales[4] == 1
    assert not floats(gate)[3:5].any()
