"""What `squeeze kv-eval` measures of a cache: quality in one pass, bytes and time of decoding, and passkeys."""

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

__all__ = ["PIECE", "Cost", "Distance", "decoding", "nominal_bits", "passkeys", "quality", "stepped"]

_POSITIONS = 128  # whose log-probabilities are in memory at once, and that are a block of the intervals
PIECE = 32  # tokens read through a cache at a time to measure it
_CHUNK = 512  # tokens of a prompt read at a time


@dataclass(frozen=True)
class Distance:
    """perplexity: exp of the mean negative log-likelihood. kl: mean nats a token, KL(full precision || policy).
    intervals: of 95 % confidence, of both and of `percent`, by which the perplexity is above that of full precision;
    numerics/intervals.py has what that means."""

    perplexity: float
    kl: float
    intervals: dict[str, list[float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Cost:
    """bytes: allocated by the cache after `tokens` tokens. peak: of all tensors made while decoding, weights aside,
    in bytes. seconds: a token, the median.
    """

    tokens: int
    bytes: int
    peak: int
    seconds: float


@torch.inference_mode()
def nominal_bits(policy: Policy, model: Any) -> float:
    """Bits a coded value, scales included, in the mean over the model; 16.0 where nothing is coded."""
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
    """Perplexity of `windows` windows of `context` tokens, and KL from full precision, for each policy and for none
    (named "full precision"). Raises SqueezeError where the text has no such window.
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
    """Sums over some consecutive positions: negative log-likelihood, KL from `full`, and how much the first is above
    that of `full`."""

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
    """Of the positions of a window; logits are [L, V], and ids [L]."""
    blocks = []
    for first in range(0, len(ids) - 1, _POSITIONS):
        span = slice(first, min(first + _POSITIONS, len(ids) - 1))
        ours, theirs = logits[span].float().log_softmax(-1), full[span].float().log_softmax(-1)
        targets = ids[span.start + 1 : span.stop + 1, None]
        loss, their_loss = (-x.gather(1, targets).double().sum().item() for x in (ours, theirs))
        divergence = (theirs.exp() * (theirs - ours)).sum(-1).double().sum().item()
        blocks.append(_Block(len(targets), loss, divergence, loss - their_loss))
    return blocks


@torch.inference_mode()
def stepped(
    model: Any,
    tokens: torch.Tensor,
    make_cache: Callable[[], Any],
    context: int,
    windows: int,
    full: list[torch.Tensor],
    piece: int = PIECE,
    prompt: int = 0,
) -> Distance:
    """Perplexity through a cache itself, read `piece` tokens at a time: what decoding sees, to within a piece.

    full: logits of each window by a full-precision cache; where empty, this cache's are put there. prompt: tokens
    read at once before, which do not count.
    """
    blocks: list[_Block] = []
    windows, fills = min(windows, len(tokens) // context), not full
    for window in range(windows):
        ids, cache = tokens[window * context : (window + 1) * context].to(model.device), make_cache()
        if prompt:
            model(ids[None, :prompt], **{CACHE: cache}, logits_to_keep=1)
            ids = ids[prompt:]
        pieces = [model(some[None], **{CACHE: cache}).logits[0] for some in ids.split(piece)]
        logits = torch.cat(pieces)
        check_finite(model, logits, ids[None])
        if fills:
            full.append(logits.to(torch.bfloat16) if context > 1024 else logits)
        blocks += _against(logits, full[window].to(logits.dtype), ids)
    return _distance(blocks)


def prefill(model: Any, ids: torch.Tensor, cache: Any) -> torch.Tensor:
    """Read ids [L] into a cache, a piece at a time unless its policy wants all; logits [V] after the last."""
    policy: Policy | None = getattr(cache, "policy", None)
    for chunk in ids.split(len(ids) if policy and policy.observes else _CHUNK):
        output = model(chunk[None], **{CACHE: cache}, logits_to_keep=1)
    logits: torch.Tensor = output.logits[0, -1]
    return logits


@torch.inference_mode()
def decoding(model: Any, tokens: torch.Tensor, cache: Any, steps: int = 8) -> Cost:
    """Fill a cache with tokens [L], then decode `steps` more, one at a time."""
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
    last = partial(model, ids[None, -1:], **{CACHE: cache})  # by which what is fastest has been measured
    peak = _peak_on_gpu(last, cache, ids.device) if on_gpu else _peak_on_cpu(last, cache)
    return Cost(len(ids), nbytes_of(cache), peak, statistics.median(times))


def _peak_on_gpu(call: Callable[[], object], cache: Any, device: torch.device) -> int:
    """The most bytes of the cache and of what a call makes."""
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
    """Whether a five-digit key at each depth of a context of about `context` tokens is found again, greedily.

    The question is asked after the context has been read, so that the key is read from the cache (Mohtashami and
    Jaggi, "Landmark attention", 2023).
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
