"""Where the payloads of an open file come from: a map of the file, or requests for the parts that are read."""

from dataclasses import replace
from pathlib import Path
from threading import Lock

import numpy as np

from squeeze.checkpoint import safetensors as tensorfile
from squeeze.checkpoint.safetensors import Bytes, Tensor
from squeeze.codecs.tensors.float_payload import Coded, parse
from squeeze.codecs.tensors.segment_ranges import Fetch, parse_fetched
from squeeze.errors import SqueezeError
from squeeze.packing.container import Record

__all__ = ["Fetched", "Mapped"]


class Mapped:
    """The payloads of a file on the disk, of which the system reads what is touched."""

    def __init__(self, path: Path):
        self._data = np.memmap(path, np.uint8, "c").view(np.ndarray)  # private

    def payload(self, tensor: Tensor) -> Bytes:
        payload = self._data[tensor.begin : tensor.end]
        return payload.copy() if tensor.begin % 8 else payload  # compiled code takes aligned arrays

    def part(self, tensor: Tensor, begin: int, end: int) -> Bytes:
        """Bytes of a payload, in an array of their own."""
        return self._data[tensor.begin + begin : tensor.begin + end].copy()

    def parsed(self, tensor: Tensor, record: Record) -> tuple[Coded, Fetch | None]:
        """A payload, and what fetches the bytes of its segments where they are not there yet. Raises DamagedError."""
        return parse(self.payload(tensor), record.layout, record.size), None

    def close(self) -> None:
        self._data = np.zeros(0, np.uint8)


class Fetched:
    """The payloads of an object at a URL: each is fetched when it is asked for."""

    def __init__(self, path: Path):
        self._file, self._lock = path.open("rb"), Lock()

    def payload(self, tensor: Tensor) -> Bytes:
        with self._lock:
            return tensorfile.read_tensor(self._file, tensor)

    def part(self, tensor: Tensor, begin: int, end: int) -> Bytes:
        return self.payload(replace(tensor, begin=tensor.begin + begin, end=tensor.begin + end))

    def parsed(self, tensor: Tensor, record: Record) -> tuple[Coded, Fetch | None]:
        payload = np.zeros(tensor.size, np.uint8)

        def fetch(begin: int, end: int) -> None:
            if self._file.closed:
                raise SqueezeError("File is closed")
            payload[begin:end] = self.part(tensor, begin, end)

        return parse_fetched(payload, record.layout, record.size, fetch), fetch

    def close(self) -> None:
        self._file.close()
