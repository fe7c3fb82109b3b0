"""GGUF files as models that run: dense, with the numbers that their blocks stand for."""

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
from squeeze.integrations.gguf.tokenizer import tokenizer_files
from squeeze.lm import sources
from squeeze.system.storage import local_path

__all__ = ["is_gguf", "load", "load_tokenizer"]


def is_gguf(path: Path | str) -> bool:
    """Whether a path is that of a file that begins as GGUF files do."""
    path = local_path(path)
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(4) == b"GGUF"


def load(path: Path | str, dtype: torch.dtype | None = None) -> nn.Module:
    """The causal language model of a GGUF file by transformers. dtype: to compute in; None for bf16. All weights are in
    memory twice for a moment.

    Raises ModelError for a file that is damaged, or holds a network that is not read.
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
    """The tokenizer of a GGUF file by transformers. Raises ModelError where it is damaged, or none that is read."""
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
    """Raises FormatError where the metadata describes more weights than the file holds."""
    tied = set(getattr(empty, "all_tied_weights_keys", None) or {})
    claimed = sum(value.numel() for name, value in empty.named_parameters() if name not in tied)
    if claimed > stored:
        raise FormatError(f"{path}: describes a model of {claimed} weights, and holds {stored}")
