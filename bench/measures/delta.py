"""What a fine-tune takes as its difference from a base, and what that costs, beside ways to compress it alone.

The fine-tune is fine_tune.py's, of the bundled model; all ways that look at inputs calibrate on the text that it was
trained on. A run that was stopped goes on where it was. Sizes are of the files of weights, packed but for the
fine-tune's; perplexity and KL divergence from the fine-tune are taken on text that was held out.
"""

import argparse
import math
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

import squeeze
from bench.entry import Row
from bench.shared.fine_tune import fine_tune, write_texts
from squeeze.checkpoint.text import read_tokens
from squeeze.engine.quality import evaluate
from squeeze.integrations.load_model import load_model
from squeeze.lm.models import bundled_path
from squeeze.packing.folder import MANIFEST
from squeeze.quant.gptq import GPTQ
from squeeze.recipes.import_gguf import import_gguf

_DELTAS = {
    "2:4 in 2 bits": {"pattern": "2:4", "bits": 2},
    "2:4 in 2 bits and embeddings exactly": {"pattern": "2:4", "bits": 2, "embedding_bits": 0},
    "2:4 in 4 bits": {"pattern": "2:4", "bits": 4},
    "2 bits": {"bits": 2},
    "3 bits": {"bits": 3},
    "4 bits": {"bits": 4},
}


def rows(options: argparse.Namespace) -> Iterator[Row]:
    torch.set_num_threads(options.threads)
    options.work.mkdir(parents=True, exist_ok=True)
    made = f"tuned-{options.steps}-{options.rate:g}" + ("-frozen" if options.frozen else "")
    base, tuned = options.work / "base", options.work / made
    train, held_out = write_texts(options.work)
    if not base.is_dir():
        import_gguf(bundled_path(), base)
    if not tuned.is_dir():
        fine_tune(base, train, tuned, options.steps, options.rate, options.frozen)
    tokens, original, raw = read_tokens(held_out, base), load_model(tuned), weights_of(tuned)
    shared = {"calibration": train, "samples": options.samples, "overwrite": True, "resume": True}
    wanted = ways(base, tuned, shared)
    for name in options.rows.split(",") if options.rows else ["fine-tune", "base", *wanted]:
        out = {"fine-tune": tuned, "base": base}.get(name)
        if is_made := out is None:
            words = re.sub(r"\W+", "-", f"{name} of {made} by {options.samples}")
            out = options.work / words
            if not out.is_dir():  # else of a run that was stopped
                wanted[name](out)
        model = load_model(tuned if name == "lossless difference" else out, base=base if name in _DELTAS else None)
        quality = evaluate(model, tokens, windows=options.windows, original=original)
        size = raw if name == "fine-tune" else packed_size(out)
        if is_made:
            shutil.rmtree(out)
        yield {
            "name": name, "steps": options.steps, "rate": options.rate, "frozen": options.frozen,
            "samples": options.samples, "windows": options.windows, "bytes": size, "times smaller": raw / size,
            "loss": math.log(quality.perplexity), "kl": quality.kl_mean, "top1": quality.top1_agreement,
        }  # fmt: skip


def ways(base: Path, tuned: Path, shared: dict) -> dict[str, Callable[[Path], object]]:
    """By name, what writes a folder."""
    return {
        **{
            name: lambda out, how=how: squeeze.delta(base, tuned, out=out, **how, **shared)
            for name, how in _DELTAS.items()
        },
        "all by GPTQ in 4 bits": lambda out: squeeze.quantize(tuned, GPTQ(bits=4), out=out, **shared),
        "lossless difference": lambda out: squeeze.pack(tuned, out, base=base),
    }


def packed_size(folder: Path) -> int:
    """Bytes of a folder's files of weights, packed."""
    if (folder / MANIFEST).is_file():
        return weights_of(folder)
    packed = folder.with_name("packed")
    squeeze.pack(folder, packed, overwrite=True)
    return weights_of(packed)


def weights_of(folder: Path) -> int:
    """Bytes of the files of weights."""
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))
