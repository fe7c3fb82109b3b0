"""A GGUF file as a model's folder: bf16 safetensors, config.json and the tokenizer's files, for transformers.

The reading is lm/'s, whose names for tensors are turned into those of Hugging Face, a tensor in memory at a time.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from squeeze.checkpoint.checkpoint import Parts
from squeeze.errors import ModelError
from squeeze.lm import models, rotary, sources, vocabulary
from squeeze.lm.config import folder_rotary, unsupported
from squeeze.lm.gguffile import GgufFile
from squeeze.packing import folder
from squeeze.system.work import scratch_folder

__all__ = ["import_gguf"]

_CLASSES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
_LLAMA3 = ((8.0, 1.0, 4.0, 8192.0), (32.0, 1.0, 4.0, 8192.0))  # factor, low, high, context: Llama 3.1 and 3.2
_CLOSE = 1e-5  # between rotary angles: files have their divisors in float32


def named(source: Path) -> Path:
    """The file that a user names: a path, or the name of the bundled model. Raises ModelError where that is not
    installed."""
    if str(source) != models.BUNDLED or source.exists():
        return source
    path = models.bundled_path()
    if path is None:
        raise ModelError(f"the language model {models.BUNDLED} is not installed: {models.HELP}")
    return path


def import_gguf(
    source: Path | str, target: Path | str, *, overwrite: bool = False, progress: Callable[[int], None] | None = None
) -> int:
    """Write the model in the GGUF file `source` as the folder `target`; returns the bytes of its weights.

    Raises ModelError for what is not a GGUF file of the Llama family, SqueezeError where `target` is in the way.
    """
    source, target = Path(source), Path(target)
    if source.is_dir():
        raise ModelError(f"{source}: is a folder; import takes a GGUF file")
    if target.is_file():
        raise ModelError(f"{target}: is a file; import writes a folder")
    if not overwrite and target.is_dir() and any(target.iterdir()):
        raise ModelError(f"{target} already exists; use -f to overwrite")
    with sources.damage_told(source):
        model = sources.open_source(source)
        sources.check_whole(model)
        fields = GgufFile(source).fields
        description = _config(model, fields)
        tokenizer = _tokenizer(model.name, fields)
    with scratch_folder(target) as work:
        written = work / folder.CONTENT
        written.mkdir()
        size = _write_weights(source, model, work, written, progress or (lambda count: None))
        for name, content in {"config.json": description, **tokenizer}.items():
            (written / name).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", "utf-8")
        folder.move_into_place(written, target, overwrite)
    return size


def _write_weights(
    source: Path, model: sources.Source, work: Path, target: Path, progress: Callable[[int], None]
) -> int:
    parts = Parts(work)
    names = {_name(key): key for key in model.tensors}
    for name, key in names.items():
        tensor = model.tensors[key]
        with sources.damage_told(source):
            values = tensor.rows(0, tensor.shape[0])
        if values.shape != tensor.shape or not np.isfinite(values).all():
            raise ModelError(f"{model.name}: the model is damaged: tensor {key} is cut off or not finite")
        weight = torch.from_numpy(_straight(model, key, values)).to(torch.bfloat16)
        parts.put(name, {name: weight})
        progress(weight.numel())
    return parts.join(names, target)


def _name(key: str) -> str:
    """Hugging Face's name of a tensor."""
    layer, _, leaf = key.partition(".")
    if leaf:
        return f"model.layers.{layer}.{sources.INNER[leaf][0]}"
    return sources.OUTER[key][0]


def _straight(model: sources.Source, key: str, values: np.ndarray) -> np.ndarray:
    """Rows of queries and keys in the order in which rotary pairs lie half a head apart."""
    leaf = key.partition(".")[2].removesuffix("_bias")
    if not model.interleaved or leaf not in ("query", "key"):
        return values
    heads = model.config.heads if leaf == "query" else model.config.kv_heads
    pairs = values.reshape(heads, -1, 2, *values.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(values.shape)


def _config(model: sources.Source, fields: dict[str, Any]) -> dict[str, Any]:
    config, architecture = model.config, model.config.architecture
    description: dict[str, Any] = {
        "architectures": [_CLASSES[architecture]],
        "model_type": architecture,
        "hidden_size": config.width,
        "intermediate_size": config.feed_forward,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_size,
        "hidden_act": "silu",
        "max_position_embeddings": int(fields[f"{architecture}.context_length"]),
        "rms_norm_eps": config.epsilon if config.epsilon == 0 else float(f"{config.epsilon:.6g}"),
        "vocab_size": config.vocabulary,
        "tie_word_embeddings": "head" not in model.tensors,
        "torch_dtype": "bfloat16",
        "rope_theta": float(fields.get(f"{architecture}.rope.freq_base", 10000.0)),
        "rope_scaling": _rope_scaling(model, fields),
    }
    if architecture == "llama":
        description["attention_bias"] = "0.query_bias" in model.tensors
    if architecture == "mistral":
        description["sliding_window"] = fields.get("mistral.attention.sliding_window")
    for kind in ("bos", "eos", "pad"):
        token = fields.get(f"tokenizer.ggml.{'padding' if kind == 'pad' else kind}_token_id")
        if token is not None:
            description[f"{kind}_token_id"] = int(token)
    _check_rotary(model, description)
    return description


def _check_rotary(model: sources.Source, description: dict[str, Any]) -> None:
    """Raises ModelError where config.json describes other rotary angles than the file."""
    context = description["max_position_embeddings"]
    angles, factor = folder_rotary(model.name, description, model.config.head_size, context)
    wanted = (*model.config.frequencies, model.config.attention_factor)
    if not np.allclose((*angles, factor), wanted, rtol=_CLOSE, atol=0):
        raise unsupported(model.name, "a rotary scaling that config.json has no words for")


def _rope_scaling(model: sources.Source, fields: dict[str, Any]) -> dict[str, Any] | None:
    config, architecture = model.config, model.config.architecture

    def get(key: str) -> Any:
        return fields.get(f"{architecture}.rope.{key}")

    base = float(get("freq_base") or 10000.0)
    if config.frequencies == rotary.plain(base, config.head_size) and config.attention_factor == 1:
        return None
    factor = float(get("scaling.factor") or get("scale_linear") or 1.0)
    kind = get("scaling.type") or ("linear" if get("scale_linear") else "none")
    if factor != 1 and kind == "linear":
        return {"rope_type": "linear", "factor": factor}
    if factor != 1 and kind == "yarn":
        trained = get("scaling.original_context_length") or fields[f"{architecture}.context_length"]
        return {
            **{"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": int(trained)},
            "attention_factor": config.attention_factor,
            "beta_fast": float(get("scaling.yarn_beta_fast") or rotary.BETA_FAST),
            "beta_slow": float(get("scaling.yarn_beta_slow") or rotary.BETA_SLOW),
        }
    for factor, low, high, context in _LLAMA3:
        angles = rotary.llama3(base, config.head_size, factor, low, high, context)
        if np.allclose(angles, config.frequencies, rtol=_CLOSE, atol=0):
            return {
                **{"rope_type": "llama3", "factor": factor, "low_freq_factor": low, "high_freq_factor": high},
                "original_max_position_embeddings": int(context),
            }
    raise unsupported(model.name, "a rotary embedding with divisors of its own")


def _tokenizer(name: str, fields: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """tokenizer.json and tokenizer_config.json."""
    document = json.loads(vocabulary.from_gguf(name, fields))
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    for i, token in enumerate(tokens):
        document["model"]["vocab"].setdefault(token, i)
    for added in document["added_tokens"]:
        added |= {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    sentence_piece = fields["tokenizer.ggml.model"] == "llama"
    starts = bool(fields.get("tokenizer.ggml.add_bos_token", sentence_piece))
    if sentence_piece:
        _like_sentence_piece(document, bool(fields.get("tokenizer.ggml.add_space_prefix", True)))
    else:
        document["decoder"] = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": int(fields[f"{fields['general.architecture']}.context_length"]),
    }
    named = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
    for theirs, ours in named.items():
        number = fields.get(f"tokenizer.ggml.{theirs}_token_id")
        if number is not None and 0 <= int(number) < len(tokens):
            settings[ours] = tokens[int(number)]
    if isinstance(template := fields.get("tokenizer.chat_template"), str):
        settings["chat_template"] = template
    if starts and "bos_token" in settings:
        document["post_processor"] = _starts_with(settings["bos_token"], tokens.index(settings["bos_token"]))
    order = ("normalizer", "pre_tokenizer", "post_processor", "decoder", "added_tokens", "model")
    ordered = {"version": "1.0", "truncation": None, "padding": None} | {key: document.get(key) for key in order}
    return {"tokenizer.json": ordered, "tokenizer_config.json": settings}


def _like_sentence_piece(document: dict[str, Any], prefix: bool) -> None:
    """A space before the text where the model was trained so, spaces as U+2581, and the way back."""
    replace = document["normalizer"]
    steps: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": vocabulary.SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if prefix:
        prepend = {"type": "Prepend", "prepend": vocabulary.SPACE}
        document["normalizer"] = {"type": "Sequence", "normalizers": [prepend, replace]}
        steps.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    document["decoder"] = {"type": "Sequence", "decoders": steps}


def _starts_with(token: str, number: int) -> dict[str, Any]:
    start = {"SpecialToken": {"id": token, "type_id": 0}}
    a, b = ({"Sequence": {"id": name, "type_id": i}} for i, name in enumerate("AB"))
    special = {token: {"id": token, "ids": [number], "tokens": [token]}}
    return {"type": "TemplateProcessing", "single": [start, a], "pair": [start, a, start, b], "special_tokens": special}
