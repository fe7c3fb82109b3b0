"""Converted models on disk, so that each is converted once: <identity>.safetensors, and for each source that
was converted a file named by its fingerprint, which holds the identity and the digest of its tokenizer: sources of the
same weights and tokens share a model, and need not share what cuts a text into tokens.

A cache that cannot be written or read is no error: everything works without it, more slowly.
"""

import hashlib
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np

from squeeze.lm import mapped as tensorfile
from squeeze.lm.mapped import MappedFile
from squeeze.system.cache import replace, root

_IDENTITY = re.compile(r"[0-9a-f]{8,64}")
_LAYOUT = "2"  # of the cached file: packing, names of tensors


def folder() -> Path:
    return root() / "models"


def get(identity: str) -> MappedFile | None:
    """The file of the model whose identity begins so, if it is there and undamaged."""
    if not _IDENTITY.fullmatch(identity):
        return None
    try:
        path = next(folder().glob(f"{identity}*.safetensors"), None)
        if path is None:
            return None
        file = MappedFile(path)
        expected = {"identity": path.stem, "layout": _LAYOUT}
        return file if expected.items() <= file.metadata.items() and file.is_sound() else None
    except (OSError, RuntimeError, ValueError, LookupError, TypeError, AttributeError):
        return None


def put(identity: str, tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str]) -> None:
    with suppress(OSError, RuntimeError):
        tensorfile.write(folder() / f"{identity}.safetensors", tensors, {**metadata, "layout": _LAYOUT})


def known_as(fingerprint: str) -> tuple[str, str] | None:
    """The identity that a source with this fingerprint was converted to, and its tokenizer's digest, if known."""
    with suppress(OSError, RuntimeError, ValueError):
        identity, tokenizer = (folder() / "sources" / fingerprint).read_text("ascii").split()
        return identity, tokenizer
    return None


def remember(fingerprint: str, identity: str, tokenizer: str) -> None:
    text = f"{identity} {digest(tokenizer)}"
    with suppress(OSError, RuntimeError):
        replace(folder() / "sources" / fingerprint, [np.frombuffer(text.encode(), np.uint8)])


def digest(tokenizer: str) -> str:
    """Of the text of a tokenizer.json."""
    return hashlib.sha256(tokenizer.encode()).hexdigest()
