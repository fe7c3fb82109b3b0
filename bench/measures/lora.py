"""Measure a fine-tune as a LoRA adapter, compared with its 2-bit difference from the base at equal bytes.

The fine-tune is made first (bench/shared/trained_models.py): matrices of the blocks of the bundled model, on Python
source code. Bytes are those of the weights' file after `squeeze pack`, which stores factors on grids as codes and
scales. Adapters are merged, and evaluated with the fine-tune as the original, on code that was held out from it.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import squeeze
from bench.measure import Measure, Row, option
from bench.shared.small_models import WORK, original
from bench.shared.trained_models import TUNING_STEPS, code, tuned
from bench.tables import Column, Listing, compared_with
from squeeze.checkpoint.pretrained import load_tokenizer
from squeeze.engine.quality import evaluate
from squeeze.integrations.load_model import load_model
from squeeze.packing.manifest import MANIFEST

DIFFERENCE = "2 bits"
ROWS: dict[str, dict[str, Any]] = {
    DIFFERENCE: {"bits": 2},
    "2 bits, 2:4": {"bits": 2, "pattern": "2:4"},
    "rank 32": {"format": "peft", "rank": 32},
    "bytes of 2 bits": {"format": "peft", "target_bytes": DIFFERENCE},
    "bytes of 2 bits, 4-bit factors, one rank": {"format": "peft", "rank": DIFFERENCE, "bits": 4},
    "bytes of 2 bits, 4-bit factors": {"format": "peft", "target_bytes": DIFFERENCE, "bits": 4},
    "bytes of 2 bits, 3-bit factors": {"format": "peft", "target_bytes": DIFFERENCE, "bits": 3},
}


def rows(options: argparse.Namespace) -> Iterator[Row]:
    torch.set_num_threads(options.threads)
    base, target = original(options.work, adapted=False), options.work / "tuned"
    if not target.is_dir():
        tuned(base, target, options.steps)
    calibration, (seen, held_out) = options.work / "code.txt", code()
    calibration.write_text(seen)
    ids = torch.tensor(load_tokenizer(target)(held_out, verbose=False)["input_ids"])
    wanted, equal = load_model(target), 0
    before = evaluate(load_model(base), ids, window=512, windows=options.windows, original=wanted)
    yield {"name": "base", "perplexity": before.perplexity, "kl": before.kl_mean, "bytes": 0}
    for name in options.rows.split(";") if options.rows else ROWS:
        settings = ROWS[name] | {"calibration": calibration, "samples": options.samples, "overwrite": True}
        if "target_bytes" in settings:
            settings["target_bytes"] = equal
        if "rank" in settings and settings["rank"] == DIFFERENCE:
            settings["rank"] = rank_of(equal, base, settings["bits"])
        out, dense = options.work / "lora", options.work / "lora-dense"
        report = squeeze.delta(base, target, out=out, **settings)
        squeeze.densify(out, dense, overwrite=True, base=base)
        found = evaluate(load_model(dense), ids, window=512, windows=options.windows, original=wanted)
        stored = packed_bytes(out, options.work / "lora-packed")
        equal = stored if name == DIFFERENCE else equal
        ranks = [layer.rank for layer in report.layers if layer.rank]
        row: Row = {"name": name, "perplexity": found.perplexity, "kl": found.kl_mean, "bytes": stored}
        yield row | {"least_rank": min(ranks, default=None), "most_rank": max(ranks, default=None)}


def rank_of(size: int, base: Path, bits: int) -> int:
    """Return the one rank of all matrices whose factors take a number of bytes."""
    model = load_model(base)
    total = sum(sum(one.shape) for name, one in model.named_parameters() if one.ndim == 2 and "layers" in name)
    return int(8 * size / (total * (bits + 0.25)))


def packed_bytes(folder: Path, out: Path) -> int:
    """Return the bytes of a folder's weights after packing."""
    if not (folder / MANIFEST).is_file():
        squeeze.pack(folder, out, level="archive", overwrite=True)
        folder = out
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


MEASURE = Measure(
    rows,
    key=("name",),
    needs=("the bundled model",),
    time=40,
    options=(
        WORK,
        option("--rows", help="rows to measure, separated by semicolons, default: all"),
        option("--steps", type=int, default=TUNING_STEPS, help="steps of the fine-tune, default: 32"),
        option("--samples", type=int, default=24, help="sequences of 512 tokens to calibrate on, default: 24"),
        option("--windows", type=int, default=24, help="windows of 512 tokens to evaluate on, default: 24"),
        option("--threads", type=int, default=1, help="threads, default: 1"),
    ),
    tables={
        "lora": Listing(
            Column("stored as", "name"),
            Column("bytes", "bytes", ",d"),
            Column("ranks from", "least_rank"),
            Column("to", "most_rank"),
            Column("KL from the fine-tune", "kl", ".5f"),
            Column("of the 2-bit difference's", "of base", ".2f"),
            prepare=compared_with(DIFFERENCE, "kl"),
        )
    },
)
