"""The base checkpoint of a difference, packed or not.

A packed base may be a difference in turn. Its own base is then looked for among the packed checkpoints in its folder,
by the hashes that it names. So the checkpoints of a training run, each packed as the difference from the one before,
form a chain in one folder.
"""

from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from squeeze.checkpoint import safetensors as tensorfile
from squeeze.checkpoint.safetensors import Bytes, Tensor, TensorFile, named
from squeeze.errors import DamagedError, FormatError, LimitError, SqueezeError, escaped
from squeeze.packing import codings, container, folder
from squeeze.packing.chain import Hashes, base_not_found, find_packed, packed_files
from squeeze.packing.container import PackedFile
from squeeze.packing.fetch_cache import rereadable
from squeeze.packing.others import Others
from squeeze.packing.record import Record
from squeeze.packing.sources import CODED, source_of
from squeeze.packing.tensors.content import Content, InFile
from squeeze.system.binary import Positional
from squeeze.system.limits import Limits
from squeeze.system.storage import path_of

MAX_CHAIN = 256  # differences in a row


@dataclass(frozen=True)
class Base:
    """A checkpoint from which others are stored as differences.

    tensors: the file, position and (if packed) record of each tensor, by scope and name. The scope is the name of a
    file of torch's, or "" for files of safetensors. weights, states: SHA-256 of its files of safetensors, and of torch.
    base: what it is itself a difference from. others: what the tensors of packed files need, by file.
    """

    path: Path
    tensors: dict[tuple[str, str], tuple[TensorFile, Tensor, Record | None]]  # a record if the file is packed
    weights: Hashes
    states: Hashes
    base: "Base | None" = None
    others: Mapping[Path, Others] = field(default_factory=dict)

    @classmethod
    def open(cls, path: Path | str, limits: Limits | None = None, depth: int = 0) -> "Base":
        """Open a checkpoint as a base. One that is not packed is read completely, for its hashes.

        Args:
            path: a file or folder, or a URL of fsspec.
            limits: bounds of memory and output.
            depth: differences that were followed already.

        Raises:
            FormatError: if it is not a checkpoint, or the chain of differences is too long.
            SqueezeError: if it is a difference and its base is not in the same folder.
            LimitError: if it takes more memory than `limits` allow.
        """
        path, limits = path_of(path), limits or Limits()
        tensors: dict[tuple[str, str], tuple[TensorFile, Tensor, Record | None]] = {}
        hashes: dict[bool, list[str]] = {False: [], True: []}
        base_hashes, packed_ones = set[Hashes](), list[PackedFile]()
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
                base_hashes.add(packed.description.base)
                packed_ones.append(packed)
            else:
                tensors |= {(scope, tensor.name): (file, tensor, None) for tensor in file.tensors}
                hashes[is_torch].append(folder.sha256_of(file.path))
        base, base_hashes = None, base_hashes - {()}
        if base_hashes:
            if depth == MAX_CHAIN:
                raise FormatError(f"{path}: the chain of differences is longer than {MAX_CHAIN}")
            base = cls.among_siblings(path, base_hashes, limits, depth + 1)
            if base is None:
                raise base_not_found(path, base_hashes, limits)
        others = {packed.file.path: Others(packed, base, limits) for packed in packed_ones}
        return cls(path, tensors, tuple(sorted(hashes[False])), tuple(sorted(hashes[True])), base, others)

    @classmethod
    def among_siblings(
        cls, path: Path, base_hashes: Collection[Hashes], limits: Limits, depth: int = 0
    ) -> "Base | None":
        """Open the packed checkpoint in the folder of `path` whose restored files have these hashes, or return None."""
        place = find_packed(path, base_hashes, limits)
        return cls.open(place, limits, depth) if place else None

    @classmethod
    def of(cls, source: Path, limits: Limits) -> "Base | None":
        """Find the base of a packed file or folder in its folder; return None if it needs none.

        Raises SqueezeError if the base is needed but not there.
        """
        base_hashes = _bases_of(source, limits)
        base = cls.among_siblings(source, base_hashes, limits) if base_hashes else None
        if base_hashes and base is None:
            raise base_not_found(source, base_hashes, limits, "put it there, or name the base")
        return base

    @classmethod
    def needed(cls, source: Path, base: Path | str | None, limits: Limits) -> "Base | None":
        """Return the base of a packed file or folder: the named one, or else the one that `of` finds.

        Raises SqueezeError if one is named that is not needed.
        """
        if base is None:
            return cls.of(source, limits)
        known = cls.open(base, limits)
        if not _bases_of(source, limits):
            raise SqueezeError("this checkpoint is not a difference: leave out the base")
        return known

    def record(self, name: str, scope: str = "") -> Record | None:
        """Return how a tensor is coded, or None if the base has no tensor of this name."""
        _, tensor, record = self.tensors.get((scope, name), (None, None, None))
        return record or (Record.of(tensor, codings.STORED) if tensor else None)

    def has(self, name: str, like: Tensor | Record, scope: str = "") -> bool:
        """Return whether the base has a tensor of this name, dtype and shape."""
        return self._lookup(scope, name, like) is not None

    def tensor(self, name: str, like: Tensor | Record, scope: str = "") -> Bytes | None:
        """Return the bytes of a tensor if the base has one of the same name, dtype and shape, else None.

        Args:
            name: the tensor's name.
            like: the tensor or record that it must match.
            scope: name of the file of torch's in its folder that holds the tensor.

        Raises DamagedError if a checksum differs.
        """
        return self._bytes(scope, name, like)

    def for_record(self, name: str, record: Record, scope: str = "") -> Bytes | None:
        """Return the bytes that a difference needs, or None for a tensor coded in another way.

        Raises SqueezeError if the base has no such tensor.
        """
        if not record.coding.is_difference:
            return None
        data = self._bytes(scope, name, record)
        if data is None:
            raise self._missing(name)
        return data

    def content_for(self, record: Record, name: str, scope: str, opened: ExitStack) -> Content | None:
        """Return the same as `for_record`, to be read in parts; files are closed with `opened`."""
        if not record.coding.is_difference:
            return None
        content = self.content(record, name, scope, opened)
        if content is None:
            raise self._missing(name)
        return content

    def _missing(self, name: str) -> SqueezeError:
        return SqueezeError(f"the base {self.path} has no {named(name)} of the same dtype and shape")

    @property
    def length(self) -> int:
        """The number of differences in the chain from here to a checkpoint that is packed whole."""
        return 1 + self.base.length if self.base else 0

    @property
    def identities(self) -> set[Hashes]:
        """The hash tuples by which differences refer to this base."""
        return {self.weights, self.states} - {()}

    def identity(self, is_torch: bool) -> Hashes:
        """Return the hashes by which a file of this kind refers to its base."""
        return self.states if is_torch else self.weights

    def check(self, hashes: Hashes) -> None:
        """Raise SqueezeError if this is not the base with these hashes."""
        if hashes not in self.identities:
            raise SqueezeError(
                f"{self.path} is not the base that this checkpoint is the difference from: the SHA-256 of its files "
                "differ"
            )

    def content(self, like: Tensor | Record, name: str, scope: str, opened: ExitStack) -> Content | None:
        """Return the same as `tensor`, in parts; files are closed with `opened`. Its checksum is compared."""
        found = self._lookup(scope, name, like)
        if found is None:
            return None
        file, tensor, record = found
        reading = Positional(opened.enter_context(file.path.open("rb")))
        stored = rereadable(reading, tensor.begin, tensor.size, opened)
        if record is None:
            return stored
        other = self.others[file.path].content_for(record, name, scope, opened)
        with self._about(file):
            return record.restore_rereadable(name, stored, other, opened)

    def _bytes(self, scope: str, name: str, like: Tensor | Record) -> Bytes | None:
        found = self._lookup(scope, name, like)
        if found is None:
            return None
        file, tensor, record = found
        if record and record.coding.is_member:  # the bundle is read once for all of them
            with ExitStack() as opened, file.path.open("rb") as reading, self._about(file):
                payload = InFile(Positional(reading), tensor.begin, tensor.size)
                base = self.others[file.path].content_for(record, name, scope, opened)
                return record.restore_content(name, payload, base, 1)
        other = self.others[file.path].for_record(name, record, scope) if record else None
        with file.path.open("rb") as reading:
            # Read after its base, so that only two tensors of a chain are in memory at a time.
            stored = tensorfile.read_tensor(reading, tensor)
        if record is None:
            return stored
        with self._about(file):
            return record.restore(name, stored, other, 1)

    def _lookup(self, scope: str, name: str, like: Tensor | Record) -> tuple[TensorFile, Tensor, Record | None] | None:
        known = self.record(name, scope)
        return self.tensors[scope, name] if known and known.is_of(like) else None

    @contextmanager
    def _about(self, file: TensorFile) -> Iterator[None]:
        try:
            yield
        except DamagedError as error:
            raise DamagedError(f"the base {escaped(str(file.path))}: {error}") from None


def _bases_of(source: Path, limits: Limits) -> set[Hashes]:
    """Return the hashes of the bases that a packed folder needs, or a packed file with those that it repeats."""
    found = set[Hashes]()
    for packed in packed_files(source, limits):
        found.add(packed.description.base)
        if not source.is_dir():
            found |= Others(packed, None, limits).bases()
    return found - {()}


def file_of(path: Path, name: str, limits: Limits) -> tuple[TensorFile, PackedFile | None, bool] | None:
    """Read the header of a checkpoint's file.

    name: its name in the folder, "" for a checkpoint of one file. Returns the file, its packed form if it is packed,
    and whether torch wrote it; None for a file without tensors.
    """
    if path.suffix == folder.SUFFIX or is_packed(path, limits):
        file = tensorfile.read(path, limits)
        if not container.is_packed(file):
            return file, None, False
        packed = container.describe(file, limits)
        container.check_limits(packed, limits)
        return packed.file, packed, packed.is_torch
    source = source_of(path, not name, limits, strict=True)
    return (source.file, None, source.is_torch) if source else None


def is_packed(path: Path, limits: Limits) -> bool:
    """Return whether a file is packed, judged by its content."""
    try:
        return path.name.endswith(CODED) and container.is_packed(tensorfile.read(path, limits))
    except (FormatError, LimitError):
        return False
