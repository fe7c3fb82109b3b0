"""Whether a file is ever larger than `xz -9e` makes it, by more than some bytes: files of every kind, each proved."""

import argparse
import lzma
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from bench.entry import Row
from bench.measures.monotone import chosen, first, size
from bench.shared.made_numbers import made
from bench.shared.texts import found

SLACK = 32  # bytes that a file may be larger than xz makes it


def rows(options: argparse.Namespace) -> Iterator[Row]:
    """One row for each level and kind of file, and one for each file that is larger."""
    levels = [int(level) for level in options.levels.split(",")]
    paths = {"given": [*map(found, options.files)], "of the machine": of_machine(options)}
    for name, of_kind in paths.items():
        yield from _compared(name, ((str(path), first(path, options.most)) for path in of_kind), levels)
    yield from _compared("made", made(options.made), levels)


def of_machine(options: argparse.Namespace) -> list[Path]:
    """As many files below each of the folders, of every kind, none too long; always the same ones."""
    folders = [folder for folder in options.folders.split(":") if Path(folder).is_dir()]
    counts = [options.count * (i + 1) // len(folders) - options.count * i // len(folders) for i in range(len(folders))]
    below = (chosen(Path(folder), count, options.most) for folder, count in zip(folders, counts, strict=True))
    return list(chain.from_iterable(below))


def _compared(name: str, inputs: Iterator[tuple[str, bytes]], levels: list[int]) -> Iterator[Row]:
    files, raw, xz = 0, 0, 0
    ours, larger, worst = (dict.fromkeys(levels, 0) for _ in range(3))
    for file, data in inputs:
        files, raw = files + 1, raw + len(data)
        theirs = len(lzma.compress(data, preset=9 | lzma.PRESET_EXTREME))
        xz += theirs
        for level in levels:
            coded = size(data, level)
            ours[level] += coded
            worst[level] = max(worst[level], coded - theirs)
            if coded > theirs + SLACK:
                larger[level] += 1
                yield {"file": file, "raw": len(data), "level": level, "bytes": coded, "xz -9e": theirs}
    for level in levels if files else ():
        yield (
            {"kind": name, "level": level, "files": files, "raw": raw, "bytes": ours[level], "xz -9e": xz}
            | {"larger": larger[level], "worst": worst[level]}
        )
