"""What a step of decoding takes on the CPU with each KV cache policy, beside full precision's.

One cache reads a context, and all others are given its keys and values. Then each step is taken with all of them in
turn, so that other work on the machine slows all alike; the median over steps is of processor time.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import DynamicCache

from bench.entry import Row
from squeeze.checkpoint.pretrained import load_tokenizer
from squeeze.checkpoint.text import read_tokens
from squeeze.integrations.load_model import load_model
from squeeze.kernels.kv_attention import install
from squeeze.kv import FullPrecision, QuantizedKVCache
from squeeze.kv.contract import CACHE
from squeeze.kv.measure import prefill
from squeeze.kv.memory import nbytes_of
from squeeze.recipes.kv_eval import FULL, KVEvalOptions, policies_of
from squeeze.recipes.kv_usage import usage_of

POLICIES = ("transform:4", "transform:3", "transform:2", "rotated:4", "rotated:3", "rotated:2", "kivi:4", "kivi:2")
_PIECE = 512  # tokens
_WARM = 3  # steps that do not count


def rows(options: argparse.Namespace) -> Iterator[Row]:
    torch.set_num_threads(options.threads)
    corpus = Path(os.environ.get("SQUEEZE_CORPUS", ".")) / "text"
    model, tokenizer = load_model(options.model, getattr(torch, options.dtype)), load_tokenizer(options.model)
    chosen = KVEvalOptions(calibrate=options.calibrate or corpus / "wiki.calibration.raw", window=options.window)
    policies = policies_of(model, tokenizer, tuple(options.policy or POLICIES), chosen, usage_of(model))
    install(model)
    kinds: dict[str, Callable[[], Any]] = {FULL: partial(QuantizedKVCache, model.config, FullPrecision())}
    kinds["transformers' DynamicCache"] = partial(DynamicCache, config=model.config)
    kinds |= {name: partial(QuantizedKVCache, model.config, policy) for name, policy in policies.items()}
    tokens = read_tokens(options.text or corpus / "wiki.eval.raw", options.model)
    about = {name: getattr(options, name) for name in ("dtype", "window", "threads", "steps")}
    for context in options.context:
        for row in in_turns(model, tokens[: context + _WARM + options.steps], context, kinds):
            yield {**row, **about}


@torch.inference_mode()
def in_turns(model: Any, tokens: torch.Tensor, context: int, kinds: Mapping[str, Callable[[], Any]]) -> Iterator[Row]:
    """times: of the first cache's seconds."""
    caches = {name: make() for name, make in kinds.items()}
    first, *others = caches.values()
    prefill(model, tokens[:context], first)
    for cache in others:
        give(first, cache)
    spent: dict[str, list[float]] = {name: [] for name in caches}
    for token in tokens[context:].split(1):
        for name, cache in caches.items():
            spent[name].append(_took(partial(model, token[None], **{CACHE: cache})))
    seconds = {name: statistics.median(times[_WARM:]) for name, times in spent.items()}
    base, *_ = seconds.values()
    for name, cache in caches.items():
        row = {"policy": name, "context": context, "bytes": nbytes_of(cache)}
        yield {**row, "seconds": seconds[name], "times": seconds[name] / base}


def give(source: Any, target: Any) -> None:
    """All that a cache holds, some tokens at a time."""
    for index, layer in enumerate(source.layers):
        for keys, values in zip(layer.keys.split(_PIECE, 2), layer.values.split(_PIECE, 2), strict=True):
            target.update(keys, values, index)


def _took(run: Callable[[], Any]) -> float:
    started = time.process_time()
    run()
    return time.process_time() - started
