"""What `squeeze train --minutes` brings on records that it never saw, beside what costs no minutes.

The records are those of priors.py: all is trained on the same ones, none of which is measured, and every result is
decoded. `squeeze train --minutes` holds back samples of its own, by which it decides whether to keep the network; they
are among those that the plain dictionary and zstd learn from. Bytes are means of whole files without the dictionary;
zstd's is the best of several sizes on what is measured.
"""

import argparse
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import squeeze
from bench.entry import Row
from bench.measures.priors import DICTIONARIES, coded_bytes, measure_zstd, sets, write
from squeeze.recipes.train.distil import Training
from squeeze.recipes.train.tune import tune

_BATCH, _BATCH_OF_GPU = 4, 64  # as the command has them


def rows(options: argparse.Namespace) -> Iterator[Row]:
    for name, train, records in sets(options.sets.split(","), options.train, options.records):
        with tempfile.TemporaryDirectory() as folder:
            yield {"set": name} | _row(options, train, records, Path(folder))


def _row(options: argparse.Namespace, train: list[bytes], records: list[bytes], folder: Path) -> Row:
    samples = write(train, folder / "train")
    write(records, folder / "records")
    level, out = options.level, folder / "own.sqzp"
    batch = _BATCH if options.device == "cpu" else _BATCH_OF_GPU
    done = tune(samples, out, Training(minutes=options.minutes, device=options.device, batch=batch), level=level)
    given = {"alone": None, "dictionary": squeeze.train(samples, level=level), "network": done.dictionary}
    sizes: dict[str, float | None] = {"zstd": None}
    if shutil.which("zstd"):
        sizes["zstd"] = round(min(measure_zstd(size, records, folder)[1] for size in DICTIONARIES), 2)
    for way, dictionary in given.items():
        sizes[way] = round(coded_bytes(records, level, dictionary) / len(records), 2)
    row = {"records": len(records), "raw": round(sum(map(len, records)) / len(records), 1), "trained": len(train)}
    row |= {"level": level, "minutes": options.minutes, "steps": done.steps, "kept": done.kept, **sizes}
    shares = {
        f"of {way}": round(sizes["network"] / sizes[way], 4) for way in ("zstd", "alone", "dictionary") if sizes[way]
    }
    return row | shares | {"learned": out.stat().st_size}
