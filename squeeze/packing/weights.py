"""Tensors of a loaded checkpoint, which stay coded in memory and are decoded on access."""

from collections.abc import Iterator, Mapping

import torch

from squeeze.checkpoint.checkpoint import TORCH_DTYPES
from squeeze.checkpoint.safetensors import named
from squeeze.errors import FormatError, SqueezeError
from squeeze.packing import device_decode
from squeeze.packing.device_decode import Prepared
from squeeze.packing.record import Record, naming

__all__ = ["Entry", "Weights", "prepare", "shaped", "stays_coded", "torch_dtype", "torch_shape"]


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

    @property
    def stays_coded(self) -> bool:
        """True if the payload is held, and decoded on each access."""
        return self._prepared is not None

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
    if dtype not in TORCH_DTYPES:
        raise FormatError(f"{named(name)}: torch has no type for {dtype}")
    return TORCH_DTYPES[dtype]


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


def stays_coded(record: Record, device: str) -> bool:
    """Return whether a tensor stays coded on a device and is decoded on each access."""
    return record.coding.stays_coded and not (record.coding.cpu_only and torch.device(device).type != "cpu")


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
