"""Packed checkpoints in torch: tensors stay coded in memory and are decoded when they are asked for."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import torch

from squeeze.checkpoint import safetensors as tensorfile
from squeeze.checkpoint.safetensors import Tensor
from squeeze.errors import FormatError, SqueezeError
from squeeze.kernels import df_decode
from squeeze.kernels.df_decode import Prepared
from squeeze.packing import container, folder
from squeeze.packing.base import Base
from squeeze.packing.container import PackedFile, Record


def load(path: Path | str, device: str = "cpu", *, base: Path | str | None = None, threads: int = 1) -> "Weights":
    """Open a packed file or folder: a mapping from names to tensors, which are decoded on each access.

    The payloads are read into the memory of `device` at once; on a GPU they are decoded there. Tensors at
    the archive level and differences (`base` names what from) are decoded now and kept as they are.
    Raises FormatError where `path` is not packed, DamagedError where it is damaged.

    >>> weights = load("my-model-packed", device="cuda")  # doctest: +SKIP
    >>> weights["lm_head.weight"].shape  # doctest: +SKIP
    """
    path = Path(path)
    names = [name for name in folder.files_to_take(path) if not name or name.endswith(folder.SUFFIX)]
    known = Base.open(base) if base is not None else None
    entries: dict[str, Entry] = {}
    for name in names:
        packed = container.read(folder.place(path, name))
        if packed.description.base and known is None:
            raise SqueezeError("this checkpoint is stored as a difference: name its base")
        if known:
            known.check(packed.description.base)
        entries |= _entries(packed, device, known, threads)
    return Weights(entries, threads)


class Entry:
    """One tensor: its record, and its payload or, where that is not coded for fast decoding, its values."""

    def __init__(self, name: str, record: Record, payload: torch.Tensor, coded: bool):
        self.name = name
        self.record = record
        self.payload = payload  # uint8
        self._prepared = _prepare(payload, record) if coded else None

    @property
    def nbytes(self) -> int:
        return self.payload.nbytes

    def decode(self, out: torch.Tensor | None = None, threads: int = 1) -> torch.Tensor:
        """The tensor, in the bytes of `out` (contiguous, as large) if given."""
        dtype = torch_dtype(self.record.dtype, self.name)
        if self._prepared is not None:
            return df_decode.decode(self._prepared, out, threads).view(self.record.shape)
        values = self.payload.clone() if out is None else out.view(-1).view(self.payload.dtype).copy_(self.payload)
        return values.view(dtype).view(self.record.shape)


def _prepare(payload: torch.Tensor, record: Record) -> Prepared:
    return df_decode.prepare(payload, record.dtype, record.size)


def torch_dtype(dtype: str, name: str) -> torch.dtype:
    """torch's type of a safetensors dtype. Raises FormatError where it has none."""
    if dtype not in df_decode.TORCH_DTYPES:
        raise FormatError(f"tensor {name!r}: torch has no type for {dtype}")
    return df_decode.TORCH_DTYPES[dtype]


def _entries(packed: PackedFile, device: str, base: Base | None, threads: int) -> dict[str, Entry]:
    with packed.file.path.open("rb") as reading:
        found = {}
        for tensor, record in zip(packed.file.tensors, packed.description.records, strict=True):
            payload = tensorfile.read_tensor(reading, tensor)
            found[tensor.name] = _entry(tensor, record, payload, device, base, threads)
    return found


def _entry(
    tensor: Tensor, record: Record, payload: tensorfile.Bytes, device: str, base: Base | None, threads: int
) -> Entry:
    torch_dtype(record.dtype, tensor.name)
    if record.coding not in (container.RANS, container.STORED):
        other = base.for_record(tensor.name, record) if base and record.coding.startswith(container.DELTA) else None
        payload = container.decode_tensor(payload, record, other, threads)
        container.check_tensor(payload, record, tensor.name)
    return Entry(tensor.name, record, torch.from_numpy(payload).to(device), record.coding == container.RANS)


class Weights(Mapping[str, torch.Tensor]):
    """A loaded checkpoint. `weights[name]` decodes a tensor anew; `decode` can do so into a buffer."""

    def __init__(self, entries: dict[str, Entry], threads: int = 1):
        self.entries = entries
        self.threads = threads

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.entries[name].decode(threads=self.threads)

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def decode(self, name: str, out: torch.Tensor) -> torch.Tensor:
        """The tensor `name` in the memory of `out`, a contiguous tensor of as many bytes on the same device."""
        if out.nbytes != self.entries[name].record.size or not out.is_contiguous():
            size = self.entries[name].record.size
            raise SqueezeError(f"tensor {name!r} needs a contiguous buffer of {size} bytes, not {out.nbytes}")
        return self.entries[name].decode(out, self.threads)

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the payloads take."""
        return sum(entry.nbytes for entry in self.entries.values())
