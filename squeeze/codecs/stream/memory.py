"""What restoring takes of memory, told before it is taken.

The bytes that a block claims cannot be told from its coded bytes: the coder takes as little as 2^-24 of a bit for a
decision, so that a handful of bytes may stand for the longest block. What is claimed is held against the limits
instead, before anything is taken.
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

_BYTEWISE, _DEEP = 10 << 20, 60 << 20  # bytes of what does not grow with a block: mixers and adaptive maps
_NETWORK = 40 << 20  # and of a network beside them
_OF_ENTRY = 512  # bytes that Python takes for what an index says of a block
_OFTEN = 1 << 12  # entries between two looks at the limit


@cache
def _presets(number: int) -> list["Preset | DeepPreset"]:
    return [levels.level(number).models(kind) for kind in container.KINDS_OF_CONTENT]


def models_memory(number: int, size: int) -> int:
    """Bytes of the models of a level for `size` bytes of any content."""
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
    """Counts the blocks and streams that a file tells of. Raises LimitError where they become too many."""

    def __init__(self, limits: Limits):
        self._limits, self._count = limits, 0

    def add(self) -> None:
        self._count += 1
        if self._count % _OFTEN == 0:
            self._limits.need_memory(self._count * _OF_ENTRY, f"an index of {self._count:,} blocks or more")
