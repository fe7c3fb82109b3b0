"""GGUF files as transformers has models: weights by name, config.json and the tokenizer's files."""

from squeeze.integrations.gguf.config import description
from squeeze.integrations.gguf.loading import is_gguf, load, load_tokenizer, tokenizer_files
from squeeze.integrations.gguf.model import GgufModel

__all__ = ["GgufModel", "description", "is_gguf", "load", "load_tokenizer", "tokenizer_files"]
