"""Decoding of several packed tensors at once, such as those of a block of a model.

A GPU needs one launch for each kind of planes among them, so that short tensors do not leave most of it idle (as
DFloat11 decodes a whole block).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch

from squeeze.checkpoint.checkpoint import TORCH_DTYPES
from squeeze.packing import device_decode
from squeeze.packing.device_decode import DevicePlane, Prepared

__all__ = ["Together"]

_ALIGNMENT = 256  # bytes


class Together:
    """Packed tensors on one device."""

    def __init__(self, prepared: Sequence[Prepared]) -> None:
        self.prepared = tuple(prepared)
        sizes = (-(-one.size // _ALIGNMENT) * _ALIGNMENT for one in self.prepared)
        self._begins = list(accumulate(sizes, initial=0))
        self._launches: tuple[int, list[_Several]] | None = None

    @property
    def size(self) -> int:
        """The bytes of memory for the values of all tensors."""
        return self._begins[-1]

    def decode(self, out: torch.Tensor, threads: int = 1) -> list[torch.Tensor]:
        """Return the values of each tensor, flat, in the memory of `out`, uint8 [size] on the payloads' device.

        Raises DamagedError if a segment does not decode, on the CPU; a GPU does not check.
        """
        parts = [out[begin : begin + one.size] for begin, one in zip(self._begins, self.prepared, strict=False)]
        alone = [k for k, one in enumerate(self.prepared) if not _in_one_plane(one)]
        for k in alone:
            device_decode.decode(self.prepared[k], parts[k], threads)
        for launch in self._several(parts):
            launch.run()
        return [part.view(TORCH_DTYPES[one.dtype]) for part, one in zip(parts, self.prepared, strict=True)]

    def _several(self, parts: list[torch.Tensor]) -> list[_Several]:
        """Return the launches, which are rebuilt if the memory is another, because they hold addresses."""
        place = parts[0].data_ptr()
        if self._launches is None or self._launches[0] != place:
            alike: dict[tuple[object, ...], list[int]] = {}
            for k, one in enumerate(self.prepared):
                if _in_one_plane(one):
                    plane = one.planes[0]
                    kind = one.lanes, one.rows, one.rotated, plane.width, plane.precision, plane.raw_bits
                    alike.setdefault(kind, []).append(k)
            made = [_Several([(self.prepared[k], parts[k]) for k in group]) for group in alike.values()]
            self._launches = place, made
        return self._launches[1]


def _in_one_plane(prepared: Prepared) -> bool:
    return len(prepared.planes) == 1


class _Several:
    """A launch that decodes tensors with one kind of plane."""

    def __init__(self, tensors: list[tuple[Prepared, torch.Tensor]]) -> None:
        device = tensors[0][1].device
        kernel = device_decode.triton_kernels()
        segments = torch.tensor([one.segments for one, _ in tensors])
        firsts = (segments.cumsum(0) - segments).tolist()
        begun = zip(tensors, firsts, strict=True)
        rows = [kernel.row_of(one, one.planes[0], out, first) for (one, out), first in begun]
        self._like: tuple[Prepared, DevicePlane] = tensors[0][0], tensors[0][0].planes[0]
        self._owners = torch.arange(len(tensors), dtype=torch.int32).repeat_interleave(segments).to(device)
        self._places = torch.tensor(rows, dtype=torch.int64).to(device)
        self._kernel = kernel

    def run(self) -> None:
        prepared, plane = self._like
        self._kernel.decode_several(prepared, plane, prepared.rotated, self._owners, self._places)
