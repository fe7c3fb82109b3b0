"""What may become of each matrix of a block, alone or together with others, with stored bits and a price.

A price is what K-FAC's curvature predicts (factor/curvature.py), by tokens other than those that the option was made
for: ranks and channels fitted to some hundred directions look far cheaper on the tokens that they were fitted to.
Kinds of layers that K-FAC misjudges (the values of attention, whose errors average out) are put right by the
sensitivity predictor: all prices of a kind are multiplied by the geometric mean of what it predicts over what K-FAC
does.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import ceil, exp, log
from typing import cast

import numpy as np
import torch
from torch import nn

from squeeze.checkpoint.architectures import architecture_of, head_size
from squeeze.engine.method import Method
from squeeze.engine.network import Network, weight_of
from squeeze.errors import ModelError
from squeeze.factor import modular
from squeeze.factor.curvature import Curvature, damage
from squeeze.factor.lowrank import Keep, WhitenedSVD, rank_for
from squeeze.factor.planner import Option, Unit
from squeeze.factor.sensitivity import KEEP, KINDS, Predictor, examples, kind_of
from squeeze.factor.shared import SharedSVD
from squeeze.recipes.plan.edits import Noted, is_expert

__all__ = ["DENSE", "Maker", "Scene", "edited", "planned", "tails", "unit"]

DENSE = "dense"  # the family of what stays whole
_SHARES = tuple(i / 100 for i in range(4, 100, 2))  # of a matrix's ranks that are tried
_FAMILY_SHARES = (0.95, 0.9, 0.8, 0.7, 0.6)  # of a matrix's values that are tried of other families
_STEPS = 24  # numbers of channels that are tried
_MOST_CHANNELS = 0.3  # of an MLP that may go
_MOST_OF_HEADS = 0.6  # of the values or rotary pairs of heads that may go
_GROUP = 16  # channels that go at a time
_PRICED = (0.1, 0.3, 1.0)  # of the channels that may go, where prices are taken
_MLP = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
_VALUES = ("self_attn.v_proj", "self_attn.o_proj")
_SCORES = ("self_attn.q_proj", "self_attn.k_proj")
Maker = Callable[[float], Method]


@dataclass
class Scene:
    """What options are made for (`seen`) and priced by (`held`). dtype: of a stored value. families: other makers of
    methods by share of stored values. notes: what a report is to say of a matrix's statistics. shared: whether
    matrices may be on one basis. bits: of a stored value. whitened, weighted: by name, what low rank costs (see
    `tails`) without and with regard to gradients. factors: by kind, what prices are multiplied by. paths: by block,
    the order in which channels of its MLP go."""

    network: Network
    model: nn.Module
    seen: dict[str, Curvature]
    held: dict[str, Curvature]
    dtype: torch.dtype
    families: Mapping[str, Maker]
    notes: Mapping[str, str] = field(default_factory=dict)
    shared: bool = True
    bits: float = 16
    whitened: dict[str, torch.Tensor] = field(default_factory=dict)
    weighted: dict[str, torch.Tensor] = field(default_factory=dict)
    factors: dict[str, float] = field(default_factory=dict)
    paths: dict[str, modular.Path] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, seen in self.seen.items():
            weight, held = self.weight(name), self.held[name]
            self.whitened[name] = tails(WhitenedSVD(), weight, seen, held)
            self.weighted[name] = tails(WhitenedSVD(outputs=seen.outputs), weight, seen, held)
        self.factors = self._factors()

    def _factors(self) -> dict[str, float]:
        """By kind, what prices are multiplied by; nothing where there are kinds that the predictor does not know."""
        if any(kind_of(name) not in KINDS for name in self.seen):
            return {}
        sure = [name for name in self.seen if name not in self.notes]
        given = examples(self.model, sure, {name: self.seen[name].inputs for name in sure})
        tokens = max(one.tokens for one in self.seen.values())
        ratios: dict[str, list[float]] = {}
        for name, found in Predictor.load().predict(given).items():
            predicted = found * self.seen[name].tokens / tokens  # of which an expert gets a share
            lost, (outputs, inputs) = self.whitened[name], self.weight(name).shape
            price = float(lost[min(rank_for(outputs, inputs, KEEP), len(lost) - 1)])
            ratios.setdefault(kind_of(name), []).append(log(max(predicted, 1e-12) / max(price, 1e-12)))
        return {kind: exp(sum(logs) / len(logs)) for kind, logs in ratios.items()}

    def option(self, name: str, family: str, cost: float, bits: float, method: Method) -> Option:
        """One for a matrix, with what there is to be said of its statistics."""
        noted = cast(Method, Noted(method, self.notes[name])) if name in self.notes else method
        return Option(family, cost, bits, noted)

    def weight(self, name: str) -> torch.Tensor:
        return weight_of(self.model.get_submodule(name)).detach()

    def factor(self, name: str) -> float:
        return self.factors.get(kind_of(name), 1.0)

    def price(self, name: str, changed: torch.Tensor) -> float:
        return self.factor(name) * damage(changed - self.weight(name), self.held[name])

    def whole(self, name: str) -> Curvature:
        """Over all tokens: what is chosen is made with it."""
        one, other = self.seen[name], self.held[name]
        tokens = one.tokens + other.tokens
        inputs = (one.inputs * one.tokens + other.inputs * other.tokens) / max(tokens, 1)
        return Curvature(inputs, (one.outputs + other.outputs) / 2, tokens)

    @property
    def head_size(self) -> int:
        return head_size(self.network.checkpoint.config)


def tails(method: WhitenedSVD, weight: torch.Tensor, seen: Curvature, held: Curvature) -> torch.Tensor:
    """float64 [min(O, I)]: by rank R, what leaving out all directions from R on costs by `held` when they were found by
    `seen`: 1/2 sum of (l_j^T G l_k) (r_j^T H r_k) over j, k >= R, where l_k r_k^T is the part of direction k."""
    left, right = method.factors(weight, seen.inputs, min(weight.shape))
    return 0.5 * _behind((left.T @ held.outputs.double() @ left) * (right @ held.inputs.double() @ right.T))


def _behind(crossed: torch.Tensor) -> torch.Tensor:
    """[R] of a matrix [R, R]: the sum of what lies in rows and columns from each on."""
    return crossed.flip(0, 1).cumsum(0).cumsum(1).diagonal().flip(0).clamp(min=0)


def unit(scene: Scene, block: str, leaves: list[str], pairs: bool) -> Unit:
    """Everything in a block. Pairs, where the architecture is known, stand against the matrices they are made of."""
    free, parts = list(leaves), []
    for make, wanted in _pairs(scene) if pairs else ():
        if set(wanted) <= set(leaves):
            parts.append(make(scene, block, tuple(_matrix(scene, f"{block}.{leaf}") for leaf in wanted)))
            free = [leaf for leaf in free if leaf not in wanted]
    return Unit(block, (), (*parts, *(_matrix(scene, f"{block}.{leaf}") for leaf in free)))


def _pairs(scene: Scene) -> list[tuple[Callable[..., Unit], tuple[str, ...]]]:
    """Matrices with channels between them that can be left out, and what makes their options."""
    try:
        architecture = architecture_of(scene.network.checkpoint.config, modular.PAIRS)
    except ModelError:
        return []
    scores = [] if architecture.normed_heads else [(_scores, _SCORES)]
    return [(_mlp, _MLP), (_head_values, _VALUES), *scores]


def _matrix(scene: Scene, name: str) -> Unit:
    """One matrix: whole, of low rank, or of another family; an expert's has one form, whatever its rank."""
    weight, inputs, expert = scene.weight(name), scene.seen[name].inputs, is_expert(name)
    total, least, mask = sum(weight.shape), min(weight.shape), 8 * ceil(len(weight) / 8)
    options = [scene.option(name, DENSE, 0.0, scene.bits * weight.numel() + mask * expert, Keep(pivoted=expert))]
    gradients = None if name in scene.notes else scene.whole(name).outputs
    for rank in sorted({max(1, round(share * least)) for share in _SHARES}):
        stored = scene.bits * rank * (total - rank) + mask
        costs = [float(lost[name][rank]) for lost in (scene.whitened, scene.weighted)]
        method = WhitenedSVD(rank=rank, outputs=gradients if costs[1] < costs[0] else None)
        options.append(scene.option(name, "low-rank", scene.factor(name) * min(costs), stored, method))
    for family, make in () if expert else scene.families.items():
        for one in map(make, _FAMILY_SHARES):
            tensor = one.compress(weight.to(scene.dtype), inputs).tensor
            rounded = scene.bits / (8 * scene.dtype.itemsize) if tensor.quantisable else 1.0
            options.append(Option(family, scene.price(name, tensor.dequantize()), rounded * tensor.stored_bits, one))
    return Unit(name, options)


def _mlp(scene: Scene, block: str, parts: tuple[Unit, ...]) -> Unit:
    """Fewer channels of an MLP. Prices by the held-out half are taken at some numbers of them, and lie between these in
    the proportions of the path."""
    down, seen = scene.weight(f"{block}.mlp.down_proj"), scene.seen[f"{block}.mlp.down_proj"]
    outputs, width = down.shape
    most = int(_MOST_CHANNELS * width)
    path = scene.paths[block] = modular.channels(down, seen, most, group=_GROUP)
    counts = sorted({round(most * (i + 1) / _STEPS) for i in range(_STEPS)})
    at = sorted({max(1, round(most * share)) for share in _PRICED})
    prices = [
        scene.price(f"{block}.mlp.down_proj", modular.without_inputs(down, seen, path.order[:count])) for count in at
    ]
    rises = [price / max(float(path.costs[count]), 1e-30) for price, count in zip(prices, at, strict=True)]
    each, masks = 3 * outputs * scene.bits, 8 * 3 * ceil((width + outputs) / 8) + 3 * 64
    options = [
        Option("fewer channels", float(cost), each * (width - n) + masks, None, ("channels", n))
        for n, cost in zip(counts, np.interp(counts, at, rises) * path.costs[counts].numpy(), strict=True)
    ]
    return Unit(f"{block}.mlp", options, parts)


def _head_values(scene: Scene, block: str, parts: tuple[Unit, ...]) -> Unit:
    """Fewer values of each head: as many in all as `edit` says, the least important ones of all heads first."""
    v, o = (scene.weight(f"{block}.{leaf}") for leaf in _VALUES)
    size = scene.head_size
    name = f"{block}.self_attn.v_proj"
    heads = modular.values(v, o, scene.seen[name], size)
    order = torch.cat([head.losses for head in heads]).argsort()
    alone = torch.cat([modular.prices(head, scene.held[name], i) for i, head in enumerate(heads)])
    costs = scene.factor(name) * alone[order].cumsum(0)
    each = scene.bits * (v.shape[1] + len(o) * o.shape[1] // len(v))
    masks = 8 * (ceil(len(v) / 8) + ceil(v.shape[1] / 8) + ceil(len(o) / 8) + ceil(o.shape[1] / 8)) + 2 * 64
    counts = sorted({round(len(v) * _MOST_OF_HEADS * (i + 1) / _STEPS) for i in range(_STEPS)} - {0})
    options = [
        Option("fewer values", float(costs[n - 1]), each * (len(v) - n) + masks, None, ("values", n)) for n in counts
    ]
    return Unit(f"{block}.values", options, parts)


def _scores(scene: Scene, block: str, parts: tuple[Unit, ...]) -> Unit:
    """Queries and keys with fewer rotary pairs, or in low rank on one basis."""
    return Unit(f"{block}.scores", [*_rotary(scene, block), *_shared(scene, block)], parts)


def _rotary(scene: Scene, block: str) -> list[Option]:
    """Fewer rotary pairs of queries and keys."""
    a, b = (f"{block}.{leaf}" for leaf in _SCORES)
    q, k, size = scene.weight(a), scene.weight(b), scene.head_size
    _, path = modular.rotary_pairs(q, k, scene.seen[a], scene.seen[b], size)
    alone = modular.pair_costs(q, k, scene.held[a], scene.held[b], size).flatten()[path.order]
    costs = (scene.factor(a) * scene.factor(b)) ** 0.5 * alone.cumsum(0)
    each = scene.bits * q.shape[1] * 2 * (1 + len(q) // len(k))
    masks = 8 * (ceil(len(q) / 8) + ceil(len(k) / 8) + 2 * ceil(q.shape[1] / 8)) + 2 * 64
    total = len(costs)
    counts = sorted({round(total * _MOST_OF_HEADS * (i + 1) / _STEPS) for i in range(_STEPS)} - {0})
    return [
        Option("fewer rotary pairs", float(costs[n - 1]), each * (total - n) + masks, None, ("rotary", n))
        for n in counts
    ]


def _shared(scene: Scene, block: str) -> list[Option]:
    """Queries and keys on one basis, with or without regard to gradients."""
    if not scene.shared:
        return []
    names = [f"{block}.{leaf}" for leaf in _SCORES]
    rows, inputs = sum(len(scene.weight(name)) for name in names), scene.weight(names[0]).shape[1]
    costs = [_shared_tails(scene, names, shared_method(scene, names, None, weighted)) for weighted in (False, True)]
    masks, places, owner = sum(ceil(len(scene.weight(name)) / 8) for name in names), 4 * len(names), len("q_proj")
    options = []
    for rank in sorted({max(1, round(share * min(rows, inputs))) for share in _SHARES}):
        plain, weighted = (float(lost[rank]) for lost in costs)
        bits = scene.bits * rank * (rows + inputs - rank) + 8 * (masks + places + owner)
        edit = ("shared, weighted" if weighted < plain else "shared", rank)
        options.append(Option("shared low rank", min(plain, weighted), bits, None, edit))
    return options


def _shared_tails(scene: Scene, names: list[str], method: SharedSVD) -> torch.Tensor:
    """As `tails`, summed over matrices on one basis."""
    weights = {name: scene.weight(name) for name in names}
    stack, seen = torch.cat(list(weights.values())), scene.seen[names[0]].inputs
    left, right = method.method(weights, seen).factors(stack, seen, min(stack.shape))
    reach = right @ scene.held[names[0]].inputs.double() @ right.T
    lost = torch.zeros(len(right), dtype=torch.float64)
    for name, part in zip(names, torch.split(left, [len(weight) for weight in weights.values()]), strict=True):
        lost += 0.5 * scene.factor(name) * _behind((part.T @ scene.held[name].outputs.double() @ part) * reach)
    return lost


def shared_method(scene: Scene, names: list[str], rank: int | None, weighted: bool) -> SharedSVD:
    """For matrices on one basis, made with what both halves of the tokens say where the rank is given."""
    outputs = [(scene.seen[name] if rank is None else scene.whole(name)).outputs for name in names]
    blocks = torch.block_diag(*outputs) if weighted else None  # type: ignore[no-untyped-call]
    return SharedSVD(rank=rank, outputs=blocks)


def planned(scene: Scene, block: str, edit: tuple[str, int]) -> dict[str, Method]:
    """By module, the methods of an option of several matrices that are made in the pass over the blocks; none where
    the option edits weights."""
    what, count = edit
    if not what.startswith("shared"):
        return {}
    names = [f"{block}.{leaf}" for leaf in _SCORES]
    return dict.fromkeys(names, shared_method(scene, names, count, what == "shared, weighted"))


def edited(scene: Scene, block: str, edit: tuple[str, int]) -> dict[str, torch.Tensor]:
    """The tensors of a pair, by their names in the block."""
    what, count = edit
    return _EDITS[what](scene, block, count)


def _edited_mlp(scene: Scene, block: str, count: int) -> dict[str, torch.Tensor]:
    matrices = {leaf: scene.weight(f"{block}.mlp.{leaf}_proj") for leaf in ("gate", "up", "down")}
    seen = scene.whole(f"{block}.mlp.down_proj")
    out = modular.without_channels(matrices, seen, scene.paths[block].order[:count])
    return {f"mlp.{leaf}_proj.weight": tensor for leaf, tensor in out.items()}


def _edited_values(scene: Scene, block: str, count: int) -> dict[str, torch.Tensor]:
    v, o = (scene.weight(f"{block}.{leaf}") for leaf in _VALUES)
    size = scene.head_size
    heads = modular.values(v, o, scene.whole(f"{block}.self_attn.v_proj"), size)
    bar = torch.cat([head.losses for head in heads]).sort().values[count - 1]
    ranks = [int((head.losses > bar).sum()) for head in heads]
    bias = dict(scene.model.get_submodule(f"{block}.{_VALUES[0]}").named_parameters()).get("bias")
    new_v, new_o, new_bias = modular.with_values(v, o, heads, ranks, bias if bias is None else bias.detach())
    found = {f"{_VALUES[0]}.weight": new_v, f"{_VALUES[1]}.weight": new_o}
    return found if new_bias is None else found | {f"{_VALUES[0]}.bias": new_bias}


def _edited_scores(scene: Scene, block: str, count: int) -> dict[str, torch.Tensor]:
    a, b = (f"{block}.{leaf}" for leaf in _SCORES)
    q, k, size = scene.weight(a), scene.weight(b), scene.head_size
    units, _ = modular.rotary_pairs(q, k, scene.seen[a], scene.seen[b], size)
    pair = modular.without_pairs(q, k, units[:count], size)
    return {f"{leaf}.weight": matrix for leaf, matrix in zip(_SCORES, pair, strict=True)}


_EDITS = {"channels": _edited_mlp, "values": _edited_values, "rotary": _edited_scores}
