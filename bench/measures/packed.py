"""Measure a packed model on the CPU: processor time of a token on one thread, compared with the same model in bf16.

The model is a Llama of random weights, so that what is measured is the reading of weights. Logits of exact products are
compared with those of the dense model, bit for bit.
"""

import argparse
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import squeeze
from bench.measure import Measure, Row, in_turns, option
from bench.tables import Column, Listing
from squeeze.integrations.load_model import load_model

_DENSE, _TOKENS = "bf16", 12  # tokens of a run
_LAYERS, _HIDDEN, _INNER, _VOCABULARY = 8, 1024, 2816, 8192


def rows(arguments: argparse.Namespace) -> Iterator[Row]:
    """Yield a row for the dense model, and one for each level and kind of product."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="squeeze-bench-") as name:
        models, sizes = _models(Path(name))
        times = in_turns({case: partial(_seconds, model, _TOKENS) for case, model in models.items()}, arguments.runs)
        medians = {case: median(kept) for case, kept in times.items()}
        for case, seconds in medians.items():
            found: Row = {"weights": case, "bytes": sizes[case], "ms a token": 1000 * seconds}
            yield found | {"of bf16": round(medians[_DENSE] / seconds, 3)}


def _models(root: Path) -> tuple[dict[str, Any], dict[str, int]]:
    """Return the models with the bytes of their files, by name of the case."""
    sizes = {"hidden_size": _HIDDEN, "intermediate_size": _INNER, "num_hidden_layers": _LAYERS}
    heads = {"num_attention_heads": 16, "num_key_value_heads": 4, "tie_word_embeddings": True}
    config = LlamaConfig(vocab_size=_VOCABULARY, **sizes, **heads)
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(root / _DENSE)
    models: dict[str, Any] = {_DENSE: load_model(root / _DENSE, torch.bfloat16)}
    bytes_of = {_DENSE: (root / _DENSE / "model.safetensors").stat().st_size}
    for level in ("runtime", "fast"):
        squeeze.pack(root / _DENSE, root / level, level=level)
        for product in ("exact", "fused"):
            models[f"{level}, {product}"] = load_model(root / level, torch.bfloat16, product=product)
            bytes_of[f"{level}, {product}"] = (root / level / "model.safetensors").stat().st_size
        if not torch.equal(_logits(models[f"{level}, exact"]), _logits(models[_DENSE])):
            raise SystemExit(f"Error: level {level} has other logits than the dense model")
    return models, bytes_of


@torch.no_grad()
def _logits(model: Any) -> torch.Tensor:
    logits: torch.Tensor = model(torch.arange(1, 9)[None]).logits
    return logits


@torch.no_grad()
def _seconds(model: Any, tokens: int) -> float:
    """Return the processor time of a token, of `tokens` after a prompt that does not count."""
    cache = model(torch.arange(1, 9)[None], use_cache=True).past_key_values
    start = time.process_time()
    for token in range(tokens):
        model(torch.tensor([[token]]), past_key_values=cache, use_cache=True)
    return (time.process_time() - start) / tokens


MEASURE = Measure(
    rows,
    key=("weights",),
    time=3,
    options=(option("--runs", type=int, default=5, help="runs, of which the median counts; default: 5"),),
    tables={
        "packed": Listing(
            Column("weights", "weights"),
            Column("bytes", "bytes", ","),
            Column("processor time of a token, ms", "ms a token", ".1f"),
            Column("speed, of bf16", "of bf16", ".2f"),
        )
    },
)
