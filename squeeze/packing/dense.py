"""Dense tensors of a checkpoint, decoded one after another: the core that loaders of other programs share.

A folder or file of safetensors, packed or not, also a difference from a base; or a model of a store. Tensors of one
folder are read, not those of the folders in it, as inference servers do. Only the tensors that are asked for are read
and decoded, and every checksum of a packed one is compared.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import torch

from squeeze.checkpoint import safetensors as tensorfile
from squeeze.checkpoint.safetensors import Bytes, Tensor, TensorFile, named
from squeeze.checkpoint.weight_files import INDEX, WEIGHTS, own_files, read_index, shard_at
from squeeze.errors import DamagedError, FormatError, LimitError, OptionError, SqueezeError, escaped, printable
from squeeze.packing import container, folder
from squeeze.packing.base import Base
from squeeze.packing.chain import checkpoint_of
from squeeze.packing.codings import STORED
from squeeze.packing.others import Others
from squeeze.packing.record import Record, naming
from squeeze.packing.store.models import Entry
from squeeze.packing.store.store import Store, is_store
from squeeze.packing.tensors.content import InFile, whole
from squeeze.packing.weights import shaped, torch_dtype, torch_shape
from squeeze.system.binary import Positional
from squeeze.system.hub import local_copy
from squeeze.system.limits import Limits
from squeeze.system.parallel import in_order
from squeeze.system.storage import local_path, path_of

__all__ = ["DenseTensors", "dense", "weight_files_of"]

Opened = AbstractContextManager[None]


class Source(Protocol):
    """A tensor of a checkpoint."""

    @property
    def record(self) -> Record:
        """The dtype, shape and checksum."""

    def read(self, threads: int) -> Bytes:
        """Return the decoded bytes. Raises DamagedError if the checksum differs."""


class DenseTensors(Mapping[str, torch.Tensor]):
    """A checkpoint as a mapping from names to dense tensors on the CPU. Nothing stays in memory.

    `tensors[name]` decodes one tensor each time. `stream` decodes many, small ones together on several threads and
    large ones one at a time.
    """

    def __init__(self, sources: Mapping[str, Source], threads: int, opened: Callable[[], Opened] = nullcontext):
        self._sources, self._threads, self._opened = sources, threads, opened

    def __getitem__(self, name: str) -> torch.Tensor:
        with self._opened():
            return _torch(name, self._sources[name], self._threads)

    def __iter__(self) -> Iterator[str]:
        return iter(self._sources)

    def __len__(self) -> int:
        return len(self._sources)

    def stream(self, wanted: Callable[[str], bool] = lambda name: True) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the names and tensors, in order.

        Small tensors are decoded up to 64 MiB ahead. A tensor belongs to the caller.

        Args:
            wanted: whether a tensor is needed, by its name. Others are neither read nor decoded.

        Raises DamagedError if a tensor is damaged, and FormatError if torch has no type for it.
        """
        chosen = [(name, source) for name, source in self._sources.items() if wanted(name)]
        tasks = ((source.record.size, partial(_pair, name, source)) for name, source in chosen)
        with self._opened():
            yield from in_order(tasks, self._threads)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor in torch without decoding it."""
        return torch_shape(self._sources[name].record)

    def dtype(self, name: str) -> torch.dtype:
        """Return torch's type of a tensor without decoding it."""
        return torch_dtype(self._sources[name].record.dtype, name)

    @property
    def nbytes(self) -> int:
        """The bytes of all tensors, decoded."""
        return sum(source.record.size for source in self._sources.values())


def _pair(name: str, source: Source, threads: int) -> tuple[str, torch.Tensor]:
    return name, _torch(name, source, threads)


def _torch(name: str, source: Source, threads: int) -> torch.Tensor:
    dtype, shape = torch_dtype(source.record.dtype, name), torch_shape(source.record)
    if not source.record.size:  # torch cannot view nothing as another type
        return torch.empty(shape, dtype=dtype)
    return shaped(torch.from_numpy(source.read(threads)), source.record, dtype)


def dense(
    path: Path | str,
    *,
    model: str | None = None,
    base: Path | str | None = None,
    threads: int = 1,
    limits: Limits | None = None,
) -> DenseTensors:
    """Open a file of safetensors, or those of a folder, packed or not, or a model of a store, as dense tensors.

    Args:
        path: a file or folder, or a URL of fsspec. If a folder has an index, the shards that it names are read.
        model: the name of the model if `path` is a store.
        base: the checkpoint that a difference needs; found in the folder of `path` if not given.
        threads: threads that decode.
        limits: bounds of memory and output.

    Raises:
        FormatError: if there are no safetensors, or a header is invalid.
        SqueezeError: if a base is missing or not needed, or the store does not have the model.
        LimitError: if decoding a tensor takes more memory than `limits` allow.

    >>> for name, tensor in dense("my-model-packed").stream():  # doctest: +SKIP
    ...     model.get_parameter(name).data.copy_(tensor)
    """
    path, limits = local_copy(path_of(path)), limits or Limits()
    if model is not None or is_store(path):
        if model is None or base is not None:
            raise OptionError(f"{escaped(str(path))}: is a store: name a model of it, and no base")
        return _of_store(Store(local_path(path), limits), model, threads)
    files = [_opened(place, limits) for place in weight_files_of(path)]
    packed = [one for one in files if isinstance(one, container.PackedFile)]
    found_base = _base_of(path, packed, base, limits)
    limits.need_output(sum(one.description.size for one in packed))
    sources: dict[Path, dict[str, Source]] = {}
    for one in files:
        if isinstance(one, TensorFile):
            sources[one.path] = {tensor.name: Plain(one, tensor) for tensor in one.tensors}
            continue
        others = Others(one, found_base, limits)
        pairs = zip(one.file.tensors, one.description.records, strict=True)
        sources[one.file.path] = {tensor.name: Packed(one.file, tensor, record, others) for tensor, record in pairs}
    own = own_files(sources, [])
    return DenseTensors({name: sources[place][name] for name, place in own.items()}, threads)


def _of_store(store: Store, model: str, threads: int) -> DenseTensors:
    known = store.model(model).files
    files = {label: file for label, file in known.items() if file.is_safetensors and "/" not in label}
    if not files:
        raise FormatError(f"model {printable(repr(model))} has no files of safetensors: loaders read no others")
    sources: dict[Path, dict[str, Source]] = {}
    for label, file in files.items():
        sources[store.path / label] = {entry.name: InStore.of(store, entry) for entry in file.tensors}
    own = own_files(sources, [])
    return DenseTensors({name: sources[place][name] for name, place in own.items()}, threads, store.held)


def weight_files_of(path: Path) -> list[Path]:
    """Return the files of safetensors of a checkpoint, without those in folders of its folder.

    Raises FormatError if the folder has no such file, or a shard that the index names is missing or elsewhere.
    """
    if not path.is_dir():
        if path.suffix != folder.SUFFIX:
            raise FormatError(f"{escaped(str(path))}: expected a {folder.SUFFIX} file or a folder with such files")
        return [path]
    indexes = sorted(place for place in path.iterdir() if place.name.endswith(f"{folder.SUFFIX}.index.json"))
    index = path / INDEX if path / INDEX in indexes else (indexes[0] if len(indexes) == 1 else None)
    if index and not (path / WEIGHTS).is_file():
        return [shard_at(path, name) for name in sorted(set(read_index(index).values()))]
    found = [path / WEIGHTS] if (path / WEIGHTS).is_file() else []
    found = found or sorted(place for place in path.iterdir() if place.suffix == folder.SUFFIX and place.is_file())
    if not found:
        raise FormatError(f"{escaped(str(path))}: a folder without files of safetensors: loaders read no others")
    return found


def _opened(path: Path, limits: Limits) -> TensorFile | container.PackedFile:
    try:
        file = tensorfile.read(path, limits)
        if not container.is_packed(file):
            return file
        packed = container.describe(file, limits)
        if packed.is_torch:
            raise FormatError("is a packed file of torch: restore it by `squeeze unpack`")
        container.check_limits(packed, limits)
        return packed
    except (FormatError, LimitError) as error:
        raise type(error)(f"{escaped(str(path))}: {error}") from None


def _base_of(path: Path, packed: list[container.PackedFile], base: Path | str | None, limits: Limits) -> Base | None:
    """Return the base of packed files: the named one, or else the one that is found by its hash."""
    if base is not None:
        found = Base.open(base, limits)
        differences = [one.description.base for one in packed if one.description.base]
        if not differences:
            raise SqueezeError(f"{escaped(str(path))}: is no difference from a base, and needs none")
        for hashes in differences:
            found.check(hashes)
        return found
    needed = (one for one in packed if one.description.base or Others(one, None, limits).bases())
    first = next(needed, None)
    return Base.of(checkpoint_of(first.file.path), limits) if first else None


@dataclass(frozen=True)
class Plain:
    """A tensor of a file that is not packed, which has no checksum."""

    file: TensorFile
    tensor: Tensor

    @property
    def record(self) -> Record:
        return Record.of(self.tensor, STORED)

    def read(self, threads: int) -> Bytes:
        with self.file.path.open("rb") as opened:
            return whole(InFile(Positional(opened), self.tensor.begin, self.tensor.size), threads)


@dataclass(frozen=True)
class Packed:
    """A tensor of a packed file."""

    file: TensorFile
    tensor: Tensor
    record: Record
    others: Others

    def read(self, threads: int) -> Bytes:
        name, record = self.tensor.name, self.record
        with self.file.path.open("rb") as opened, self.others.explaining(name, record, ""):
            payload = whole(InFile(Positional(opened), self.tensor.begin, self.tensor.size), threads)
            return record.restore(name, payload, self.others.for_record(name, record), threads)


@dataclass(frozen=True)
class InStore:
    """A tensor of a model of a store."""

    store: Store
    entry: Entry
    record: Record

    @classmethod
    def of(cls, store: Store, entry: Entry) -> "InStore":
        """Return a tensor with its record. Raises DamagedError if its object is damaged or of another size."""
        record = store.objects.header(entry.key).record
        if not tensorfile.fits(entry.dtype, entry.shape, record.size):
            raise DamagedError(f"{named(entry.name)}: object {entry.key[:16]} has another size")
        return cls(store, entry, Record(entry.dtype, entry.shape, STORED, record.checksum, record.length))

    def read(self, threads: int) -> Bytes:
        with naming(self.entry.name):
            return self.store.objects.read(self.entry.key, threads)
