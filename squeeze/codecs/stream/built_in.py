"""What mixers and adaptive maps of levels 4 to 6 begin with: dictionaries without text, of the package.

Coding samples taught them; training/mixers.py makes them. Their files have the
integers of a dictionary's file by xz, since decoding a dictionary's file would take longer than a small file.
"""

from functools import cache
from pathlib import Path

import numpy as np

from squeeze.codecs import shipped
from squeeze.codecs.deep.learned import Learned, Start
from squeeze.codecs.deep.presets import DeepPreset
from squeeze.codecs.stream import dictionary_file

FOLDER = Path(__file__).parent
SUFFIX = ".safetensors.xz"
CHECKSUMS = {  # XXH3-64 of what is in the files: other numbers give other bytes
    "text.4": 0x9A1DC13AF8574B96,
    "text.5": 0xC66E711D76163143,
    "text.6": 0xD88B85AC6EECA75C,
    "executable.4": 0xDCBF612F1FAE3D18,
    "executable.5": 0x578D4D0E45756191,
    "executable.6": 0xF858AFE9A3643639,
}


def built_in(preset: DeepPreset) -> tuple[Learned, ...]:
    """What these models begin with, before what another dictionary says."""
    return (_read(preset),) if preset.taught else ()


def start(preset: DeepPreset) -> Start:
    """What they begin with where there is no other."""
    return Start(None, built_in(preset))


@cache
def _read(preset: DeepPreset) -> Learned:
    tensors = shipped.tensors(FOLDER / f"{preset.taught}{SUFFIX}", CHECKSUMS[preset.taught])
    matrices = [tensors[name] for name in sorted(tensors)]
    remaining = iter(matrices)

    def take(rows: int, columns: int) -> np.ndarray:
        return next(remaining).reshape(rows, columns).astype(np.int64)

    return dictionary_file.assemble(matrices[0].size, matrices[3].size, preset, take)
