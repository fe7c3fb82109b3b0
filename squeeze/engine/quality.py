"""How well a language model predicts a text, and how far it is from the model that it was made from.

One window is in memory at a time; log-probabilities are taken in float32, a few positions at a time.
"""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from squeeze.checkpoint.pretrained import explained
from squeeze.errors import SqueezeError

__all__ = ["Quality", "evaluate"]

_POSITIONS = 128  # whose log-probabilities are in memory at once
Progress = Callable[[int], None]


@dataclass(frozen=True)
class Quality:
    """What `evaluate` found; the last three are None without an original to compare with.

    perplexity: exp of the mean negative log-likelihood. tokens: predictions made. tokens_per_second: of the model's
    own forward passes. kl_mean, kl_p99: nats a token, KL(original || model). top1_agreement: share of positions at
    which both find the same token most probable.
    """

    perplexity: float
    tokens: int
    tokens_per_second: float
    kl_mean: float | None = None
    kl_p99: float | None = None
    top1_agreement: float | None = None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def evaluate(
    model: nn.Module,
    tokens: torch.Tensor,
    *,
    window: int = 1024,
    stride: int | None = None,
    windows: int | None = None,
    original: nn.Module | None = None,
    progress: Progress | None = None,
) -> Quality:
    """Perplexity of a causal language model on tokens [T], and its distance from `original` on the same positions.

    Windows of `window` tokens begin every `stride` tokens (default: `window`); each predicts the tokens that none
    before it has predicted, so with the default every window's first token is given. windows: stop after so many.
    progress(n) is told of n more tokens read. Raises SqueezeError where there is nothing to predict.
    """
    stride = stride or window
    if window < 2 or not 0 < stride <= window:
        raise SqueezeError(f"a window of {window} tokens that moves on by {stride} predicts nothing")
    losses, divergences, agreed, seconds, count = 0.0, [], 0, 0.0, 0
    tokens = tokens.to(next(model.parameters()).device)
    for ids, first in _windows(tokens, window, stride, windows):
        started = time.perf_counter()
        logits = _logits(model, ids)
        seconds += time.perf_counter() - started
        theirs = _logits(original, ids) if original is not None else None
        for start in range(first, len(ids), _POSITIONS):
            span = slice(start - 1, min(start + _POSITIONS, len(ids)) - 1)
            ours = torch.log_softmax(logits[span].float(), -1)
            targets = ids[span.start + 1 : span.stop + 1, None]
            losses -= ours.gather(1, targets).double().sum().item()
            if theirs is not None:
                expected = torch.log_softmax(theirs[span].float(), -1)
                divergences.append((expected.exp() * (expected - ours)).sum(-1).double().cpu())
                agreed += int((expected.argmax(-1) == ours.argmax(-1)).sum())
        count += len(ids) - first
        if progress:
            progress(len(ids))
    if not count:
        raise SqueezeError(f"the text has {len(tokens)} tokens: at least 2 are needed to measure perplexity")
    mean = losses / count
    measured = Quality(math.exp(mean) if mean < 700 else math.inf, count, count / seconds)
    if not divergences:
        return measured
    kl = torch.cat(divergences)
    return Quality(**asdict(measured) | _distance(kl, agreed / count))


def _distance(kl: torch.Tensor, agreement: float) -> dict[str, float]:
    rank = max(math.ceil(0.99 * len(kl)), 1)
    return {"kl_mean": kl.mean().item(), "kl_p99": kl.kthvalue(rank).values.item(), "top1_agreement": agreement}


def _windows(tokens: torch.Tensor, window: int, stride: int, limit: int | None) -> Iterator[tuple[torch.Tensor, int]]:
    """Each window and the first position in it whose token has not been predicted before."""
    predicted = 1
    starts = range(0, max(len(tokens) - 1, 0), stride)
    for start in starts[:limit]:
        end = min(start + window, len(tokens))
        first = max(predicted, start + 1)
        if first < end:
            yield tokens[start:end], first - start
        predicted = end
        if end == len(tokens):
            return


def _logits(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    """[L, V]."""
    with torch.inference_mode(), explained(getattr(model, "name_or_path", "") or type(model).__name__):
        logits: torch.Tensor = model(ids[None], use_cache=False).logits[0]
    return logits
