"""GGUF files of folders as they are: the network, tokens and metadata that llama.cpp reads, and what it cannot."""

import json
import re

import gguf
import pytest
import tokenizers
import torch
from safetensors.torch import load_file, save_file

import squeeze
from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.errors import FormatError, ModelError
from squeeze.integrations.gguf.export import Export
from squeeze.integrations.gguf.import_ import import_gguf
from squeeze.integrations.load_model import load_model
from squeeze.lm.gguffile import GgufFile
from tests.makers import gguf_models, hostile, inputs, tiny_models

pytest.importorskip("transformers", reason="transformers is not installed")

TEXT = "def main():\n    return [1, 23, 456]  # it's  é日本\n"


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return gguf_models.save("llama", tmp_path_factory.mktemp("models") / "llama")


@pytest.mark.parametrize("kind", gguf_models.KINDS)
def test_llama_cpp_has_the_network_that_transformers_has(tmp_path, kind):
    folder = gguf_models.save(kind, tmp_path / "model")
    Export.of(Checkpoint.open(folder)).write(tmp_path / "out.gguf")
    gguf_models.check_network(tmp_path / "out.gguf", folder)


@pytest.mark.parametrize(("kind", "blocks"), [("gemma2", 46), pytest.param("gemma3", 62, marks=pytest.mark.slow)])
def test_the_largest_gemmas_scale_queries_by_the_width(tmp_path, kind, blocks):
    """llama.cpp recognises them by their number of blocks."""
    sizes = {"hidden_size": 64, "intermediate_size": 64, "head_dim": 32, "query_pre_attn_scalar": 16}
    folder = gguf_models.save(kind, tmp_path / "model", num_hidden_layers=blocks, **sizes)
    Export.of(Checkpoint.open(folder)).write(tmp_path / "out.gguf")
    with torch.no_grad():
        wanted = load_model(folder)(gguf_models.IDS[None]).logits[0]
    found = gguf_models.llama_logits(tmp_path / "out.gguf", gguf_models.IDS)
    assert float((found - wanted).norm() / wanted.norm()) < 0.02
    changed(folder, query_pre_attn_scalar=32)
    with pytest.raises(ModelError, match=r"queries that are scaled otherwise than by their size$"):
        Export.of(Checkpoint.open(folder))


def test_what_the_first_folders_of_gemma_call_their_activation(tmp_path):
    folder = gguf_models.save("gemma", tmp_path / "model")
    changed(folder, hidden_act="gelu", hidden_activation=None)
    Export.of(Checkpoint.open(folder)).write(tmp_path / "out.gguf")
    gguf_models.check_network(tmp_path / "out.gguf", folder)


@pytest.mark.parametrize("kind", ["mistral", "mixtral"])
def test_a_window_that_llama_cpp_does_not_know_is_told(tmp_path, kind):
    folder = gguf_models.save(kind, tmp_path / "model", sliding_window=48)
    report = squeeze.quantize(folder, "rtn", out=tmp_path / "out.gguf", format="gguf", type="q8_0")
    note = "llama.cpp attends to all tokens, and the model only to the last 48: beyond these texts differ"
    assert note in report.notes
    fields = GgufFile(tmp_path / "out.gguf").fields
    assert (fields["llama.context_length"], fields["llama.attention.sliding_window"]) == (128, 48)
    import_gguf(tmp_path / "out.gguf", tmp_path / "again")
    config = json.loads((tmp_path / "again" / "config.json").read_text())
    assert (config["model_type"], config["max_position_embeddings"], config["sliding_window"]) == (kind, 128, 48)


def with_head(folder, head):
    """Give a folder an output head of its own, whatever its configuration says."""
    tensors = load_file(folder / "model.safetensors")
    save_file({**tensors, "lm_head.weight": head(tensors["model.embed_tokens.weight"])}, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("kind", ["qwen2", "qwen3"])
def test_weights_decide_whether_the_head_is_the_embedding(tmp_path, kind):
    """`tie_word_embeddings` does not decide, as in transformers."""
    folder = with_head(gguf_models.save(kind, tmp_path / "model"), lambda weight: weight.flip(0).contiguous())
    squeeze.quantize(folder, "rtn", out=tmp_path / "out.gguf", format="gguf", type="q8_0")
    assert "output.weight" in GgufFile(tmp_path / "out.gguf").shapes
    import_gguf(tmp_path / "out.gguf", tmp_path / "again")
    with torch.no_grad():
        wanted, found = (load_model(one)(gguf_models.IDS[None]).logits for one in (folder, tmp_path / "again"))
    assert float((found - wanted).norm() / wanted.norm()) < 0.05


def test_a_head_that_is_the_embedding_is_left_out(tmp_path):
    folder = with_head(gguf_models.save("qwen2", tmp_path / "model"), torch.clone)
    Export.of(Checkpoint.open(folder)).write(tmp_path / "out.gguf")
    assert "output.weight" not in GgufFile(tmp_path / "out.gguf").shapes


def test_a_head_that_llama_cpp_would_not_read(tmp_path):
    folder = with_head(gguf_models.save("gemma2", tmp_path / "model"), lambda weight: weight + 1)
    with pytest.raises(ModelError, match=r"its output head is not its embedding, and llama\.cpp takes the embedding"):
        Export.of(Checkpoint.open(folder))


def test_a_file_that_could_not_be_read_again_takes_no_name(tmp_path, llama):
    export = Export.of(Checkpoint.open(llama))
    named = {name.replace("attn_q.", "attn_other."): parts for name, parts in export.named.items()}
    export.__dict__["named"] = named
    with pytest.raises(ModelError, match=r"out\.gguf: could not be read back: .*attn_other.*; nothing was written$"):
        export.write(tmp_path / "out.gguf")
    assert not list(tmp_path.iterdir())


def test_llama_cpp_has_the_tokens_of_gemmas_tokenizer(tmp_path):
    tokenizer = tiny_models.sentence_piece(space=False)
    folder = gguf_models.save("gemma", tmp_path / "model", tokenizer)
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}))
    Export.of(Checkpoint.open(folder)).write(tmp_path / "out.gguf")
    model = gguf_models.opened(tmp_path / "out.gguf")
    for text in (TEXT, " " + TEXT, inputs.python_text(2_000).decode("ascii", "ignore")):
        assert model.tokenize(text.encode(), add_bos=False) == tokenizer.encode(text, add_special_tokens=False).ids
    model.close()
    fields = GgufFile(tmp_path / "out.gguf").fields
    assert fields["tokenizer.ggml.model"] == "llama" and fields["tokenizer.ggml.add_space_prefix"] is False


@pytest.mark.parametrize("sentence_piece", [False, True])
def test_llama_cpp_has_the_tokens_that_the_tokenizer_has(tmp_path, sentence_piece):
    tokenizer = tiny_models.sentence_piece() if sentence_piece else tiny_models.byte_level(space=False)
    folder = gguf_models.save("llama", tmp_path / "model", tokenizer)
    if sentence_piece:
        (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}))
    Export.of(Checkpoint.open(folder)).write(tmp_path / "out.gguf")
    model = gguf_models.opened(tmp_path / "out.gguf")
    for text in (TEXT, inputs.python_text(2_000).decode("ascii", "ignore")):
        assert model.tokenize(text.encode(), add_bos=False) == tokenizer.encode(text, add_special_tokens=False).ids
    model.close()
    fields = GgufFile(tmp_path / "out.gguf").fields
    assert fields["tokenizer.ggml.add_bos_token"] is False
    assert fields["tokenizer.ggml.tokens"][-3:] == [f"[PAD{tokenizer.get_vocab_size() + i}]" for i in range(3)]


def test_what_the_file_says_of_the_model(llama, tmp_path):
    Export.of(Checkpoint.open(llama)).write(tmp_path / "out.gguf")
    fields = GgufFile(tmp_path / "out.gguf").fields
    wanted = {
        "general.architecture": "llama",
        "general.name": "llama",
        "general.file_type": int(gguf.LlamaFileType.ALL_F32),
        "llama.block_count": 2,
        "llama.context_length": 128,
        "llama.attention.head_count_kv": 2,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 0,
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.chat_template": gguf_models.TEMPLATE,
    }
    assert {key: fields[key] for key in wanted} == wanted


def test_a_full_disk_is_named_and_leaves_nothing(tmp_path, llama):
    export = Export.of(Checkpoint.open(llama))
    with hostile.largest_file(300_000), pytest.raises(OSError, match=r"the disk does not take all of .*/out\.gguf'$"):
        export.write(tmp_path / "out.gguf")
    assert not list(tmp_path.iterdir())


def changed(folder, **values):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **values}))


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("llama", {"hidden_act": "gelu"}, "cannot be written as GGUF: it has the activation gelu"),
        ("gemma2", {"query_pre_attn_scalar": 32}, "it has queries that are scaled otherwise than by their size"),
        ("gemma2", {"layer_types": ["full_attention"] * 2}, "it has windows in other blocks than 1 of 2"),
        ("gemma2", {"final_logit_softcapping": None}, "cannot be written as GGUF: it has no cap on its logits"),
        ("gemma2", {"attn_logit_softcapping": None}, "cannot be written as GGUF: it has no cap on its logits"),
        ("gemma", {"hidden_act": "relu"}, "cannot be written as GGUF: it has the activation relu"),
        ("gemma", {"use_bidirectional_attention": True}, "it has attention in both directions"),
        ("gemma3", {"hidden_activation": "silu"}, "cannot be written as GGUF: it has the activation silu"),
        ("gemma3", {"rope_local_base_freq": 5e4, "rope_parameters": None}, "angles of base 50000.0 in windows"),
        ("qwen2", {"use_sliding_window": True}, "cannot be written as GGUF: it has sliding windows"),
        ("qwen3_moe", {"norm_topk_prob": False}, "it has experts whose shares do not sum to 1"),
        ("qwen3_moe", {"mlp_only_layers": [0]}, "it has blocks with and without experts"),
        ("llama", {"partial_rotary_factor": 0.5}, "it has a rotary embedding of a part of each head"),
        ("llama", {"rope_parameters": {"rope_type": "longrope"}}, "it has the rotary scaling longrope"),
        ("yarn", {"rope_parameters": {"rope_type": "yarn", "beta_fast": 9}}, "it has YaRN with limits of its own"),
        ("yarn", {"rope_parameters": {"rope_type": "yarn", "truncate": False}}, "it has YaRN with limits of its own"),
    ],
)
def test_what_llama_cpp_cannot_run(tmp_path, kind, changes, message):
    folder = gguf_models.save(kind, tmp_path / "model")
    changed(folder, **changes)
    with pytest.raises(ModelError, match=f"model: .*{message}$"):
        squeeze.quantize(folder, "rtn", out=tmp_path / "out.gguf", format="gguf")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("llama", {"num_attention_heads": [4]}, "num_attention_heads: [4] is not a number that GGUF has"),
        ("llama", {"head_dim": [64]}, "head_dim: [64] is not a number that GGUF has"),
        ("llama", {"max_position_embeddings": [64]}, "max_position_embeddings: [64] is not a whole number"),
        ("llama", {"rms_norm_eps": {}}, "rms_norm_eps: {} is not a number"),
        ("llama", {"rms_norm_eps": None}, "rms_norm_eps: None is not a number that GGUF has"),
        ("llama", {"rope_parameters": {"full_attention": 5}}, "rope_parameters.full_attention: 5 is not a table"),
        ("llama", {"rope_scaling": {"factor": 10**400}}, "is not a finite number"),
        ("linear", {"rope_parameters": {"rope_type": "linear"}}, "config.json has no factor"),
        (
            "llama",
            {"rope_scaling": {"rope_type": "linear", "factor": "x"}},
            "factor: 'x' is not a number that GGUF has",
        ),
        ("llama3", {"rope_scaling": {"high_freq_factor": 1.0}}, "its rotary scaling gives no angles"),
        ("yarn", {"rope_scaling": {"original_max_position_embeddings": 1e20}}, "1e+20 is not a size that a model has"),
        ("gemma2", {"num_hidden_layers": None}, "num_hidden_layers: None is not a whole number"),
        ("gemma2", {"num_hidden_layers": ...}, "config.json has no num_hidden_layers"),
        ("gemma2", {"sliding_window": ...}, "config.json has no sliding_window"),
        ("gemma2", {"final_logit_softcapping": [30]}, "final_logit_softcapping: [30] is not a number that GGUF has"),
        ("mixtral", {"num_experts_per_tok": ...}, "config.json has no num_experts_per_tok"),
    ],
)
def test_configurations_that_say_no_numbers(tmp_path, kind, changes, message):
    folder = gguf_models.save(kind, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps({key: one for key, one in config.items() if one is not ...}))
    with pytest.raises(FormatError, match=f"^{re.escape(str(folder))}.*{re.escape(message)}$"):
        Export.of(Checkpoint.open(folder))


def test_refuses_an_unknown_architecture_and_a_folder_without_tokenizer(tmp_path, folders):
    known = "llama, mistral, mixtral, qwen2, qwen3, qwen3_moe, gemma, gemma2, gemma3_text"
    with pytest.raises(ModelError, match=f"the architecture 'gpt2' cannot be written as GGUF, only {known}$"):
        squeeze.quantize(folders("gpt2"), "rtn", out=tmp_path / "out.gguf", format="gguf")
    with pytest.raises(FormatError, match=r"has no tokenizer\.json, and a GGUF file holds the tokenizer$"):
        squeeze.quantize(folders("llama"), "rtn", out=tmp_path / "out.gguf", format="gguf")


def test_refuses_a_tensor_that_gguf_has_no_name_for(tmp_path):
    from safetensors.torch import load_file, save_file

    folder = gguf_models.save("qwen2", tmp_path / "model")
    file = folder / "model.safetensors"
    save_file({**load_file(file), "model.layers.0.self_attn.extra.weight": torch.ones(2)}, file)
    with pytest.raises(
        ModelError, match=r"GGUF has no name for the tensor model\.layers\.0\.self_attn\.extra\.weight$"
    ):
        squeeze.quantize(folder, "rtn", out=tmp_path / "out.gguf", format="gguf")


def test_tokenizers_that_llama_cpp_has_no_name_for(tmp_path):
    folder = gguf_models.save("llama", tmp_path / "model")
    plain = json.loads((folder / "tokenizer.json").read_text())
    split = {"type": "Split", "pattern": {"Regex": "[a-z]+"}, "behavior": "Isolated", "invert": False}
    for changes, message in (
        ({"pre_tokenizer": split}, "cannot be written as GGUF: it has a tokenizer that splits texts otherwise than "),
        ({"pre_tokenizer": tiny_models_pre()}, "it has a tokenizer that puts a space before texts$"),
        ({"normalizer": {"type": "Lowercase"}}, "it has a tokenizer that changes texts before it splits them$"),
        ({"model": {"type": "WordLevel", "vocab": {}}}, "it has a tokenizer of the kind 'WordLevel'$"),
        (
            {"model": {**plain["model"], "vocab": {"a": 999}}},
            "its tokenizer has more tokens than its embedding has rows",
        ),
        ({"model": []}, r"its tokenizer\.json is damaged$"),
    ):
        (folder / "tokenizer.json").write_text(json.dumps({**plain, **changes}))
        with pytest.raises(ModelError, match=message):
            squeeze.quantize(folder, "rtn", out=tmp_path / "out.gguf", format="gguf")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def tiny_models_pre():
    return json.loads(tiny_models.byte_level().to_str())["pre_tokenizer"]


def test_a_tokenizer_that_starts_texts(tmp_path):
    folder = gguf_models.save("llama", tmp_path / "model")
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    start = [("<|im_start|>", 1)]
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing("<|im_start|> $A", None, start)
    (folder / "tokenizer.json").write_text(tokenizer.to_str())
    Export.of(Checkpoint.open(folder)).write(tmp_path / "out.gguf")
    assert GgufFile(tmp_path / "out.gguf").fields["tokenizer.ggml.add_bos_token"] is True
