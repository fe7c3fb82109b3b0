"""Measurements of `squeeze kv-eval`: quality in one pass, bytes and time of decoding, and passkey retrieval."""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch

from squeeze.checkpoint.causal import check_finite
from squeeze.errors import SqueezeError
from squeeze.kv.base import Policy
from squeeze.kv.cache import QuantizedKVCache
from squeeze.kv.contract import CACHE
from squeeze.kv.memory import PeakMemory, nbytes_of, tensors_of
from squeeze.kv.teacher import teacher_forced
from squeeze.numerics.intervals import interval

__all__ = ["PIECE", "Cost", "Distance", "Prompt", "decoding", "nominal_bits", "passkeys", "quality", "stepped"]

_POSITIONS = 128  # whose log-probabilities are in memory at once, and that are a block of the intervals
PIECE = 32  # tokens read through a cache at a time to measure it
_CHUNK = 512  # tokens of a prompt read at a time


@dataclass(frozen=True)
class Distance:
    """The distance of a cache from full precision.

    Attributes:
        perplexity: exp of the mean negative log-likelihood.
        kl: KL(full precision || policy), the mean in nats per token.
        percent: The increase of the perplexity over full precision.
        intervals: 95 % confidence intervals of these, see numerics/intervals.py.
    """

    perplexity: float
    kl: float
    intervals: dict[str, list[float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Cost:
    """The cost of decoding with a cache.

    Attributes:
        bytes: Bytes allocated by the cache after `tokens` tokens.
        tokens: The number of tokens in the cache.
        peak: The most bytes of tensors alive while decoding, without the weights.
        seconds: The median time per token.
    """

    tokens: int
    bytes: int
    peak: int
    seconds: float


@torch.inference_mode()
def nominal_bits(policy: Policy, model: Any) -> float:
    """Return the bits per coded value in the mean over the model, including scales; 16.0 if nothing is coded."""
    cache = QuantizedKVCache(model.config, policy)
    model(torch.zeros((1, 1), dtype=torch.int64, device=model.device), **{CACHE: cache})
    return cache.nominal_bits or 16.0


@torch.inference_mode()
def quality(
    model: Any,
    tokens: torch.Tensor,
    policies: dict[str, Policy],
    context: int,
    windows: int,
    progress: Callable[[int], None] = lambda n: None,
) -> dict[str, Distance]:
    """Measure perplexity and KL from full precision for each policy and for "full precision".

    Args:
        model: The model.
        tokens: The text [T].
        policies: Policies by name.
        context: The number of tokens of a window.
        windows: The number of windows.
        progress: Called as work is done.

    Raises:
        SqueezeError: The text is shorter than a window.
    """
    blocks: dict[str, list[_Block]] = {name: [] for name in ("full precision", *policies)}
    windows = min(windows, len(tokens) // context)
    if not windows or context < 2:
        raise SqueezeError(f"the text has {len(tokens)} tokens: too few for a context of {context}")
    for window in range(windows):
        ids = tokens[window * context : (window + 1) * context].to(model.device)
        full = model(ids[None], use_cache=False).logits[0]
        check_finite(model, full, ids[None])
        blocks["full precision"] += _against(full, full, ids)
        for name, policy in policies.items():
            with teacher_forced(model, policy):
                logits = model(ids[None], use_cache=False).logits[0]
            blocks[name] += _against(logits, full, ids)
            progress(1)
    return {name: _distance(sums) for name, sums in blocks.items()}


class _Block(NamedTuple):
    """Sums over consecutive positions: negative log-likelihood, KL from `full`, and the increase of the first over
    `full`.
    """

    tokens: int
    loss: float
    divergence: float
    rise: float


def _distance(blocks: Sequence[_Block]) -> Distance:
    counts, losses, divergences, rises = zip(*blocks, strict=True)
    count, intervals = sum(counts), {}
    for name, sums, scale in (
        ("perplexity", losses, math.exp),
        ("kl", divergences, float),
        ("percent", rises, lambda rise: 100 * math.expm1(rise)),
    ):
        if bounds := interval(sums, counts):
            intervals[name] = [scale(bound) for bound in bounds]
    return Distance(math.exp(sum(losses) / count), sum(divergences) / count, intervals)


def _against(logits: torch.Tensor, full: torch.Tensor, ids: torch.Tensor) -> list[_Block]:
    """Return the sums over the positions of a window. logits are [L, V], ids [L]."""
    blocks = []
    for first in range(0, len(ids) - 1, _POSITIONS):
        span = slice(first, min(first + _POSITIONS, len(ids) - 1))
        ours, theirs = logits[span].float().log_softmax(-1), full[span].float().log_softmax(-1)
        targets = ids[span.start + 1 : span.stop + 1, None]
        loss, their_loss = (-x.gather(1, targets).double().sum().item() for x in (ours, theirs))
        divergence = (theirs.exp() * (theirs - ours)).sum(-1).double().sum().item()
        blocks.append(_Block(len(targets), loss, divergence, loss - their_loss))
    return blocks


@dataclass(frozen=True)
class Prompt:
    """Tokens that are read at once before a measurement, and not counted.

    Attributes:
        tokens: The number of tokens.
        stored: Returns a cache to go on with in place of the one that has read them.
    """

    tokens: int
    stored: Callable[[Any], Any] = lambda cache: cache


@torch.inference_mode()
def stepped(
    model: Any,
    tokens: torch.Tensor,
    make_cache: Callable[[], Any],
    context: int,
    windows: int,
    full: list[torch.Tensor],
    piece: int = PIECE,
    prompt: Prompt | None = None,
) -> Distance:
    """Measure perplexity with the cache itself, reading `piece` tokens at a time, so nearly as decoding would.

    Args:
        model: The model.
        tokens: The text [T].
        make_cache: Creates an empty cache.
        context: The number of tokens of a window.
        windows: The number of windows.
        full: The logits of each window with a full-precision cache. If empty, those of this cache are stored there.
        piece: The number of tokens that are read at a time.
        prompt: What each window begins with.
    """
    blocks: list[_Block] = []
    windows, fills = min(windows, len(tokens) // context), not full
    for window in range(windows):
        ids, cache = tokens[window * context : (window + 1) * context].to(model.device), make_cache()
        if prompt:
            model(ids[None, : prompt.tokens], **{CACHE: cache}, logits_to_keep=1)
            ids, cache = ids[prompt.tokens :], prompt.stored(cache)
        pieces = [model(some[None], **{CACHE: cache}).logits[0] for some in ids.split(piece)]
        logits = torch.cat(pieces)
        check_finite(model, logits, ids[None])
        if fills:
            full.append(logits.to(torch.bfloat16) if context > 1024 else logits)
        blocks += _against(logits, full[window].to(logits.dtype), ids)
    return _distance(blocks)


def prefill(model: Any, ids: torch.Tensor, cache: Any) -> torch.Tensor:
    """Read ids [L] into a cache, in pieces unless its policy needs all at once, and return the logits [V] after the
    last.
    """
    policy: Policy | None = getattr(cache, "policy", None)
    for chunk in ids.split(len(ids) if policy and policy.observes else _CHUNK):
        output = model(chunk[None], **{CACHE: cache}, logits_to_keep=1)
    logits: torch.Tensor = output.logits[0, -1]
    return logits


@torch.inference_mode()
def decoding(model: Any, tokens: torch.Tensor, cache: Any, steps: int = 8) -> Cost:
    """Fill a cache with tokens [L], decode `steps` more one at a time, and return the cost."""
    ids = tokens.to(model.device)
    prefill(model, ids[:-steps], cache)
    times = []
    on_gpu = ids.device.type == "cuda"
    for step in range(len(ids) - steps, len(ids) - 1):
        started = time.perf_counter()
        model(ids[None, step : step + 1], **{CACHE: cache})
        if on_gpu:
            torch.cuda.synchronize(ids.device)
        times.append(time.perf_counter() - started)
    last = partial(model, ids[None, -1:], **{CACHE: cache})  # by then the fastest kernels have been chosen
    peak = _peak_on_gpu(last, cache, ids.device) if on_gpu else _peak_on_cpu(last, cache)
    return Cost(len(ids), nbytes_of(cache), peak, statistics.median(times))


def _peak_on_gpu(call: Callable[[], object], cache: Any, device: torch.device) -> int:
    """Return the peak of the bytes of the cache and of the tensors that a call creates."""
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device) - nbytes_of(cache)
    call()
    return int(torch.cuda.max_memory_allocated(device)) - before


def _peak_on_cpu(call: Callable[[], object], cache: Any) -> int:
    with PeakMemory(tensors_of(cache)) as memory:
        call()
    return int(memory.peak)


_FILLER = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. "


@torch.inference_mode()
def passkeys(
    model: Any, tokenizer: Any, make_cache: Callable[[], Any], context: int, depths: tuple[float, ...], seed: int = 0
) -> list[bool]:
    """Return for each depth of a context whether a five-digit key there is retrieved by greedy decoding.

    The question is asked after the context was read, so that the key is read from the cache (Mohtashami and Jaggi,
    "Landmark attention", 2023).

    Args:
        model: The model.
        tokenizer: Its tokenizer.
        make_cache: Creates an empty cache.
        context: The approximate number of tokens of the context.
        depths: Positions of the key, from 0 to 1.
        seed: The seed of the keys.
    """
    answered = []
    for number, depth in enumerate(depths):
        key = str(random.Random(seed + number).randint(10_000, 99_999))
        needle = f"The pass key is {key}. Remember it. {key} is the pass key. "
        filler = tokenizer(_FILLER, add_special_tokens=False)["input_ids"]
        room = max(context - 60, 0) // len(filler)
        before = round(room * depth)
        text = _FILLER * before + needle + _FILLER * (room - before)
        cache = make_cache()
        prefill(model, tokenizer(text, return_tensors="pt")["input_ids"][0].to(model.device), cache)
        question = tokenizer("What is the pass key? The pass key is", return_tensors="pt", add_special_tokens=False)
        logits = prefill(model, question["input_ids"][0].to(model.device), cache)
        answer: list[int] = []
        for _ in range(8):
            answer.append(int(logits.argmax()))
            logits = model(torch.tensor([answer[-1:]], device=model.device), **{CACHE: cache}).logits[0, -1]
        answered.append(key in tokenizer.decode(answer).replace(" ", ""))
    return answered
