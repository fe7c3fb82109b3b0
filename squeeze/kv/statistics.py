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

__all__ = ["JointMoments", "KVStatistics", "Observed", "costs_of", "observe"]

JOINT = 4096  # most channels of layers whose moments are taken together


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


@dataclass
class JointMoments:
    """Moments of the keys (before rotary embedding) and values of several layers together, float64.

    Attributes:
        layers: The layers' numbers.
        mean: [n], the channels of each layer in turn: those of the heads' keys, then those of the heads' values.
        moment: [n, n], E[x x^T].
    """

    layers: tuple[int, ...]
    mean: torch.Tensor
    moment: torch.Tensor

    def add(self, states: dict[int, torch.Tensor]) -> None:
        """Add the states of a window: [T, channels] of each layer."""
        x = torch.cat([states[layer] for layer in self.layers], -1).double()
        self.mean += x.mean(0)
        self.moment += x.T @ x / len(x)


class Observed(dict[int, KVStatistics]):
    """Statistics by layer, and joint moments of groups of layers if they were asked for."""

    joint: tuple[JointMoments, ...] = ()


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
    def __init__(self, frequencies: torch.Tensor | None, sinks: int, window: int, joint: int) -> None:
        self.frequencies, self.sinks, self.window, self.most = frequencies, sinks, window, joint
        self.layers: dict[int, KVStatistics] = {}
        self.changes: dict[int, list[torch.Tensor]] = {}
        self.states: dict[int, torch.Tensor] = {}  # [T, channels] of this window, for joint moments
        self.joint: list[JointMoments] = []
        self.windows = self.gradients = 0

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
        if self.most:
            self.states[layer] = torch.cat([x[0].transpose(0, 1).flatten(1).float() for x in states], -1)

    def collect(self) -> None:
        """Add the gradients of a window, if there are any, and its joint moments."""
        for layer, change in self.changes.items():
            for kind, x in enumerate(change):
                if x.grad is None:
                    continue
                g = x.grad[:, :, self.sinks :].double()
                self.layers[layer].fisher[kind] += (g.transpose(-1, -2) @ g).mean(0) / g.shape[2]
        self.gradients += any(x.grad is not None for change in self.changes.values() for x in change)
        self.changes.clear()
        self.windows += 1
        if self.most and not self.joint:
            self.joint = [_empty(self.states, layers) for layers in _groups(self.states, self.most)]
        for moments in self.joint:
            moments.add(self.states)
        self.states.clear()

    def finished(self) -> Observed:
        """Return the statistics on the CPU, where policies are made from them."""
        found = Observed()
        for layer, statistics in self.layers.items():
            for tensor in (*statistics.mean, *statistics.moment):
                tensor.div_(self.windows)
            for tensor in statistics.fisher:
                tensor.div_(self.gradients)
            parts = (getattr(statistics, field.name) for field in fields(statistics))
            found[layer] = KVStatistics(*([tensor.cpu() for tensor in part] for part in parts))
        found.joint = tuple(
            JointMoments(one.layers, one.mean.cpu() / self.windows, one.moment.cpu() / self.windows)
            for one in self.joint
        )
        return found


def _groups(states: dict[int, torch.Tensor], most: int) -> list[tuple[int, ...]]:
    """Return runs of layers that have at most `most` channels together, or one layer."""
    groups: list[list[int]] = []
    size = 0
    for layer in sorted(states):
        size += states[layer].shape[1]
        if not groups or size > most:
            groups.append([])
            size = states[layer].shape[1]
        groups[-1].append(layer)
    return [tuple(group) for group in groups]


def _empty(states: dict[int, torch.Tensor], layers: tuple[int, ...]) -> JointMoments:
    like = states[layers[0]]
    size = sum(states[layer].shape[1] for layer in layers)
    zeros = like.new_zeros((size + 1, size), dtype=torch.float64)
    return JointMoments(layers, zeros[0], zeros[1:])


def observe(
    model: Any,
    tokens: torch.Tensor,
    *,
    context: int = 1024,
    windows: int = 6,
    sinks: int = 4,
    window: int = 64,
    joint: int = 0,
    progress: Callable[[int], None] = lambda n: None,
) -> Observed:
    """Gather statistics of each attention layer over windows of a text.

    Args:
        model: The model.
        tokens: The text [T].
        context: The number of tokens of a window.
        windows: The number of windows.
        sinks: The number of first tokens that stay exact.
        window: The number of latest tokens that stay exact.
        joint: The number of windows for joint moments of layers, which need no gradients; 0 for none.
        progress: Called as work is done.

    Raises:
        SqueezeError: The text is shorter than a window.
    """
    forward, windows = min(joint, len(tokens) // context), min(windows, len(tokens) // context)
    if not windows or context <= window + sinks:
        raise SqueezeError(f"{len(tokens)} tokens are too few to calibrate on windows of {context}")
    observer = _Observer(frequencies_of(model), sinks, window, JOINT if joint else 0)
    with attending(model, _NAME, observer.attend), _without_gradients(model):
        random = torch.Generator(device=model.device).manual_seed(0)
        for number in range(windows):
            ids = tokens[None, number * context : (number + 1) * context].to(model.device)
            logits = model(ids, use_cache=False).logits[0].float()
            drawn = torch.multinomial(logits.detach().softmax(-1), 1, generator=random)[:, 0]
            torch.nn.functional.cross_entropy(logits, drawn, reduction="sum").backward()
            observer.collect()
            progress(1)
        for number in range(windows, forward):
            with torch.no_grad():
                ids = tokens[None, number * context : (number + 1) * context].to(model.device)
                model(ids, use_cache=False, logits_to_keep=1)
            observer.collect()
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
