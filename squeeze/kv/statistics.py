"""Statistics of a model's keys and values on a text, and the loss that coding errors cause."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

import torch

from squeeze.errors import PolicyError, SqueezeError
from squeeze.kv.base import Coder
from squeeze.kv.rotary import apply_rotary, frequencies_of
from squeeze.kv.scores import Request, attending

__all__ = ["KVStatistics", "costs_of", "observe"]


@dataclass(frozen=True)
class KVStatistics:
    """Statistics of the keys (before rotary embedding) and values of one layer, float64: index 0 keys, 1 values.

    Attributes:
        mean: [2][H, D].
        moment: [2][H, D, D], E[x x^T].
        fisher: [2][H, D, D], E[g g^T] with g = dLoss/dx, as far as tokens outside the window see x. The loss is in
            nats,
        summed over a window, of tokens that are drawn from the model's own predictions.
        sample: [2], [1, H, T, D], the states of one window as the cache gets them.
    """

    mean: list[torch.Tensor]
    moment: list[torch.Tensor]
    fisher: list[torch.Tensor]
    sample: list[torch.Tensor]


def costs_of(
    coder: Coder, statistics: KVStatistics, kind: int, block: int, start: int, frequencies: torch.Tensor | None
) -> torch.Tensor:
    """Return the expected loss in nats of coding a token of each head, float64 [H].

    Args:
        coder: The coder.
        statistics: The statistics of the layer.
        kind: 0 for keys, 1 for values.
        block: Tokens of a block.
        start: The number of sinks, which are not coded.
        frequencies: Frequencies of the rotary embedding of keys, or None.

    Raises:
        PolicyError: The sample is shorter than a block.
    """
    states = statistics.sample[kind][:, :, start:].float()
    count = states.shape[2] // block
    if not count:
        raise PolicyError(f"calibration windows are shorter than a block of {block} tokens")
    blocks: torch.Tensor = states[:, :, : count * block].unflatten(2, (count, block))
    error = (coder.decode(coder.encode(blocks, start), start, torch.float32) - blocks).flatten(2, 3)
    if kind == 0 and frequencies is not None:  # Fisher information is of keys before their rotary embedding
        error = apply_rotary(error, frequencies, start, inverse=True)
    errors = error[0].double()
    return ((errors @ statistics.fisher[kind]) * errors).sum(-1).mean(-1) / 2


_NAME = "squeeze_kv_observer"


class _Observer:
    def __init__(self, frequencies: torch.Tensor | None, sinks: int, window: int) -> None:
        self.frequencies, self.sinks, self.window = frequencies, sinks, window
        self.layers: dict[int, KVStatistics] = {}
        self.changes: dict[int, list[torch.Tensor]] = {}
        self.windows = 0

    def attend(self, module: Any, query: Any, key: Any, value: Any, attention_mask: Any = None, **options: Any) -> Any:
        """Attend in float32 with the states that distant tokens see as separate inputs, so that gradients reach
        them.
        """
        request = Request.supported(module, query, options)
        layer, length, groups = module.layer_idx, key.shape[2], query.shape[1] // key.shape[1]
        self._update(layer, key.detach(), value.detach())
        dtype = query.dtype
        query, key, value = (x.float() for x in (query, key, value))
        change = [torch.zeros_like(x, requires_grad=True) for x in (key, value)]
        self.changes[layer] = change
        key_change = change[0] if self.frequencies is None else apply_rotary(change[0], self.frequencies, 0)
        k, kf, v, vf = (x.repeat_interleave(groups, 1) for x in (key, key + key_change, value, value + change[1]))
        position = torch.arange(length, device=query.device)
        near = position[:, None] - position < self.window
        scores = torch.where(near, query @ k.transpose(-1, -2), query @ kf.transpose(-1, -2)) * request.scaling
        scores, bias = request.scores.capped(scores), request.bias(attention_mask, query, length)
        weights = request.scores.weights(scores if bias is None else scores + bias)
        states = (weights * near) @ v + (weights * ~near) @ vf
        return states.transpose(1, 2).contiguous().to(dtype), None

    def _update(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        plain = key if self.frequencies is None else apply_rotary(key, self.frequencies, 0, inverse=True)
        states = [x[:, :, self.sinks :].double() for x in (plain, value)]
        if layer not in self.layers:
            zeros = [torch.zeros_like(x[0, :, 0]) for x in states]
            squares = [[torch.zeros_like(x[0, :, 0, :, None] * x[0, :, 0, None]) for x in states] for _ in range(2)]
            self.layers[layer] = KVStatistics(zeros, squares[0], squares[1], [key, value])
        for kind, x in enumerate(states):
            self.layers[layer].mean[kind] += x.mean((0, 2))
            self.layers[layer].moment[kind] += (x.transpose(-1, -2) @ x).mean(0) / x.shape[2]

    def collect(self) -> None:
        for layer, change in self.changes.items():
            for kind, x in enumerate(change):
                assert x.grad is not None
                g = x.grad[:, :, self.sinks :].double()
                self.layers[layer].fisher[kind] += (g.transpose(-1, -2) @ g).mean(0) / g.shape[2]
        self.changes.clear()
        self.windows += 1

    def finished(self) -> dict[int, KVStatistics]:
        """Return the statistics on the CPU, where policies are made from them."""
        found = {}
        for layer, statistics in self.layers.items():
            for tensor in (*statistics.mean, *statistics.moment, *statistics.fisher):
                tensor.div_(self.windows)
            parts = (getattr(statistics, field.name) for field in fields(statistics))
            found[layer] = KVStatistics(*([tensor.cpu() for tensor in part] for part in parts))
        return found


def observe(
    model: Any,
    tokens: torch.Tensor,
    *,
    context: int = 1024,
    windows: int = 6,
    sinks: int = 4,
    window: int = 64,
    progress: Callable[[int], None] = lambda n: None,
) -> dict[int, KVStatistics]:
    """Gather statistics of each attention layer over windows of a text.

    Args:
        model: The model.
        tokens: The text [T].
        context: The number of tokens of a window.
        windows: The number of windows.
        sinks: The number of first tokens that stay exact.
        window: The number of latest tokens that stay exact.
        progress: Called as work is done.

    Raises:
        SqueezeError: The text is shorter than a window.
    """
    windows = min(windows, len(tokens) // context)
    if not windows or context <= window + sinks:
        raise SqueezeError(f"{len(tokens)} tokens are too few to calibrate on windows of {context}")
    observer = _Observer(frequencies_of(model), sinks, window)
    with attending(model, _NAME, observer.attend), _without_gradients(model):
        random = torch.Generator(device=model.device).manual_seed(0)
        for number in range(windows):
            ids = tokens[None, number * context : (number + 1) * context].to(model.device)
            logits = model(ids, use_cache=False).logits[0].float()
            drawn = torch.multinomial(logits.detach().softmax(-1), 1, generator=random)[:, 0]
            torch.nn.functional.cross_entropy(logits, drawn, reduction="sum").backward()
            observer.collect()
            progress(1)
    return observer.finished()


@contextmanager
def _without_gradients(model: Any) -> Iterator[None]:
    """Disable gradients of the parameters within the block."""
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    model.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in trainable:
            parameter.requires_grad_(True)
