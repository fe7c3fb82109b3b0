"""Language models of a few thousand weights, written in the formats that squeeze reads."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import tokenizers
from safetensors.numpy import save_file

from tests.makers import inputs

WIDTH, HEADS, KV_HEADS, HEAD_SIZE, FEED_FORWARD, LAYERS = 32, 4, 2, 8, 48, 2
TRAINING_TEXT = inputs.python_text(100_000).decode("ascii", "ignore").encode()
SPECIAL = ("<|endoftext|>", "<|im_start|>")
CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": WIDTH,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "intermediate_size": FEED_FORWARD,
    "num_hidden_layers": LAYERS,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "bos_token_id": 1,
    "tie_word_embeddings": False,
}


def byte_level(space: bool = True) -> tokenizers.Tokenizer:
    """Return a BPE tokenizer like GPT-2's that knows only the bytes of its training text: no escape, few high bytes.

    `space` says whether a space is put before a text.
    """
    return tokenizers.Tokenizer.from_str(_byte_level(space))


@cache
def _byte_level(space: bool) -> str:
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.normalizer = tokenizers.normalizers.NFC()
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=space)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=400, special_tokens=list(SPECIAL), show_progress=False)
    tokenizer.train_from_iterator([TRAINING_TEXT.decode() + "é日本\r\n\0"], trainer)
    trained: str = tokenizer.to_str()
    return trained


def sentence_piece(space: bool = True) -> tokenizers.Tokenizer:
    """Return a BPE tokenizer like Llama 2's: spaces are U+2581, each byte is a token, and a space is put before the
    text.

    Without `space` it is like Gemma's.
    """
    return tokenizers.Tokenizer.from_str(_sentence_piece(space))


@cache
def _sentence_piece(space: bool) -> str:
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    if space:
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(prepend_scheme="always")
        tokenizer.decoder = tokenizers.decoders.Metaspace()
    else:
        _split_as_gemma(tokenizer)
    special = ["<unk>", "<s>", "</s>"]
    byte_tokens = [f"<0x{b:02X}>" for b in range(256)]
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=600, special_tokens=special + byte_tokens, show_progress=False, limit_alphabet=80
    )
    text = TRAINING_TEXT.decode()
    tokenizer.train_from_iterator([text] if space else text.splitlines(keepends=True), trainer)  # a piece is one word
    description = json.loads(tokenizer.to_str())
    description["added_tokens"] = [token for token in description["added_tokens"] if token["content"] in special]
    return json.dumps(description)


def _split_as_gemma(tokenizer: tokenizers.Tokenizer) -> None:
    decoders, normalizers = tokenizers.decoders, tokenizers.normalizers
    tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])


def tensors(vocabulary: int, seed: int = 1) -> dict[str, np.ndarray]:
    """Return float32 tensors of a Llama network, by their names in safetensors."""
    random = np.random.default_rng(seed)
    keys = KV_HEADS * HEAD_SIZE
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocabulary, WIDTH),
        "model.norm.weight": (WIDTH,),
        "lm_head.weight": (vocabulary, WIDTH),
    }
    for i in range(LAYERS):
        layer = f"model.layers.{i}."
        shapes |= {
            layer + "input_layernorm.weight": (WIDTH,),
            layer + "post_attention_layernorm.weight": (WIDTH,),
            layer + "self_attn.q_proj.weight": (HEADS * HEAD_SIZE, WIDTH),
            layer + "self_attn.k_proj.weight": (keys, WIDTH),
            layer + "self_attn.v_proj.weight": (keys, WIDTH),
            layer + "self_attn.o_proj.weight": (WIDTH, HEADS * HEAD_SIZE),
            layer + "mlp.gate_proj.weight": (FEED_FORWARD, WIDTH),
            layer + "mlp.up_proj.weight": (FEED_FORWARD, WIDTH),
            layer + "mlp.down_proj.weight": (WIDTH, FEED_FORWARD),
        }
    return {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def write_folder(
    path: Path, tokenizer: tokenizers.Tokenizer, values: dict[str, np.ndarray] | None = None, **config: Any
) -> Path:
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(CONFIG | config))
    (path / "tokenizer.json").write_text(tokenizer.to_str())
    save_file(values or tensors(tokenizer.get_vocab_size()), path / "model.safetensors")
    return path


def write_endless(folder: Path) -> Path:
    """Write a model whose texts never end, with a vocabulary of all bytes."""
    tokenizer = byte_level()
    return write_folder(folder, tokenizer, vocab_size=tokenizer.get_vocab_size(), eos_token_id=None)


_GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "model.layers": "blk",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def _interleaved(rows: np.ndarray, heads: int) -> np.ndarray:
    """Return rows in the order of llama.cpp, with rotary pairs next to each other."""
    return rows.reshape(heads, 2, -1, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)


def write_gguf(
    path: Path,
    tokenizer: tokenizers.Tokenizer,
    values: dict[str, np.ndarray] | None = None,
    kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    architecture: str = "llama",
    **fields: int | str,
) -> Path:
    """Write the model that `write_folder` writes as a GGUF file.

    Args:
        path: new file
        tokenizer: tokenizer of the model
        values: tensors by name, None for those of `write_folder`
        kind: type of the matrices
    """
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name("tiny")
    writer.add_block_count(LAYERS)
    writer.add_context_length(512)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_bos_token_id(1)
    for key, value in fields.items():
        add = writer.add_string if isinstance(value, str) else writer.add_uint32
        add(key.replace("__", "."), value)
    add_vocabulary(writer, tokenizer)
    for name, array in (values or tensors(tokenizer.get_vocab_size())).items():
        heads = {"q": HEADS, "k": KV_HEADS}.get(name.split("_proj")[0][-1] if "self_attn" in name else "")
        stored = _interleaved(array, heads) if heads and architecture == "llama" else array
        stored_name = name
        for theirs, ours in _GGUF_NAMES.items():
            stored_name = stored_name.replace(theirs, ours)
        as_kind = kind if array.ndim == 2 and array.shape[1] % 32 == 0 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(stored_name, gguf.quants.quantize(stored, as_kind), raw_dtype=as_kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_vocabulary(writer: gguf.GGUFWriter, tokenizer: tokenizers.Tokenizer) -> None:
    """Add a tokenizer's metadata as llama.cpp's converters write it."""
    description = json.loads(tokenizer.to_str())
    vocabulary = description["model"]["vocab"]
    special = {token["content"] for token in description["added_tokens"]}
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    merges = description["model"]["merges"]
    if description["model"]["byte_fallback"]:
        ranks = {a + b: i for i, (a, b) in reversed(list(enumerate(merges)))}
        writer.add_tokenizer_model("llama")
        writer.add_token_scores([-float(ranks.get(token, len(ranks) + 1)) for token in tokens])
        kinds = [2 if t == "<unk>" else 3 if t in special else 6 if t.startswith("<0x") else 1 for t in tokens]
        writer.add_unk_token_id(0)
    else:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_merges([" ".join(merge) for merge in merges])
        kinds = [3 if t in special else 1 for t in tokens]
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
