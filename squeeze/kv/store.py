"""The coded blocks of one layer, in buffers that grow by small steps. They are written once and read in place.

Only coders know what the fields mean.
"""

import torch

__all__ = ["BlockStore", "Fields"]

Fields = dict[str, torch.Tensor]

_GROWTH = 32  # a full buffer grows by one part in so many: 3 % of memory stands unused at most


class BlockStore:
    """Fields of shape [B, H, blocks, ...], to which blocks are appended.

    Growing copies packed bytes. A block is never coded again.
    """

    def __init__(self) -> None:
        self._buffers: Fields = {}
        self.blocks = 0

    def append(self, fields: Fields) -> None:
        """Append blocks: fields of [B, H, n, ...]."""
        count = next(iter(fields.values())).shape[2]
        self._reserve(fields, self.blocks + count)
        for name, new in fields.items():
            self._buffers[name][:, :, self.blocks : self.blocks + count] = new
        self.blocks += count

    def fill(self, fields: Fields) -> None:
        """Put blocks, fields of [B, H, n, ...], into an empty store without copying."""
        self._buffers, self.blocks = dict(fields), next(iter(fields.values())).shape[2]

    def _reserve(self, like: Fields, needed: int) -> None:
        for name, new in like.items():
            old = self._buffers.get(name)
            if old is not None and old.shape[2] >= needed:
                continue
            capacity = needed + needed // _GROWTH
            grown = new.new_empty((*new.shape[:2], capacity, *new.shape[3:]))
            if old is not None:
                grown[:, :, : self.blocks] = old[:, :, : self.blocks]
            self._buffers[name] = grown

    def read(self, first: int = 0, last: int | None = None) -> Fields:
        """Return views of blocks `first` to `last`."""
        last = self.blocks if last is None else last
        return {name: buffer[:, :, first:last] for name, buffer in self._buffers.items()}

    def truncate(self, blocks: int) -> None:
        """Forget all blocks from number `blocks` on, and reuse their memory."""
        self.blocks = min(self.blocks, blocks)

    def drop(self, blocks: int) -> None:
        """Forget the first `blocks` blocks and free their memory."""
        if blocks:
            self._buffers = {name: buffer[:, :, blocks : self.blocks].clone() for name, buffer in self._buffers.items()}
            self.blocks -= blocks

    def select(self, indices: torch.Tensor) -> None:
        """Select rows of the batch by number, int64 [new batch]."""
        self._buffers = {
            name: buffer[:, :, : self.blocks].index_select(0, indices.to(buffer.device))
            for name, buffer in self._buffers.items()
        }

    def to(self, device: torch.device | str) -> None:
        self._buffers = {name: buffer.to(device, non_blocking=True) for name, buffer in self._buffers.items()}

    @property
    def nbytes(self) -> int:
        """The bytes allocated, including unused capacity."""
        return sum(buffer.nbytes for buffer in self._buffers.values())
