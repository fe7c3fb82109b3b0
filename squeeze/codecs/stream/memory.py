"""Estimates of a decoder's memory, so that limits are checked before it is allocated.

The raw length that a block claims cannot be checked against its coded length. A decision costs as little as 2^-24 bits,
so a few bytes may code the largest block. So the claim is checked against the limits.
"""

from functools import cache
from typing import TYPE_CHECKING

from squeeze.codecs.bytewise.presets import Preset
from squeeze.codecs.bytewise.state import table_size
from squeeze.codecs.stream import container, levels
from squeeze.numerics.bitmodels.slots import BUCKET
from squeeze.system.limits import Limits

if TYPE_CHECKING:
    from squeeze.codecs.deep.presets import DeepPreset

_BYTEWISE, _DEEP = 10 << 20, 60 << 20  # bytes of mixers and adaptive maps, whatever the block
_NETWORK = 40 << 20  # bytes of the byte network
_OF_ENTRY = 512  # bytes of memory for a block of an index
_OFTEN = 1 << 12  # entries between two checks of the limit


@cache
def _presets(number: int) -> list["Preset | DeepPreset"]:
    return [levels.level(number).models(kind) for kind in container.KINDS_OF_CONTENT]


def models_memory(number: int, size: int) -> int:
    """Estimate the bytes of a level's models for a block of `size` bytes of any content."""
    return max(_of_preset(preset, size) for preset in _presets(number))


def _of_preset(preset: "Preset | DeepPreset", size: int) -> int:
    matches = 4 * len(preset.matches) << min(max(size.bit_length(), 8), 22)
    if isinstance(preset, Preset):
        return table_size(size, preset) + matches + _BYTEWISE
    contexts = len(preset.contexts)
    buckets = min(max(size * contexts // 3, 1 << 8), preset.buckets)
    runs = 2 * contexts << min(max(size.bit_length(), 8), 20)
    network = _NETWORK if preset.network else 0
    return buckets * BUCKET + runs + matches + _DEEP + network


class EntryCounter:
    """A counter of the blocks and streams that a file lists.

    Its `add` raises LimitError if they take too much memory.
    """

    def __init__(self, limits: Limits):
        self._limits, self._count = limits, 0

    def add(self) -> None:
        self._count += 1
        if self._count % _OFTEN == 0:
            self._limits.need_memory(self._count * _OF_ENTRY, f"an index of {self._count:,} blocks or more")
