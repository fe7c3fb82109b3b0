"""What tells one run over a checkpoint from another."""

import hashlib
from pathlib import Path
from typing import Any

import torch

__all__ = ["digest", "stamps"]


def stamps(folder: Path) -> list[list[Any]]:
    """What changes when a file in a folder does."""
    files = sorted(path for path in folder.iterdir() if path.is_file())
    return [[str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns] for path in files]


def digest(tokens: torch.Tensor | None) -> str | None:
    """SHA-256 of tokens."""
    return None if tokens is None else hashlib.sha256(tokens.contiguous().numpy().tobytes()).hexdigest()
