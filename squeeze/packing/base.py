"""The checkpoint that another is stored as the difference from."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from squeeze.checkpoint import safetensors as tensorfile
from squeeze.checkpoint.safetensors import Bytes, Tensor, TensorFile, named
from squeeze.errors import FormatError, SqueezeError
from squeeze.packing import container, folder
from squeeze.packing.container import Record


@dataclass(frozen=True)
class Base:
    """All tensors of a file or folder by name, and the sorted SHA-256 of its safetensors files."""

    path: Path
    tensors: dict[str, tuple[TensorFile, Tensor]]
    hashes: list[str]

    @classmethod
    def open(cls, path: Path | str) -> "Base":
        """Reads the whole base once, for its hash. Raises FormatError where it is no unpacked checkpoint."""
        path = Path(path)
        tensors: dict[str, tuple[TensorFile, Tensor]] = {}
        hashes = []
        for name in folder.files_to_take(path):
            place = folder.place(path, name)
            if place.suffix != folder.SUFFIX:
                continue
            file = tensorfile.read(place)
            if container.is_packed(file):
                raise FormatError(f"the base {place} is packed; unpack it first")
            tensors |= {tensor.name: (file, tensor) for tensor in file.tensors}
            with place.open("rb") as reading:
                hashes.append(hashlib.file_digest(reading, "sha256").hexdigest())
        return cls(path, tensors, sorted(hashes))

    def tensor(self, like: Tensor) -> Bytes | None:
        """The bytes of the base's tensor of the same name, dtype and shape, or None."""
        return self._bytes(like.name, like.dtype, like.shape)

    def for_record(self, name: str, record: Record) -> Bytes:
        """The same for a coded difference, where it must exist."""
        data = self._bytes(name, record.dtype, record.shape)
        if data is None:
            raise SqueezeError(f"the base {self.path} has no {named(name)} of the right kind")
        return data

    def check(self, hashes: tuple[str, ...]) -> None:
        """Raises SqueezeError where this is not the base with these hashes."""
        if tuple(self.hashes) != hashes:
            raise SqueezeError(
                f"{self.path} is not the base that this checkpoint was packed with: the SHA-256 of its files differ"
            )

    def _bytes(self, name: str, dtype: str, shape: tuple[int, ...]) -> Bytes | None:
        file, tensor = self.tensors.get(name, (None, None))
        if file is None or tensor is None or (tensor.dtype, tensor.shape) != (dtype, shape):
            return None
        with file.path.open("rb") as reading:
            return tensorfile.read_tensor(reading, tensor)
