"""Packed checkpoints in torch: tensors stay coded in memory and are decoded on access."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import torch

from squeeze.checkpoint.safetensors import Tensor, named
from squeeze.checkpoint.weight_files import own_files
from squeeze.errors import FormatError, LimitError, SqueezeError, escaped, printable
from squeeze.options import size_of
from squeeze.packing import container, device_decode, folder
from squeeze.packing.base import Base
from squeeze.packing.container import PackedFile
from squeeze.packing.device_decode import Prepared
from squeeze.packing.others import Others
from squeeze.packing.record import Record, naming
from squeeze.packing.sources import may_be_coded
from squeeze.packing.tensors.content import Content, InFile, whole
from squeeze.system.binary import Positional
from squeeze.system.limits import Limits
from squeeze.system.storage import path_of


def load(
    path: Path | str,
    device: str = "cpu",
    *,
    base: Path | str | None = None,
    threads: int = 1,
    limits: Limits | None = None,
    resident: int | str = 0,
) -> "Weights":
    """Open a packed file or folder as a mapping from names to tensors, which are decoded on each access.

    The payloads are read into the memory of `device` at once; a GPU decodes them there. Tensors of the archive level,
    on a GPU those of the fast level, and differences are decoded at once and kept decoded. A tensor's checksum is
    compared when it is first decoded, which copies it from a GPU once; `squeeze.verify` compares all.

    Args:
        path: a file or folder, or a URL of fsspec.
        device: torch device for payloads and tensors.
        base: the checkpoint that a difference needs; found in the folder of `path` if not given.
        threads: threads that decode a tensor on the CPU.
        limits: bounds of memory and output.
        resident: bytes, or a text such as "2G". Tensors, in order, that fit into them are decoded now and kept, and
            every access returns the same one.

    Raises OptionError for another text, FormatError if `path` is not packed, DamagedError, and LimitError.

    >>> weights = load("my-model-packed", device="cuda")  # doctest: +SKIP
    >>> weights["lm_head.weight"].shape  # doctest: +SKIP
    """
    path = path_of(path)
    resident_size = size_of(resident) if isinstance(resident, str) else resident
    found = folder.files_to_take(path)
    names = [name for name in found if not name or name.endswith(folder.SUFFIX)]
    if not names:
        raise _no_weights(path)
    limits = limits or Limits()
    base_weights = Base.needed(path, base, limits)
    entries: dict[Path, dict[str, Entry]] = {}
    memory = raw = 0
    for name in names:
        place = folder.place(path, name)
        try:
            packed = container.read(place, limits)
            raw += packed.description.size
            if torch.device(device).type == "cpu":
                memory += _resident_bytes(packed)
                limits.need_memory(memory + min(resident_size, raw), f"the checkpoint of {packed.file.size:,} bytes")
            limits.need_output(raw)
            container.check_limits(packed, limits)
            _check_base(packed, base_weights)
            entries[place] = _entries(packed, device, Others(packed, base_weights, limits), threads)
        except (FormatError, LimitError) as error:
            raise type(error)(f"{escaped(str(place))}: {error}") from None
    own = own_files(entries, folder.indexes_in(path, found))
    weights = Weights({name: entries[place][name] for name, place in own.items()}, threads)
    weights.keep(resident_size)
    return weights


def _no_weights(path: Path) -> FormatError:
    name = next(name for name in folder.files_to_take(path) if may_be_coded(name))
    maker = "torch.distributed.checkpoint" if name.endswith(".distcp") else "torch.save"
    found = f"a file of {maker}, not of safetensors ({printable(name)})"
    return FormatError(f"{escaped(str(path))}: {found}: restore it by `squeeze unpack` and load it with torch")


def _resident_bytes(packed: PackedFile) -> int:
    """Return the bytes that stay in memory."""
    pairs = zip(packed.file.tensors, packed.description.records, strict=True)
    return sum(tensor.size if _stays_coded(record, "cpu") else record.size for tensor, record in pairs)


def _stays_coded(record: Record, device: str) -> bool:
    """Return whether a tensor stays coded and is decoded on each access."""
    return record.coding.stays_coded and not (record.coding.cpu_only and torch.device(device).type != "cpu")


def _check_base(packed: PackedFile, base: Base | None) -> None:
    if base and packed.description.base:
        base.check(packed.description.base)


class Entry:
    """A tensor with its record, and its payload, or its values if it does not stay coded."""

    def __init__(self, name: str, record: Record, payload: torch.Tensor, stays_coded: bool):
        self.name = name
        self.record = record
        self.payload = payload  # uint8
        self._prepared = prepare(payload, record) if stays_coded else None
        self._checked = False
        self._decoded: torch.Tensor | None = None

    @property
    def nbytes(self) -> int:
        return self.payload.nbytes

    def decode_for_good(self, threads: int = 1) -> int:
        """Decode a coded tensor for good; return the bytes that it takes."""
        if self._prepared is None:
            return 0
        self._decoded = self.decode(threads=threads)
        self.payload, self._prepared = self._decoded.view(-1).view(torch.uint8), None
        return self.record.size

    def decode(self, out: torch.Tensor | None = None, threads: int = 1) -> torch.Tensor:
        """Return the tensor, in the memory of `out` (contiguous, of the same size) if given."""
        if self._decoded is not None and out is None:
            return self._decoded
        dtype = torch_dtype(self.record.dtype, self.name)
        if not self.record.size:  # torch cannot view nothing as another type
            return torch.empty(torch_shape(self.record), dtype=dtype, device=self.payload.device)
        if self._prepared is None:
            values = self.payload.clone() if out is None else out.view(-1).view(self.payload.dtype).copy_(self.payload)
            return self._compared(shaped(values, self.record, dtype))
        with naming(self.name):
            decoded = device_decode.decode(self._prepared, out, threads)
        return self._compared(shaped(decoded, self.record, dtype))

    def _compared(self, values: torch.Tensor) -> torch.Tensor:
        """Return the values after comparing their checksum once. Raises DamagedError."""
        if not self._checked:
            self.record.check(values.view(-1).view(torch.uint8).cpu().numpy(), self.name)
            self._checked = True
        return values


def prepare(payload: torch.Tensor, record: Record) -> Prepared:
    """Parse a payload for decoding on its device. Raises DamagedError."""
    return device_decode.prepare(payload, record.layout, record.size, record.coding.cpu_only)


def torch_dtype(dtype: str, name: str) -> torch.dtype:
    """Return torch's type of a safetensors dtype. Raises FormatError if it has none."""
    if dtype not in device_decode.TORCH_DTYPES:
        raise FormatError(f"{named(name)}: torch has no type for {dtype}")
    return device_decode.TORCH_DTYPES[dtype]


def torch_shape(record: Record) -> tuple[int, ...]:
    """Return the shape of a tensor in torch, where an element of F4 is two numbers.

    Raises FormatError if a row of F4 has an odd number of them.
    """
    if record.dtype != "F4":
        return record.shape
    if not record.shape or record.shape[-1] % 2:
        raise FormatError(
            f"a tensor of F4 with the shape {list(record.shape)} cannot be loaded: torch stores two numbers in a byte"
        )
    return (*record.shape[:-1], record.shape[-1] // 2)


def shaped(values: torch.Tensor, record: Record, dtype: torch.dtype) -> torch.Tensor:
    """Return decoded values, perhaps of another dtype with the same bits, as the tensor that was packed."""
    return values.view(torch.uint8).view(dtype).view(torch_shape(record))


def _entries(packed: PackedFile, device: str, others: Others, threads: int) -> dict[str, Entry]:
    with packed.file.path.open("rb") as reading:
        file, entries = Positional(reading), {}
        for tensor, record in zip(packed.file.tensors, packed.description.records, strict=True):
            payload = InFile(file, tensor.begin, tensor.size)
            entries[tensor.name] = _entry(tensor, record, payload, device, others, threads)
    return entries


def _entry(tensor: Tensor, record: Record, payload: Content, device: str, others: Others, threads: int) -> Entry:
    name = tensor.name
    with ExitStack() as opened:
        if found := others.payload_of(tensor, record, opened):
            payload, record = found
        is_coded, other = _stays_coded(record, device), others.content_for(record, name, "", opened)
        with naming(name):
            is_ready = is_coded or record.coding.is_stored
            data = whole(payload if is_ready else record.decode_parts(payload, other, threads), threads)
            entry = Entry(name, record, torch.from_numpy(data).to(device), is_coded)
    if not is_ready:
        record.check(data, name)
    return entry


class Weights(Mapping[str, torch.Tensor]):
    """A loaded checkpoint. `weights[name]` decodes a tensor unless it is resident; `decode` does so into a buffer."""

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
        """Decode the tensor `name` into the memory of `out`, a contiguous tensor of the same size and device."""
        if out.nbytes != self.entries[name].record.size or not out.is_contiguous():
            size = self.entries[name].record.size
            raise SqueezeError(f"{named(name)} needs a contiguous buffer of {size} bytes, not {out.nbytes}")
        return self.entries[name].decode(out, self.threads)

    def keep(self, size: int) -> None:
        """Decode tensors for good, in order, as long as they fit into `size` bytes."""
        for entry in self.entries.values():
            if entry.record.size <= size:
                size -= entry.decode_for_good(self.threads)

    @property
    def nbytes(self) -> int:
        """The bytes of memory of the payloads."""
        return sum(entry.nbytes for entry in self.entries.values())
