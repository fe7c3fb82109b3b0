"""What a model's keys and values are like and what errors in them cost, measured on a text; and what follows from it.

`observe` runs the model forth and back over windows of a text. `transform_policy` makes a Transform of a number of
bits of it; heads.py chooses the bits of each head for a policy of another kind.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from squeeze.errors import PolicyError, SqueezeError
from squeeze.kernels.kv_attention.reference import bias_of
from squeeze.kv.grid import lloyd_max
from squeeze.kv.rope import frequencies_of, turn
from squeeze.kv.transform import GROUP, MOST_BITS, Transform, TransformCoder

__all__ = ["Statistics", "observe", "transform_policy"]

_NAME = "squeeze_kv_observer"
_DAMPING = 1e-4  # of the mean of the diagonal, added to each second moment of gradients


@dataclass(frozen=True)
class Statistics:
    """Of the keys (before their rotary embedding) and values of one layer, float64: index 0 keys, 1 values.

    mean [2][H, D], moment [2][H, D, D]: E[x x^T]. fisher [2][H, D, D]: E[g g^T], g = dLoss/dx as far as tokens
    outside the window see x, loss in nats summed over a window, of tokens drawn from the model's own predictions.
    sample [2]: [1, H, T, D], the states of one window as the cache is given them.
    """

    mean: list[torch.Tensor]
    moment: list[torch.Tensor]
    fisher: list[torch.Tensor]
    sample: list[torch.Tensor]


class _Observer:
    def __init__(self, frequencies: torch.Tensor | None, sinks: int, window: int) -> None:
        self.frequencies, self.sinks, self.window = frequencies, sinks, window
        self.layers: dict[int, Statistics] = {}
        self.changes: dict[int, list[torch.Tensor]] = {}
        self.seen = 0

    def attend(self, module: Any, query: Any, key: Any, value: Any, mask: Any, **options: Any) -> Any:
        """Attention in which what far tokens see is an input of its own."""
        layer, length, groups = module.layer_idx, key.shape[2], query.shape[1] // key.shape[1]
        self._note(layer, key.detach(), value.detach())
        change = [torch.zeros_like(x, requires_grad=True) for x in (key, value)]
        self.changes[layer] = change
        turned = change[0] if self.frequencies is None else turn(change[0], self.frequencies, 0)
        k, kf, v, vf = (x.repeat_interleave(groups, 1) for x in (key, key + turned, value, value + change[1]))
        place = torch.arange(length, device=query.device)
        near = place[:, None] - place < self.window
        scores = torch.where(near, query @ k.transpose(-1, -2), query @ kf.transpose(-1, -2)) * options["scaling"]
        bias = bias_of(mask, length, length, True, query)
        weights = (scores if bias is None else scores + bias).softmax(-1)
        return ((weights * near) @ v + (weights * ~near) @ vf).transpose(1, 2).contiguous(), None

    def _note(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        plain = key if self.frequencies is None else turn(key, self.frequencies, 0, back=True)
        states = [x[:, :, self.sinks :].double() for x in (plain, value)]
        if layer not in self.layers:
            zeros = [torch.zeros_like(x[0, :, 0]) for x in states]
            squares = [[torch.zeros_like(x[0, :, 0, :, None] * x[0, :, 0, None]) for x in states] for _ in range(2)]
            self.layers[layer] = Statistics(zeros, squares[0], squares[1], [key, value])
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
        self.seen += 1

    def finished(self) -> dict[int, Statistics]:
        for found in self.layers.values():
            for tensor in (*found.mean, *found.moment, *found.fisher):
                tensor.div_(self.seen)
        return self.layers


def observe(
    model: Any,
    tokens: torch.Tensor,
    *,
    context: int = 1024,
    windows: int = 6,
    sinks: int = 4,
    window: int = 64,
    progress: Callable[[int], None] = lambda n: None,
) -> dict[int, Statistics]:
    """Statistics of each attention layer over `windows` windows of tokens [T]. Raises SqueezeError if there is none."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    windows = min(windows, len(tokens) // context)
    if not windows or context <= window + sinks:
        raise SqueezeError(f"{len(tokens)} tokens are too few to calibrate on windows of {context}")
    observer = _Observer(frequencies_of(model), sinks, window)
    before = model.config._attn_implementation
    ALL_ATTENTION_FUNCTIONS.register(_NAME, observer.attend)
    ALL_MASK_ATTENTION_FUNCTIONS.register(_NAME, sdpa_mask)
    wanted = [parameter for parameter in model.parameters() if parameter.requires_grad]
    random = torch.Generator(device=model.device).manual_seed(0)
    model.requires_grad_(False)
    model.set_attn_implementation(_NAME)
    try:
        for at in range(windows):
            ids = tokens[None, at * context : (at + 1) * context].to(model.device)
            logits = model(ids, use_cache=False).logits[0].float()
            drawn = torch.multinomial(logits.detach().softmax(-1), 1, generator=random)[:, 0]
            torch.nn.functional.cross_entropy(logits, drawn, reduction="sum").backward()
            observer.collect()
            progress(1)
    finally:
        model.set_attn_implementation(before)
        for parameter in wanted:
            parameter.requires_grad_(True)
    return observer.finished()


def transform_policy(
    model: Any, statistics: dict[int, Statistics], bits: float, *, sinks: int = 4, window: int = 64, block: int = 32
) -> Transform:
    """A Transform of `bits` a value in the mean over the model, scales included; more where errors cost more.

    Raises PolicyError where the bits do not suffice for the scales, or heads are not of 8 n channels.
    """
    bases = [(layer, kind, _basis(found, kind)) for layer, found in sorted(statistics.items()) for kind in (0, 1)]
    sizes = torch.cat([variance.reshape(-1, GROUP).mean(-1) for _, _, (variance, _, _) in bases])
    heads = sum(len(variance) for _, _, (variance, _, _) in bases)
    values = sizes.numel() * GROUP
    spent = int((bits * values - 8 * heads) / GROUP)  # steps of a bit for each channel of a group
    if not 0 < spent <= MOST_BITS * sizes.numel():
        most = MOST_BITS + 8 * heads / values
        raise PolicyError(f"a transform codes in {8 * heads / values:.3f} to {most:.3f} bits, not in {bits}")
    widths = iter(_water_filled(sizes, spent).split([variance.numel() // GROUP for _, _, (variance, _, _) in bases]))
    frequencies = frequencies_of(model)
    coders: dict[int, list[list[TransformCoder]]] = {}
    for layer, kind, (variance, into, back) in bases:
        mean, turned = statistics[layer].mean[kind], frequencies if kind == 0 else None
        found = [
            _coder(*row, turned)
            for row in zip(next(widths).reshape(len(variance), -1), variance, into, back, mean, strict=True)
        ]
        coders.setdefault(layer, []).append(found)
    table = tuple(tuple(zip(*coders.get(layer, [[], []]), strict=True)) for layer in range(max(coders) + 1))
    return Transform(table, (spent * GROUP + 8 * heads) / values, sinks, window, block)


def _basis(found: Statistics, kind: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Variances [H, D], descending, and the matrices that lead there and back, [H, D, D]."""
    mean, fisher = found.mean[kind], found.fisher[kind]
    size = mean.shape[-1]
    if size % GROUP:
        raise PolicyError(f"heads of {size} channels cannot be coded: they are not {GROUP} n")
    covariance = found.moment[kind] - mean[..., :, None] * mean[..., None, :]
    diagonal = fisher.diagonal(dim1=-2, dim2=-1).mean(-1).clamp(min=1e-30)
    lower = torch.linalg.cholesky(fisher + torch.eye(size) * (_DAMPING * diagonal)[..., None, None])
    variance, vectors = torch.linalg.eigh(lower.transpose(-1, -2) @ covariance @ lower)
    into = vectors.flip(-1).transpose(-1, -2) @ lower.transpose(-1, -2)
    return variance.flip(-1).clamp(min=1e-30), into, torch.linalg.inv(into)


def _coder(
    widths: torch.Tensor,
    variance: torch.Tensor,
    into: torch.Tensor,
    back: torch.Tensor,
    mean: torch.Tensor,
    frequencies: torch.Tensor | None,
) -> TransformCoder:
    kept = tuple(int(width) for width in widths if width)
    channels, deviation = slice(0, GROUP * len(kept)), variance.sqrt()
    return TransformCoder(
        kept,
        (into / deviation[:, None])[channels].float().contiguous(),
        (back * deviation)[:, channels].float().contiguous(),
        mean.float(),
        variance[channels].float(),
        frequencies,
    )


def _water_filled(sizes: torch.Tensor, steps: int) -> torch.Tensor:
    """Bits of each of N groups of these variances, `steps` in all: each step to where it lowers the error most."""
    errors = [1.0] + [_error(width) for width in range(1, MOST_BITS + 1)]
    widths = [0] * len(sizes)
    heap = [(-size * (errors[0] - errors[1]), place) for place, size in enumerate(sizes.tolist())]
    heapq.heapify(heap)
    for _ in range(steps):
        _, place = heapq.heappop(heap)
        widths[place] += 1
        width = widths[place]
        if width < MOST_BITS:
            heapq.heappush(heap, (-sizes[place].item() * (errors[width] - errors[width + 1]), place))
    return torch.tensor(widths)


def _error(width: int) -> float:
    """Mean square error of the Lloyd-Max points on a standard normal variable: 1 - E[point^2]."""
    points = lloyd_max(width).double()
    edges = (points[1:] + points[:-1]) / 2
    mass = torch.special.ndtr(torch.cat([edges, edges.new_tensor([torch.inf])])).diff(prepend=edges.new_zeros(1))
    return float(1 - (mass * points.square()).sum())
