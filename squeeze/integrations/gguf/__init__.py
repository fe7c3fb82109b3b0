"""GGUF files, both ways: read as a transformers model or folder, and written from a checkpoint."""

from squeeze.integrations.gguf.config import description
from squeeze.integrations.gguf.loading import is_gguf, load, load_tokenizer, tokenizer_files
from squeeze.integrations.gguf.model import GgufModel

__all__ = ["GgufModel", "description", "is_gguf", "load", "load_tokenizer", "tokenizer_files"]
