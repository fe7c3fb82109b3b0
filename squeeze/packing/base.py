"""The checkpoint that another is stored as the difference from, packed or not.

A packed one may be a difference in turn. What that one differs from is looked for beside it, among packed checkpoints,
by the hashes that it names. So the checkpoints of a training run, each packed as its difference from the one before,
are a chain in one folder.
"""

from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from squeeze.checkpoint import safetensors as tensorfile
from squeeze.checkpoint.safetensors import Bytes, Tensor, TensorFile, named
from squeeze.errors import DamagedError, FormatError, LimitError, SqueezeError, escaped
from squeeze.packing import codings, container, folder
from squeeze.packing.at_hand import to_reread
from squeeze.packing.chain import Hashes, no_base_beside, packed_beside, packed_files
from squeeze.packing.container import PackedFile
from squeeze.packing.record import Record
from squeeze.packing.sources import CODED, source_of
from squeeze.packing.tensors.content import Content
from squeeze.system.binary import Positional
from squeeze.system.limits import Limits
from squeeze.system.storage import path_of

MAX_CHAIN = 256  # differences of differences


@dataclass(frozen=True)
class Base:
    """All tensors of a file or folder, by the name of a file of torch's, or none, and their own; the hashes of its
    files of safetensors, and of torch; and what it is a difference from."""

    path: Path
    tensors: dict[tuple[str, str], tuple[TensorFile, Tensor, Record | None]]  # a record where the file is packed
    weights: Hashes
    states: Hashes
    base: "Base | None" = None

    @classmethod
    def open(cls, path: Path | str, limits: Limits | None = None, depth: int = 0) -> "Base":
        """Reads the whole base once, for its hash, unless it is packed and has that. Raises FormatError where it is no
        checkpoint, SqueezeError where it is a difference from one that is not found beside it, and LimitError."""
        path, limits = path_of(path), limits or Limits()
        tensors: dict[tuple[str, str], tuple[TensorFile, Tensor, Record | None]] = {}
        hashes: dict[bool, list[str]] = {False: [], True: []}
        wanted: set[Hashes] = set()
        for name in folder.files_to_take(path):
            try:
                found = file_of(folder.place(path, name), name, limits)
            except FormatError as error:
                raise type(error)(f"{escaped(str(folder.place(path, name)))}: {error}") from None
            if found is None:
                continue
            file, packed, is_torch = found
            scope = name if is_torch else ""
            if packed:
                records = packed.description.records
                tensors |= {(scope, t.name): (file, t, r) for t, r in zip(file.tensors, records, strict=True)}
                hashes[is_torch].append(packed.description.sha256)
                wanted.add(packed.description.base)
            else:
                tensors |= {(scope, tensor.name): (file, tensor, None) for tensor in file.tensors}
                hashes[is_torch].append(folder.sha256_of(file.path))
        base, wanted = None, wanted - {()}
        if wanted:
            if depth == MAX_CHAIN:
                raise FormatError(f"{path}: a chain of more than {MAX_CHAIN} differences")
            base = cls.beside(path, wanted, limits, depth + 1)
            if base is None:
                raise no_base_beside(path, wanted, limits)
        return cls(path, tensors, tuple(sorted(hashes[False])), tuple(sorted(hashes[True])), base)

    @classmethod
    def beside(cls, path: Path, wanted: Collection[Hashes], limits: Limits, depth: int = 0) -> "Base | None":
        """The packed checkpoint in the folder that holds `path` whose files, unpacked, have these hashes."""
        place = packed_beside(path, wanted, limits)
        return cls.open(place, limits, depth) if place else None

    @classmethod
    def of(cls, source: Path, limits: Limits) -> "Base | None":
        """What a packed file or folder is a difference from, if it is one: it is found beside it. Raises SqueezeError
        where it is not."""
        wanted = {packed.description.base for packed in packed_files(source, limits)} - {()}
        base = cls.beside(source, wanted, limits) if wanted else None
        if wanted and base is None:
            raise no_base_beside(source, wanted, limits, "put it there, or name the base")
        return base

    @classmethod
    def needed(cls, source: Path, named: Path | str | None, limits: Limits) -> "Base | None":
        """The base of a packed file or folder: the one that is named, or else as `of` finds it. Raises SqueezeError
        where one is named, and none is needed."""
        if named is None:
            return cls.of(source, limits)
        known = cls.open(named, limits)
        if not any(packed.description.base for packed in packed_files(source, limits)):
            raise SqueezeError("this checkpoint needs no base")
        return known

    def record(self, name: str, scope: str = "") -> Record | None:
        """Return how a tensor is coded, or None if the base has no tensor of this name."""
        _, tensor, record = self.tensors.get((scope, name), (None, None, None))
        return record or (Record.of(tensor, codings.STORED) if tensor else None)

    def tensor(self, name: str, like: Tensor | Record, scope: str = "") -> Bytes | None:
        """Return the bytes of the base's tensor of a name, if it has the same dtype and shape, else None. Raises
        DamagedError.

        scope: the name of the file of torch's in its folder that the tensor is in."""
        return self._bytes(scope, name, like)

    def for_record(self, name: str, record: Record, scope: str = "") -> Bytes | None:
        """Return the same for a difference, of which it must exist, and None for a tensor coded in another way."""
        if not record.coding.is_difference:
            return None
        data = self._bytes(scope, name, record)
        if data is None:
            raise self._missing(name)
        return data

    def content_for(self, record: Record, name: str, scope: str, opened: ExitStack) -> Content | None:
        """Return what `for_record` does, read in parts as `content` is."""
        if not record.coding.is_difference:
            return None
        content = self.content(record, name, scope, opened)
        if content is None:
            raise self._missing(name)
        return content

    def _missing(self, name: str) -> SqueezeError:
        return SqueezeError(f"the base {self.path} has no {named(name)} of the right kind")

    @property
    def length(self) -> int:
        """Of the chain of differences that it ends: 0 where it is none."""
        return 1 + self.base.length if self.base else 0

    @property
    def identities(self) -> set[Hashes]:
        """By each of which it is known."""
        return {self.weights, self.states} - {()}

    def identity(self, is_torch: bool) -> Hashes:
        """What a file of this kind says of its base."""
        return self.states if is_torch else self.weights

    def check(self, hashes: Hashes) -> None:
        """Raises SqueezeError where this is not the base with these hashes."""
        if hashes not in self.identities:
            raise SqueezeError(
                f"{self.path} is not the base that this checkpoint is the difference from: the SHA-256 of its files "
                "differ"
            )

    def content(self, like: Tensor | Record, name: str, scope: str, opened: ExitStack) -> Content | None:
        """The same as `tensor`, read in parts from files that are closed with `opened`. Its checksum was compared."""
        found = self._found(scope, name, like)
        if found is None:
            return None
        file, tensor, record = found
        reading = Positional(opened.enter_context(file.path.open("rb")))
        stored = to_reread(reading, tensor.begin, tensor.size, opened)
        if record is None:
            return stored
        other = self.base.content_for(record, name, scope, opened) if self.base else None
        with self._about(file):
            return record.restore_to_reread(name, stored, other, opened)

    def _bytes(self, scope: str, name: str, like: Tensor | Record) -> Bytes | None:
        found = self._found(scope, name, like)
        if found is None:
            return None
        file, tensor, record = found
        other = self.base.for_record(name, record, scope) if self.base and record else None
        with file.path.open("rb") as reading:
            stored = tensorfile.read_tensor(reading, tensor)  # after what it differs from: a chain holds two at a time
        if record is None:
            return stored
        with self._about(file):
            return record.restore(name, stored, other, 1)

    def _found(self, scope: str, name: str, like: Tensor | Record) -> tuple[TensorFile, Tensor, Record | None] | None:
        known = self.record(name, scope)
        return self.tensors[scope, name] if known and known.is_of(like) else None

    @contextmanager
    def _about(self, file: TensorFile) -> Iterator[None]:
        try:
            yield
        except DamagedError as error:
            raise DamagedError(f"the base {escaped(str(file.path))}: {error}") from None


def file_of(path: Path, name: str, limits: Limits) -> tuple[TensorFile, PackedFile | None, bool] | None:
    """A file of a checkpoint that has tensors, its packed form if it is packed, and whether torch wrote it. name: that
    in its folder."""
    if path.suffix == folder.SUFFIX or is_packed(path, limits):
        file = tensorfile.read(path, limits)
        if not container.is_packed(file):
            return file, None, False
        packed = container.describe(file, limits)
        container.check_limits(packed, limits)
        return file, packed, packed.is_torch
    source = source_of(path, not name, limits, strict=True)
    return (source.file, None, source.is_torch) if source else None


def is_packed(path: Path, limits: Limits) -> bool:
    """Whether a file is a packed one, whatever its name."""
    try:
        return path.name.endswith(CODED) and container.is_packed(tensorfile.read(path, limits))
    except (FormatError, LimitError):
        return False
