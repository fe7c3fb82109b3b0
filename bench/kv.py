"""Every KV cache policy in one table: perplexity, KL, bits, bytes, peak and time; and a plot of quality against bytes.

python bench/kv.py MODEL [--context 1024 ...] [--windows 8] [--window 64] [--policy ...] [--against quanto] [--plot PNG]

MODEL is a folder (`squeeze import smollm2 MODEL` writes one). Texts are wiki.eval.raw and wiki.calibration.raw under
$SQUEEZE_CORPUS/text unless given. Before anything is measured, a cache without coding is compared with transformers'
DynamicCache, logit for logit. The plot needs matplotlib (pip install 'squeeze[bench]').
"""

import argparse
import os
from pathlib import Path

import torch

from squeeze.checkpoint.text import read_tokens
from squeeze.commands.kv_eval import _HEAD, _ROW
from squeeze.integrations.load_model import load_model
from squeeze.kv import FullPrecision, QuantizedKVCache
from squeeze.recipes.kv_eval import KVEvalOptions, Row, rows

POLICIES = (
    "kivi:8",
    "kivi:4,group=32",
    "kivi:4",
    "kivi:2,group=32",
    "kivi:2",
    "rotated:4",
    "rotated:3",
    "rotated:2",
    "vidkv",
    "blockfloat:4",
    "lowrank:rank=48,bits=4",
    "transform:4.5",
    "transform:4",
    "transform:3",
    "transform:2",
    "transform:1.6",
    "kivi:mean=3",
    "blockfloat:4,ordered=1",
    "kivi:4+window:256",
    "kivi:4+snapkv:256",
    "kivi:2+softprune:128",
)


def main() -> None:
    corpus = Path(os.environ.get("SQUEEZE_CORPUS", ".")) / "text"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--text", type=Path, default=corpus / "wiki.eval.raw")
    parser.add_argument("--calibrate", type=Path, default=corpus / "wiki.calibration.raw")
    parser.add_argument("--context", type=int, nargs="+", default=[1024])
    parser.add_argument("--windows", type=int, default=8)
    parser.add_argument("--window", type=int, default=64)
    parser.add_argument("--policy", nargs="+", default=POLICIES)
    parser.add_argument("--against", nargs="*", default=[])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    check(options.model, options.text)
    print(_ROW.format(*_HEAD))
    found = []
    measured = KVEvalOptions(
        windows=options.windows,
        window=options.window,
        against=tuple(options.against),
        calibrate=options.calibrate,
    )
    for row in rows(options.model, options.text, tuple(options.policy), tuple(options.context), measured):
        found.append(row)
        print(_ROW.format(*row.cells()), flush=True)
    if options.plot:
        draw(found, options.plot)


@torch.inference_mode()
def check(folder: Path, text: Path) -> None:
    """Without coding, logits are those of DynamicCache, in one piece and token by token."""
    from transformers import DynamicCache

    model, ids = load_model(folder), read_tokens(text, folder)[None, :48]
    caches = DynamicCache(config=model.config), QuantizedKVCache(model.config, FullPrecision())
    for part in (ids[:, :40], *ids[:, 40:].split(1, 1)):
        expected, found = (model(part, past_key_values=cache).logits for cache in caches)
        assert torch.equal(expected, found), "a cache without coding differs from DynamicCache"


def draw(found: list[Row], path: Path) -> None:
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    _, axes = pyplot.subplots(figsize=(8, 5))
    for row in found:
        if row.cost and row.bits and row.way != "stepped":
            place = row.cost.bytes / 2**20, row.distance.kl
            axes.scatter(*place, marker="o" if row.way == "one pass" else "^")
            axes.annotate(Path(row.policy).name, place, (4, 2), textcoords="offset points", fontsize=7)
    axes.set(xscale="log", yscale="log", xlabel="cache, MiB", ylabel="KL from full precision, nats a token")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter("{x:g}")
    axes.set_title("triangles: what follows a prompt, after eviction", fontsize=8)
    pyplot.savefig(path, dpi=150, bbox_inches="tight")


if __name__ == "__main__":
    main()
