"""The tokenizer of a GGUF file as transformers has it."""

import json
from typing import Any

from squeeze.integrations.gguf.model import GgufModel
from squeeze.lm import vocabulary

__all__ = ["tokenizer_files"]


def tokenizer_files(model: GgufModel) -> dict[str, dict[str, Any]]:
    """tokenizer.json and tokenizer_config.json."""
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
