"""Dictionaries, trained on sample files for levels 4 to 6, and the weights of these levels that the package has.

training.py makes dictionaries. The built-in ones have no text: they are mixer weights and adaptive maps, trained by
training/mixers.py, with the integers of a dictionary's file in .xz, which decodes faster.
"""

import hashlib
import os
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from pathlib import Path

import numpy as np

from squeeze.codecs import package_data
from squeeze.codecs.content import Content
from squeeze.codecs.deep import initial_state
from squeeze.codecs.deep.initial_state import Learned, Memory, Start
from squeeze.codecs.deep.presets import DeepPreset
from squeeze.codecs.recurrent import change as changes
from squeeze.codecs.recurrent.change import Change
from squeeze.codecs.stream import dictionary_cache, dictionary_file, levels, memory as taken
from squeeze.codecs.stream.dictionary_file import MAX_FILE, preset_of
from squeeze.codecs.stream.levels import Level
from squeeze.errors import DictionaryError, SqueezeError
from squeeze.system.limits import Limits
from squeeze.system.storage import path_of

_OF_LEARNED = 200 << 20  # most bytes that trained weights take while they are read
_OF_CHANGE = 80 << 20  # most bytes of a fine-tuned byte network while it is read
_UNPACKED = 2  # copies of the file's bytes in memory


@dataclass(frozen=True, eq=False)
class Dictionary:
    """A text and trained weights that the models of one level start with, for one kind of content. It never changes."""

    level: int
    content: Content
    text: np.ndarray  # uint8: read before each block
    learned: Learned
    identity: str  # SHA-256 of the file, in hexadecimal digits
    change: Change | None = None  # fine-tuned weights of the byte network
    memory: Memory | None = field(default=None, repr=False)  # of the text, if the cache has it

    @classmethod
    def read(cls, path: str | os.PathLike[str], *, limits: Limits | None = None) -> "Dictionary":
        """Read a dictionary's file.

        Args:
            path: path or URL.
            limits: of memory.

        Raises:
            DictionaryError: if it is not a dictionary, or damaged.
            OSError: if it cannot be read.
            LimitError: if it takes more memory than allowed.
        """
        place = path_of(path)
        status = place.stat()
        return _read(place.absolute(), status.st_mtime_ns, status.st_size, limits or Limits())

    @classmethod
    def from_bytes(cls, data: bytes, *, limits: Limits | None = None) -> "Dictionary":
        """Parse the bytes of a dictionary's file.

        Raises:
            DictionaryError: if they are not a dictionary, or damaged.
            LimitError: if it takes more memory than allowed.
        """
        file = dictionary_file.parse(data)
        header = file.header
        needed = taken.models_memory(header["level"], header["text"]) + _UNPACKED * len(data) + _OF_LEARNED
        needed += _OF_CHANGE if file.changes_network else 0
        (limits or Limits()).need_memory(needed, "the dictionary")
        content = file.content
        preset = preset_of(header["level"], content)
        identity = hashlib.sha256(data).hexdigest()
        memory = dictionary_cache.get(identity, preset, content.record, header["text"])
        try:
            text, known, change = dictionary_file.unpack(file, preset, memory.text if memory else None)
        except (SqueezeError, ValueError, StopIteration) as error:
            raise DictionaryError("not a dictionary that this version can use: train it again") from error
        return cls(header["level"], content, text, known, identity, change, memory)

    @property
    def row(self) -> Level:
        """The level that it was trained for."""
        return levels.level(self.level)

    @cached_property
    def start(self) -> Start:
        """The state that a block's models start with; the first use reads the text, unless the cache has its memory."""
        preset, memory = preset_of(self.level, self.content), self.memory
        if memory is None and self.text.size:
            memory = initial_state.read(self.text, preset, self.content.record)
            dictionary_cache.put(self.identity, preset, self.content.record, memory)
        return Start(memory, (*built_in(preset), self.learned), changes.network(self.change))


@lru_cache(2)
def _read(path: Path, modified: int, size: int, limits: Limits) -> Dictionary:
    with path.open("rb") as file:
        data = file.read(MAX_FILE + 1)  # a device may have no size
    if len(data) > MAX_FILE:
        raise DictionaryError("not a dictionary: the file is too large to be one")
    return Dictionary.from_bytes(data, limits=limits)


FOLDER = Path(__file__).parent
SUFFIX = ".safetensors.xz"
CHECKSUMS = {  # XXH3-64 of the files' contents; other weights would change coded bytes
    "text.4": 0x3D4EF57BE274AC69,
    "text.5": 0x0688EBE8EDDAE9E4,
    "text.6": 0x04CBB1C6C8741EB5,
    "executable.4": 0x763D5603BB5C682E,
    "executable.5": 0x774D6ADEBCBE6D88,
    "executable.6": 0x28E1B9EFFCB86F53,
}


def built_in(preset: DeepPreset) -> tuple[Learned, ...]:
    """Return the built-in weights that these models start with, before those of another dictionary."""
    return (_read_built_in(preset),) if preset.warm_start else ()


def built_in_start(preset: DeepPreset) -> Start:
    """Return the state that these models start with if there is no other dictionary."""
    return Start(None, built_in(preset))


@cache
def _read_built_in(preset: DeepPreset) -> Learned:
    tensors = package_data.tensors(FOLDER / f"{preset.warm_start}{SUFFIX}", CHECKSUMS[preset.warm_start])
    matrices = [tensors[name] for name in sorted(tensors)]
    remaining = iter(matrices)

    def take(rows: int, columns: int) -> np.ndarray:
        return next(remaining).reshape(rows, columns).astype(np.int64)

    kind, level = preset.warm_start.split(".")
    trained = preset_of(int(level), Content(kind))
    learned = dictionary_file.assemble(matrices[0].size, matrices[3].size, trained, take)
    return initial_state.transferred(learned, trained, preset)
