"""Packed files of torch's in transformers, which reads their names and takes them for pickles.

What `squeeze pack` coded is restored to a scratch file, and transformers reads that, as it reads what was packed.
"""

from __future__ import annotations

from functools import wraps
from os import PathLike, fspath
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import modeling_utils

from squeeze.checkpoint import safetensors as tensorfile, torch_file
from squeeze.errors import FormatError, LimitError, SqueezeError, escaped
from squeeze.packing import container
from squeeze.packing.unpack import unpack

__all__ = ["register"]


def register() -> None:
    """Let transformers read packed files of torch's. All others are left to it, as before."""
    theirs = modeling_utils.load_state_dict

    @wraps(theirs)
    def load_state_dict(checkpoint_file: str | PathLike[str], *args: Any, **options: Any) -> dict[str, torch.Tensor]:
        path = Path(fspath(checkpoint_file))
        if path.suffix not in torch_file.SUFFIXES or not _is_packed(path):
            return theirs(checkpoint_file, *args, **options)
        with TemporaryDirectory(
            prefix="squeeze-", ignore_cleanup_errors=True
        ) as scratch:  # Windows keeps what is mapped
            restored = Path(scratch, path.name)
            unpack(path, restored, threads=torch.get_num_threads())
            return theirs(str(restored), *args, **options)

    modeling_utils.load_state_dict = load_state_dict


def _is_packed(path: Path) -> bool:
    """Raises SqueezeError for a difference, of which a base is to be found, and the file's place in its folder told."""
    try:
        file = tensorfile.read(path)
    except (FormatError, LimitError):
        return False
    if not container.is_packed(file):
        return False
    if container.describe(file).description.base:
        raise SqueezeError(f"{escaped(str(path))}: is packed as a difference: use `squeeze unpack` first")
    return True
