"""Loading of a GGUF file as a dense transformers model, with dequantised blocks, and of its tokenizer."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import nn

from squeeze.checkpoint.pretrained import SAFE, empty_model, explained, quiet
from squeeze.errors import FormatError
from squeeze.integrations.gguf.config import description
from squeeze.integrations.gguf.model import GgufModel
from squeeze.lm import sources, vocabulary
from squeeze.system.storage import local_path

__all__ = ["is_gguf", "load", "load_tokenizer", "tokenizer_files"]


def tokenizer_files(model: GgufModel) -> dict[str, dict[str, Any]]:
    """Return the contents of tokenizer.json and tokenizer_config.json."""
    fields, document = model.fields, json.loads(model.source.tokenizer)
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
        "model_max_length": model.whole("context_length"),
    }
    named = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
    for their_name, our_name in named.items():
        number = fields.get(f"tokenizer.ggml.{their_name}_token_id")
        if number is not None and 0 <= int(number) < len(tokens):
            settings[our_name] = tokens[int(number)]
    if isinstance(template := fields.get("tokenizer.chat_template"), str):
        settings["chat_template"] = template
    if starts and "bos_token" in settings:
        document["post_processor"] = _starts_with(settings["bos_token"], tokens.index(settings["bos_token"]))
    order = ("normalizer", "pre_tokenizer", "post_processor", "decoder", "added_tokens", "model")
    ordered = {"version": "1.0", "truncation": None, "padding": None} | {key: document.get(key) for key in order}
    return {"tokenizer.json": ordered, "tokenizer_config.json": settings}


def _like_sentence_piece(document: dict[str, Any], prefix: bool) -> None:
    """Set normalizer and decoder as SentencePiece has them: spaces as U+2581, and one before the text if `prefix`."""
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


def is_gguf(path: Path | str) -> bool:
    """Return whether a path is a file with the magic bytes of GGUF."""
    path = local_path(path)
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(4) == b"GGUF"


def load(path: Path | str, dtype: torch.dtype | None = None) -> nn.Module:
    """Load the causal language model of a GGUF file. All weights are in memory twice for a moment.

    `dtype` is the model's, None for bf16. Raises ModelError if the file is damaged or holds another architecture.
    """
    path, kind = local_path(path), dtype or torch.bfloat16
    model = GgufModel.open(path)
    with sources.damage_as_model_error(path):
        described = description(model)
    quiet()
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    with explained(path):
        config = CONFIG_MAPPING[model.kind].from_dict(described)
        empty = empty_model(config)
    views = model.views()
    _check_size(path, empty, sum(prod(view.shape) for view in views.values()))
    tensors = {name: view.read(None).to(kind) for name, view in views.items()}
    with explained(path):
        loaded: Any = type(empty).from_pretrained(  # type: ignore[attr-defined]
            None, config=config, state_dict=tensors, dtype=kind, use_safetensors=True, output_loading_info=True, **SAFE
        )
    network: nn.Module = loaded[0]
    if missing := loaded[1]["missing_keys"]:
        raise FormatError(f"{path}: the file has no tensor for {min(missing)}")
    if unexpected := loaded[1]["unexpected_keys"]:
        raise FormatError(f"{path}: {type(network).__name__} has no place for the tensor {min(unexpected)}")
    return network.eval()


def load_tokenizer(path: Path | str) -> Any:
    """Load the tokenizer of a GGUF file; raises ModelError if it is damaged or of an unknown kind."""
    path = local_path(path)
    model = GgufModel.open(path)
    with sources.damage_as_model_error(path):
        files = tokenizer_files(model)
    settings = {name: value for name, value in files["tokenizer_config.json"].items() if name != "tokenizer_class"}
    quiet()
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    with explained(path):
        library = Tokenizer.from_str(json.dumps(files["tokenizer.json"]))
        return PreTrainedTokenizerFast(tokenizer_object=library, name_or_path=str(path), **settings)


def _check_size(path: Path, empty: nn.Module, stored: int) -> None:
    """Raise FormatError if the metadata describes more weights than the file holds."""
    tied = set(getattr(empty, "all_tied_weights_keys", None) or {})
    claimed = sum(value.numel() for name, value in empty.named_parameters() if name not in tied)
    if claimed > stored:
        raise FormatError(f"{path}: describes a model of {claimed} weights, and holds {stored}")
