"""Measure every KV cache policy: perplexity, KL divergence, bits, bytes, peak memory and time.

`fp8` is not a policy but what `quantize --kv-scheme fp8` gives a server: one scale for the keys and one for the values
of a layer, and no token in full precision. A run leaves out the policies that the record of this commit has.
"""

import argparse
import os
from collections.abc import Iterator
from pathlib import Path

import torch
from transformers import DynamicCache

from bench import records
from bench.measure import Measure, Row, option
from bench.shared.small_models import CORES
from bench.tables import Column, Listing, significant
from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.checkpoint.text import read_tokens
from squeeze.integrations.load_model import load_model
from squeeze.kv.measure import Distance, stepped
from squeeze.quant.kv_scales import round_cache, scaled_cache
from squeeze.recipes.measure import kv_eval
from squeeze.recipes.measure.kv_policies import KVEvalOptions
from squeeze.recipes.tokens import calibration_tokens

FP8 = "fp8"
_TOKENS = 16, 512  # that its scales are calibrated on
POLICIES = (
    *(FP8, "kivi:8", "kivi:4,group=32", "kivi:4", "kivi:2", "rotated:4", "rotated:2", "vidkv"),
    *("blockfloat:4", "blockfloat:4,ordered=1", "lowrank:rank=48,bits=4", "transform:4", "transform:3", "transform:2"),
    *("full+snapkv:64", "full+adakv:64", "kivi:4+snapkv:256"),
    *("archive:2", "archive:1", "archive:0.8", "archive:0.6"),
)


def rows(options: argparse.Namespace) -> Iterator[Row]:
    corpus = Path(os.environ["SQUEEZE_CORPUS"]) / "text"
    text, calibration = corpus / "wiki.eval.raw", corpus / "wiki.calibration.raw"
    torch.set_num_threads(options.threads)
    about = {"text": text.name, "windows": options.windows, "window": options.window, "context": options.context}
    measured = KVEvalOptions(windows=options.windows, window=options.window, calibration=calibration)
    done = {row["policy"] for row in records.current("kv", options.results) if about.items() <= row.items()}
    policies = [policy for policy in options.policy or POLICIES if policy not in done]
    if FP8 in policies:
        policies.remove(FP8)
        yield about | row_of(measure_fp8(options.model, text, calibration, options.context, options.windows))
    for policy in policies:
        for row in kv_eval.rows(options.model, text, (policy,), (options.context,), measured):
            yield about | row_of(row)


@torch.inference_mode()
def measure_fp8(folder: Path, text: Path, calibration: Path, context: int, windows: int) -> kv_eval.Row:
    """Measure an FP8 cache as a server has it. Its tokens are read in one pass.

    Args:
        folder: folder of the model
        text: text to measure on
        calibration: text to calibrate the scales on
        context: tokens of a window
        windows: number of windows
    """
    model, tokens = load_model(folder), read_tokens(text, folder)
    full: list[torch.Tensor] = []

    def distance() -> Distance:
        return stepped(model, tokens, lambda: DynamicCache(config=model.config), context, windows, full, piece=context)

    before = distance()
    checkpoint = Checkpoint.open(folder)
    round_cache(model, scaled_cache(checkpoint, calibration_tokens(folder, calibration, *_TOKENS, 0)))
    return kv_eval.Row(FP8, context, 8.0, distance(), before)


def row_of(row: kv_eval.Row) -> Row:
    found = {"policy": row.policy, "context": row.context, "way": row.way, "bits": row.bits}
    found |= {"perplexity": row.distance.perplexity, "percent": row.percent, "kl": row.distance.kl}
    if row.cost:
        found |= {"bytes": row.cost.bytes, "peak": row.cost.peak, "seconds": row.cost.seconds}
    return found


def policies(way: str, archives: bool = False) -> Listing:
    return Listing(
        Column("policy", "policy"),
        Column("bits", significant("bits", 4)),
        Column("perplexity above full precision", significant("percent", 4, " %")),
        Column("KL, nats a token", significant("kl", 4)),
        where=lambda row: (
            row["way"] == way and row["bits"] is not None and row["policy"].startswith("archive") == archives
        ),
        order=lambda row: (-row["bits"], row["kl"]),
    )


MEASURE = Measure(
    rows,
    key=("policy", "way", "context", "text", "windows", "window"),
    needs=("a corpus",),
    rivals=("transformers",),
    time=20,
    options=(
        option("model", type=Path, help="model folder, as `squeeze import smollm2 FOLDER` writes one"),
        option("--context", type=int, default=1024, help="tokens of a window, default: 1024"),
        option("--windows", type=int, default=4, help="number of windows, default: 4"),
        option("--window", type=int, default=64, help="latest tokens in full precision, default: 64"),
        option("--policy", nargs="+", help="policies to measure, default: all"),
        option("--threads", type=int, default=CORES, help=f"threads, default: {CORES}"),
    ),
    tables={
        "kv": policies("one pass"),
        "kv-evicted": policies("continued"),
        "kv-archived": policies("continued", archives=True),
    },
)
