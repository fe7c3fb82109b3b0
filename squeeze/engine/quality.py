"""Quality of a language model: how well it predicts a text, and its distance from the model that it was made from.

One window is in memory at a time; log-probabilities are computed in float32, a few positions at a time.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from squeeze.checkpoint.causal import check_finite
from squeeze.checkpoint.pretrained import explained
from squeeze.engine.report import Quality
from squeeze.errors import SqueezeError
from squeeze.numerics.intervals import interval

__all__ = ["divergences", "evaluate"]

_POSITIONS = 128  # positions whose log-probabilities are in memory at once; also a block of the intervals
Progress = Callable[[int], None]


class _Block(NamedTuple):
    """Sums over some consecutive positions; divergences are of each position."""

    tokens: int
    loss: float
    their_loss: float = 0.0
    agreed: int = 0
    divergences: torch.Tensor = torch.empty(0)


def evaluate(
    model: nn.Module,
    tokens: torch.Tensor,
    *,
    window: int = 1024,
    stride: int | None = None,
    windows: int | None = None,
    original: nn.Module | None = None,
    progress: Progress | None = None,
    on_perplexity: Callable[[float], None] | None = None,
) -> Quality:
    """Measure the perplexity of a causal language model, and its distance from `original` on the same positions.

    Each window predicts the tokens that no earlier window predicted. With the default stride, the first token of every
    window is not predicted.

    Args:
        model: the model.
        tokens: [T].
        window: tokens of a window.
        stride: tokens between the starts of windows; default: `window`.
        windows: number of windows; None for all.
        original: the model to compare with.
        progress: called with the number of further tokens read.
        on_perplexity: called with the perplexity so far.

    Raises:
        SqueezeError: there is nothing to predict.
    """
    stride = stride or window
    if window < 2 or not 0 < stride <= window:
        raise SqueezeError(f"expected a window of at least 2 tokens and a stride up to it, got {window} and {stride}")
    blocks: list[_Block] = []
    seconds = 0.0
    tokens = tokens.to(next(model.parameters()).device)
    for ids, first in _windows(tokens, window, stride, windows):
        started = time.perf_counter()
        logits = _logits(model, ids)
        seconds += time.perf_counter() - started
        reference = _logits(original, ids) if original is not None else None
        for start in range(first, len(ids), _POSITIONS):
            blocks.append(_block(ids, slice(start - 1, min(start + _POSITIONS, len(ids)) - 1), logits, reference))
        if on_perplexity and blocks:
            on_perplexity(_exp(sum(block.loss for block in blocks) / sum(block.tokens for block in blocks)))
        if progress:
            progress(len(ids))
    count = sum(block.tokens for block in blocks)
    if not count:
        raise SqueezeError(f"expected at least 2 tokens to measure perplexity, got {len(tokens)}")
    found = _perplexity(blocks, count) | {"tokens_per_second": count / seconds}
    return Quality(**found if original is None else _joined(found, _distance(blocks, count)))


def _block(ids: torch.Tensor, span: slice, logits: torch.Tensor, theirs: torch.Tensor | None) -> _Block:
    """Return sums of the predictions of logits [L, V] at a span of positions of ids [L]."""
    log_probs = torch.log_softmax(logits[span].float(), -1)
    targets = ids[span.start + 1 : span.stop + 1, None]
    count, loss = len(targets), -log_probs.gather(1, targets).double().sum().item()
    if theirs is None:
        return _Block(count, loss)
    expected = torch.log_softmax(theirs[span].float(), -1)
    return _Block(
        count,
        loss,
        their_loss=-expected.gather(1, targets).double().sum().item(),
        agreed=int((expected.argmax(-1) == log_probs.argmax(-1)).sum()),
        divergences=divergences(expected, log_probs),
    )


def divergences(expected: torch.Tensor, found: torch.Tensor) -> torch.Tensor:
    """Return KL(expected || found) at each position in nats, float64 [L], from log-probabilities [L, V]."""
    return (expected.exp() * (expected - found)).sum(-1).double().cpu()


def _perplexity(blocks: Sequence[_Block], count: int) -> dict[str, Any]:
    losses = [block.loss for block in blocks]
    return {
        "perplexity": _exp(sum(losses) / count),
        "tokens": count,
        "intervals": _interval("perplexity", blocks, losses, _exp),
    }


def _distance(blocks: Sequence[_Block], count: int) -> dict[str, Any]:
    """Return the distance from the original."""
    kl = torch.cat([block.divergences for block in blocks])
    divergences = [block.divergences.sum().item() for block in blocks]
    rises, agreed = [block.loss - block.their_loss for block in blocks], [float(block.agreed) for block in blocks]
    return {
        "kl_mean": kl.mean().item(),
        "kl_p99": kl.kthvalue(max(math.ceil(0.99 * len(kl)), 1)).values.item(),
        "top1_agreement": sum(agreed) / count,
        "ratio": _exp(sum(rises) / count),
        "intervals": _interval("kl_mean", blocks, divergences)
        | _interval("top1_agreement", blocks, agreed)
        | _interval("ratio", blocks, rises, _exp),
    }


def _joined(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    return {**first, **second, "intervals": first["intervals"] | second["intervals"]}


def _interval(
    name: str, blocks: Sequence[_Block], sums: Sequence[float], scale: Callable[[float], float] = float
) -> dict[str, list[float]]:
    bounds = interval(sums, [block.tokens for block in blocks])
    return {name: [scale(bound) for bound in bounds]} if bounds else {}


def _exp(x: float) -> float:
    return math.exp(x) if x < 700 else math.inf


def _windows(tokens: torch.Tensor, window: int, stride: int, limit: int | None) -> Iterator[tuple[torch.Tensor, int]]:
    """Yield each window and the first position in it whose token has not been predicted before."""
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
    """Return the logits [L, V]."""
    with torch.inference_mode(), explained(getattr(model, "name_or_path", "") or type(model).__name__):
        logits: torch.Tensor = model(ids[None], use_cache=False).logits[0]
    check_finite(model, logits, ids[None])
    return logits
