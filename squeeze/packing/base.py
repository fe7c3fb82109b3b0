"""The checkpoint that another is stored as the difference from, packed or not.

A packed one may be a difference in turn. What that one differs from is looked for beside it, among packed checkpoints,
by the hashes that it names. So the checkpoints of a training run, each packed as its difference from the one before,
are a chain in one folder.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from squeeze.checkpoint import safetensors as tensorfile
from squeeze.checkpoint.safetensors import Bytes, Tensor, TensorFile, named
from squeeze.errors import DamagedError, FormatError, SqueezeError, escaped
from squeeze.packing import container, folder
from squeeze.packing.container import PackedFile, Record
from squeeze.system.limits import Limits

MAX_CHAIN = 256  # differences of differences


@dataclass(frozen=True)
class Base:
    """All tensors of a file or folder by name, the sorted SHA-256 of its safetensors files, unpacked, and what it is a
    difference from."""

    path: Path
    tensors: dict[str, tuple[TensorFile, Tensor, Record | None]]  # a record where the file is packed
    hashes: list[str]
    base: "Base | None" = None

    @classmethod
    def open(cls, path: Path | str, limits: Limits | None = None, depth: int = 0) -> "Base":
        """Reads the whole base once, for its hash, unless it is packed and has that. Raises FormatError where it is no
        checkpoint, SqueezeError where it is a difference from one that is not found beside it, and LimitError."""
        path, limits = Path(path), limits or Limits()
        tensors: dict[str, tuple[TensorFile, Tensor, Record | None]] = {}
        hashes, wanted = [], set()
        for name in folder.files_to_take(path):
            place = folder.place(path, name)
            if place.suffix != folder.SUFFIX:
                continue
            file = tensorfile.read(place, limits)
            if container.is_packed(file):
                packed = container.describe(file, limits)
                container.check_limits(packed, limits)
                records = packed.description.records
                tensors |= {t.name: (file, t, record) for t, record in zip(file.tensors, records, strict=True)}
                hashes.append(packed.description.sha256)
                wanted.add(packed.description.base)
            else:
                tensors |= {tensor.name: (file, tensor, None) for tensor in file.tensors}
                with place.open("rb") as reading:
                    hashes.append(hashlib.file_digest(reading, "sha256").hexdigest())
        base = None
        for needed in filter(None, wanted):
            if depth == MAX_CHAIN:
                raise FormatError(f"{path}: a chain of more than {MAX_CHAIN} differences")
            base = cls.beside(path, needed, limits, depth + 1)
            if base is None:
                raise SqueezeError(
                    f"{escaped(str(path))} is stored as a difference, and no packed checkpoint beside it is its base: "
                    "put it there, or unpack this one first"
                )
        return cls(path, tensors, sorted(hashes), base)

    @classmethod
    def beside(cls, path: Path, hashes: tuple[str, ...], limits: Limits, depth: int = 0) -> "Base | None":
        """The packed checkpoint in the folder that holds `path` whose files, unpacked, have these hashes."""
        place = packed_beside(path, hashes, limits)
        return cls.open(place, limits, depth) if place else None

    @classmethod
    def of(cls, source: Path, limits: Limits) -> "Base | None":
        """What a packed file or folder is a difference from, if it is one, and that is found beside it."""
        wanted = {packed.description.base for packed in packed_files(source, limits)} - {()}
        return cls.beside(source, wanted.pop(), limits) if wanted else None

    def tensor(self, like: Tensor) -> Bytes | None:
        """The bytes of the base's tensor of the same name, dtype and shape, or None. Raises DamagedError."""
        return self._bytes(like.name, like.dtype, like.shape)

    def for_record(self, name: str, record: Record) -> Bytes:
        """The same for a coded difference, where it must exist."""
        data = self._bytes(name, record.dtype, record.shape)
        if data is None:
            raise SqueezeError(f"the base {self.path} has no {named(name)} of the right kind")
        return data

    @property
    def length(self) -> int:
        """Of the chain of differences that it ends: 0 where it is none."""
        return 1 + self.base.length if self.base else 0

    def check(self, hashes: tuple[str, ...]) -> None:
        """Raises SqueezeError where this is not the base with these hashes."""
        if tuple(self.hashes) != hashes:
            raise SqueezeError(
                f"{self.path} is not the base that this checkpoint was packed with: the SHA-256 of its files differ"
            )

    def _bytes(self, name: str, dtype: str, shape: tuple[int, ...]) -> Bytes | None:
        file, tensor, record = self.tensors.get(name, (None, None, None))
        kind = record or tensor
        if file is None or tensor is None or kind is None or (kind.dtype, kind.shape) != (dtype, shape):
            return None
        is_delta = record is not None and record.coding.startswith(container.DELTA)
        other = self.base.for_record(name, record) if record and self.base and is_delta else None
        with file.path.open("rb") as reading:
            stored = tensorfile.read_tensor(reading, tensor)  # after what it differs from: a chain holds two at a time
        if record is None:
            return stored
        try:
            data = container.decode_tensor(stored, record, other, 1)
            container.check_tensor(data, record, name)
        except DamagedError as error:
            raise DamagedError(f"the base {escaped(str(file.path))}: {named(name)}: {error}") from None
        return data


def packed_beside(path: Path, hashes: tuple[str, ...], limits: Limits) -> Path | None:
    """The packed checkpoint in the folder that holds `path` whose files, unpacked, have these hashes."""
    place = path.resolve()
    for other in sorted(place.parent.iterdir()):
        if other == place or (other.is_file() and other.suffix != folder.SUFFIX):
            continue
        if tuple(sorted(packed.description.sha256 for packed in packed_files(other, limits))) == hashes:
            return path.parent / other.name
    return None


def packed_files(path: Path, limits: Limits) -> Iterator[PackedFile]:
    """The files of a packed checkpoint that can be read within limits; nothing where it is none."""
    names = [""]
    if path.is_dir():
        if not (path / folder.MANIFEST).is_file():
            return
        names = [name for name in folder.files_to_take(path) if name.endswith(folder.SUFFIX)]
    for name in names:
        try:
            yield container.read(folder.place(path, name), limits)
        except (OSError, SqueezeError):
            continue
