"""Adding the files of a model to a store: each tensor becomes an object, and so does what is around the tensors."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np

from squeeze.checkpoint.safetensors import Bytes, Tensor, TensorFile
from squeeze.errors import FormatError, SqueezeError
from squeeze.packing.base import is_packed
from squeeze.packing.sources import Source, source_of
from squeeze.packing.store.models import Entry, File, Model
from squeeze.packing.store.objects import Objects
from squeeze.packing.tensors.content import InFile, whole
from squeeze.system.binary import Positional
from squeeze.system.limits import Limits

__all__ = ["Adding", "Form", "by_form", "source_in"]

Form = tuple[str, str, tuple[int, ...]]  # name, dtype and shape of a tensor


def by_form(model: Model) -> dict[Form, str]:
    """Return the keys of a model's tensors by name, dtype and shape."""
    entries = [entry for file in model.files.values() for entry in file.tensors]
    return {(entry.name, entry.dtype, entry.shape): entry.key for entry in entries}


def source_in(path: Path, label: str) -> Source | None:
    """Return the tensors of a file, or None if it is copied. Raises FormatError with the file's name."""
    try:
        if is_packed(path, Limits()):
            raise FormatError("is packed already; unpack it first")
        return source_of(path, is_single=not label)
    except FormatError as error:
        raise type(error)(f"{path}: {error}") from None


class Adding:
    """Adding the files of one model. written: bytes that the store grew by."""

    def __init__(
        self,
        objects: Objects,
        level: str,
        bases: dict[Form, str],
        threads: int,
        progress: Callable[[int], None],
    ):
        self._objects, self._level, self._bases = objects, level, bases
        self._threads, self._progress = threads, progress
        self.written = 0

    def file(self, path: Path, label: str) -> File:
        """Add a file; return its objects."""
        source = source_in(path, label)
        before = path.stat()
        with path.open("rb") as opened:
            reading, digest = Positional(opened), hashlib.sha256()
            file = source.file if source else TensorFile(path, before.st_size, b"", None, ())
            header = np.frombuffer(file.header, np.uint8) if source else _all_of(reading, file.size)
            entries, end, used = [], 0, 0
            for tensor in file.tensors:
                gap = tensor.begin - end
                digest.update(header[used : used + gap].tobytes())
                data = whole(InFile(reading, tensor.begin, tensor.size))
                digest.update(data.data)
                key = self._keep(tensor, data, self._bases.get((tensor.name, tensor.dtype, tensor.shape)))
                entries.append(Entry(tensor.name, tensor.dtype, tensor.shape, tensor.begin, key))
                used, end = used + gap, tensor.end
            digest.update(header[used:].tobytes())
            key = self._keep(Tensor("", "U8", (header.size,), 0, header.size), header, None)
        after = path.stat()
        if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
            raise SqueezeError(f"{path} changed while it was read: add it again when nothing writes to it")
        is_safetensors = source is not None and not source.is_torch
        return File(file.size, digest.hexdigest(), key, tuple(entries), is_safetensors)

    def _keep(self, tensor: Tensor, data: Bytes, base: str | None) -> str:
        key, written = self._objects.add(tensor, data, self._level, base, self._threads)
        self.written += written
        self._progress(data.size)
        return key


def _all_of(reading: Positional, size: int) -> Bytes:
    """Return all bytes of a file that is copied."""
    return whole(InFile(reading, 0, size))
