"""What models that were taught bring: prefixes of files of a machine with what comes with squeeze, and without it.

Files are of every kind, as those of monotone.py. One that is of a kind that nothing was taught for is left out. With
`--train` it is dictionaries for a kind of content that are measured, made of files in one folder for files in another:
mixers alone, and with texts of several sizes. Bytes are those of the code, or of whole files with a dictionary; means
are geometric, of the files' ratios.
"""

import argparse
import random
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

import squeeze
from bench.entry import Row
from bench.measures.monotone import chosen, first
from bench.shared.texts import found
from squeeze.codecs.bytewise import coder as bytewise
from squeeze.codecs.deep import coder as deep
from squeeze.codecs.presets import TAUGHT, Preset
from squeeze.codecs.stream import blocks, built_in, levels

_LEAST, _MOST = 1_000, 12_000  # bytes of a file that is measured with dictionaries
_SAMPLE = 20_000  # bytes of a file that is trained on
_TEXTS = (0, 112 << 10, 1 << 20)  # of dictionaries


def rows(options: argparse.Namespace) -> Iterator[Row]:
    yield from _with_dictionaries(options) if options.train else _with_what_is_built_in(options)


def _with_what_is_built_in(options: argparse.Namespace) -> Iterator[Row]:
    """One row a kind of content, level and prefix."""
    paths = [*map(found, options.files)] or chosen(options.folder, options.count)
    for count in map(int, options.prefixes.split(",")):
        data = [np.frombuffer(first(path, count), np.uint8) for path in paths]
        for kind in TAUGHT:
            of_kind = [part for part in data if part.size and blocks.content(part).kind == kind]
            for level in map(int, options.levels.split(",")):
                sizes = [_sizes(part, level, kind) for part in of_kind]
                if sizes:
                    yield {"kind": kind, "first": count, "level": level, "text": None} | _compared(sizes)


def _sizes(data: np.ndarray, level: int, kind: str) -> tuple[int, int]:
    """Bytes without what was taught, and with it, which are decoded."""
    models, filtered = levels.level(level).models(kind), data.copy()
    if kind == "executable":
        blocks.calls_to_absolute(filtered)
    if isinstance(models, Preset):
        plain = bytewise.encode(filtered, replace(models, taught=""))
        known = bytewise.encode(filtered, models)
        decoded = bytewise.decode(known, data.size, models) if known else filtered
    else:
        start = built_in.start(models)
        plain = deep.encode(filtered, replace(models, taught=""))
        known = deep.encode(filtered, models, start=start)
        decoded = deep.decode(known, data.size, models, start=start) if known else filtered
    if not np.array_equal(decoded, filtered):
        sys.exit(f"Error: level {level} changed the bytes")
    return len(plain or data), len(known or data)


def _with_dictionaries(options: argparse.Namespace) -> Iterator[Row]:
    """One row a level, prefix and size of text, of files with an ending."""
    samples = [path.read_bytes()[:_SAMPLE] for path in _files(options.train, options.ending, _LEAST, 1 << 20)]
    measured = _files(options.folder, options.ending, _LEAST, _MOST)[: options.count]
    for level in map(int, options.levels.split(",")):
        for size in _TEXTS:
            known = squeeze.train(_first(samples, max(2 * size, 1 << 20)), level=level, text_size=size)
            for count in map(int, options.prefixes.split(",")):
                data = [path.read_bytes()[:count] for path in measured]
                plain = (len(squeeze.compress(one, level)) for one in data)
                sizes = list(zip(plain, (len(squeeze.compress(one, dictionary=known)) for one in data), strict=True))
                yield {"kind": f"*{options.ending}", "first": count, "level": level, "text": size} | _compared(sizes)


def _files(folder: Path, ending: str, least: int, most: int) -> list[Path]:
    paths = [path for path in sorted(folder.rglob(f"*{ending}")) if path.is_file() and not path.is_symlink()]
    paths = [path for path in paths if least <= path.stat().st_size <= most]
    random.Random(1).shuffle(paths)
    return paths


def _first(samples: Sequence[bytes], size: int) -> list[bytes]:
    """So many of them that they have about `size` bytes."""
    taken: list[bytes] = []
    while size > 0 and len(taken) < len(samples):
        taken.append(samples[len(taken)])
        size -= len(taken[-1])
    return taken


def _compared(sizes: Sequence[tuple[int, int]]) -> Row:
    ratios = [known / plain for plain, known in sizes]
    mean, worst = round(statistics.geometric_mean(ratios), 4), round(max(ratios), 4)
    plain, known = (sum(pair[k] for pair in sizes) for k in (0, 1))
    return {"files": len(sizes), "without": plain, "with": known, "mean ratio": mean, "worst": worst}
