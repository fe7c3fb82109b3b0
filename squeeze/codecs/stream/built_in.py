"""The dictionaries that are installed with the package: what mixers and maps beside the pretrained network begin with.

They have no text, only what coding samples of the network's training corpus taught; training/mixers.py makes them.
"""

import hashlib
from functools import cache
from pathlib import Path

from squeeze.codecs.deep.learned import Learned, Start
from squeeze.codecs.deep.presets import DeepPreset
from squeeze.codecs.stream import dictionary_file
from squeeze.codecs.stream.container import Content
from squeeze.errors import SqueezeError

FOLDER = Path(__file__).parent
IDENTITIES = {  # SHA-256 of the files: other ones give other bytes
    "text.5": "472320329ab04d7de9c01e55b2d99118032ed835683f1f009232a6d3604a11d7",
    "text.6": "9f18f8377839dccbd4096227fced5cbb8fc45ae3ee3d9a4ba640ded075576971",
}


def built_in(preset: DeepPreset) -> tuple[Learned, ...]:
    """What these models begin with, before what another dictionary says."""
    return (_read(preset.taught),) if preset.taught else ()


def start(preset: DeepPreset) -> Start:
    """What they begin with where there is no other."""
    return Start(None, built_in(preset))


@cache
def _read(name: str) -> Learned:
    file = (FOLDER / name).with_name(f"{name}{dictionary_file.SUFFIX}")
    damaged = f"the file {file.name} of the package is missing or damaged: install squeeze again"
    try:
        data = file.read_bytes()
    except OSError as error:
        raise SqueezeError(f"{damaged} ({error.strerror or error})") from error
    if hashlib.sha256(data).hexdigest() != IDENTITIES[name]:
        raise SqueezeError(f"{damaged} (its checksum differs)")
    header, parts = dictionary_file.parse(data)
    content = Content(header["content"], header["record"])
    preset = dictionary_file.preset_of(header["level"], header["numerics"], content)
    return dictionary_file.unpack(header, parts, preset)[1]
