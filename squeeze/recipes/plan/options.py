"""Options for the matrices of a block, alone or in pairs, with their stored bits and predicted loss.

K-FAC's curvature (factor/curvature.py) predicts the loss of an option, on other tokens than those it was fitted to:
ranks and channels look far cheaper on their own tokens. The sensitivity predictor corrects the kinds of layers that
K-FAC misjudges, such as attention values, whose errors average out. All prices of a kind are multiplied by the
geometric mean of its predictions over K-FAC's.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import ceil, exp, log
from typing import cast

import numpy as np
import torch
from torch import nn

from squeeze.checkpoint.architectures import architecture_of, head_size
from squeeze.engine.expert_names import is_expert
from squeeze.engine.method import Method
from squeeze.engine.network import Network, weight_of
from squeeze.errors import ModelError
from squeeze.factor import modegpt as decomposition
from squeeze.factor.curvature import Curvature, damage, on_disk
from squeeze.factor.lowrank import Identity, WhitenedSVD, rank_for
from squeeze.factor.planner import Option, Unit
from squeeze.factor.sensitivity import KEEP, KINDS, Predictor, examples, kind_of
from squeeze.factor.shared import SharedSVD
from squeeze.recipes.plan.edits import WithNote
from squeeze.system.machine import trim_memory

__all__ = ["DENSE", "SCORES", "VALUES", "Maker", "PlanContext", "shared_method", "tails", "unit"]

DENSE = "dense"  # the family of what stays whole
_SHARES = tuple(i / 100 for i in range(4, 100, 2))  # of a matrix's ranks that are tried
_FAMILY_SHARES = (0.95, 0.9, 0.8, 0.7, 0.6)  # of a matrix's values that are tried of other families
_STEPS = 24  # numbers of channels that are tried
_MOST_CHANNELS = 0.3  # of an MLP that may go
_MOST_OF_HEADS = 0.6  # of the values or rotary pairs of heads that may go
_GROUP = 16  # channels that go at a time
_PRICED = (0.1, 0.3, 1.0)  # of the channels that may go, where prices are taken
_MLP = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
VALUES = ("self_attn.v_proj", "self_attn.o_proj")
SCORES = ("self_attn.q_proj", "self_attn.k_proj")
Maker = Callable[[float], Method]


@dataclass
class PlanContext:
    """A context in which options are fitted to `fit` and priced by `validation`, with one block of the network loaded.

    `dtype` and `bits` are those of a stored value. `families` create methods for a share of stored values. `notes` are
    remarks on a matrix's statistics. `shared` allows matrices on one basis. `whitened` and `weighted` hold the loss by
    rank (see `tails`) without and with gradients. `factors` multiply prices by kind of layer. `paths` hold the
    elimination order of each block's MLP channels.
    """

    network: Network
    fit: dict[str, Curvature]
    validation: dict[str, Curvature]
    dtype: torch.dtype
    families: Mapping[str, Maker]
    notes: Mapping[str, str] = field(default_factory=dict)
    shared: bool = True
    bits: float = 16
    whitened: dict[str, torch.Tensor] = field(default_factory=dict)
    weighted: dict[str, torch.Tensor] = field(default_factory=dict)
    factors: dict[str, float] = field(default_factory=dict)
    paths: dict[str, decomposition.EliminationOrder] = field(default_factory=dict)
    _loaded: str = ""

    def __post_init__(self) -> None:
        for name, seen in self.fit.items():
            weight, validation = self.weight(name), self.validation[name]
            self.whitened[name] = tails(WhitenedSVD(), weight, seen, validation)
            self.weighted[name] = tails(WhitenedSVD(outputs=seen.outputs), weight, seen, validation)
        self.factors = self._factors()

    def _factors(self) -> dict[str, float]:
        """Return the factor of prices by kind of layer; empty if the predictor does not know a kind."""
        if any(kind_of(name) not in KINDS for name in self.fit):
            return {}
        sure = [name for name in self.fit if name not in self.notes]
        described = []
        for block in self.network.blocks:
            if inside := [name for name in sure if name.startswith(f"{block}.")]:
                self._load(block)
                described += examples(self.network.model, inside, {name: self.fit[name].inputs for name in inside})
        tokens = max(one.tokens for one in self.fit.values())
        ratios: dict[str, list[float]] = {}
        for name, damage_share in Predictor.load().predict(described).items():
            predicted = damage_share * self.fit[name].tokens / tokens  # of which an expert gets a share
            lost, (outputs, inputs) = self.whitened[name], weight_of(self.network.module(name)).shape
            price = float(lost[min(rank_for(outputs, inputs, KEEP), len(lost) - 1)])
            ratios.setdefault(kind_of(name), []).append(log(max(predicted, 1e-12) / max(price, 1e-12)))
        return {kind: exp(sum(logs) / len(logs)) for kind, logs in ratios.items()}

    def option(self, name: str, family: str, cost: float, bits: float, method: Method) -> Option:
        """Create an option of a matrix, with the note on its statistics."""
        noted = cast(Method, WithNote(method, self.notes[name])) if name in self.notes else method
        return Option(family, cost, bits, noted)

    def _load(self, block: str) -> None:
        if block != self._loaded:
            if self._loaded:
                self.network.release(self._loaded)
                trim_memory()
            self.network.load(block)
            self._loaded = block

    def module(self, name: str) -> nn.Module:
        """Return a module with its weights, loading its block."""
        self._load(next(block for block in self.network.blocks if name.startswith(f"{block}.")))
        return self.network.module(name)

    def weight(self, name: str) -> torch.Tensor:
        return weight_of(self.module(name)).detach()

    def numel(self, name: str) -> int:
        return weight_of(self.network.module(name)).numel()

    def factor(self, name: str) -> float:
        return self.factors.get(kind_of(name), 1.0)

    def price(self, name: str, changed: torch.Tensor) -> float:
        return self.factor(name) * damage(changed - self.weight(name), self.validation[name])

    def whole(self, name: str) -> Curvature:
        """Return the curvature over all tokens, with which the chosen option is made."""
        fit, validation = self.fit[name], self.validation[name]
        tokens = fit.tokens + validation.tokens
        inputs = (fit.inputs * fit.tokens + validation.inputs * validation.tokens) / max(tokens, 1)
        return Curvature(inputs, (fit.outputs + validation.outputs) / 2, tokens)

    @property
    def head_size(self) -> int:
        return head_size(self.network.checkpoint.config)


def tails(method: WhitenedSVD, weight: torch.Tensor, fit: Curvature, validation: Curvature) -> torch.Tensor:
    """Return the loss of a factorisation by rank R, float64 [min(O, I)], by the curvature `validation`.

    It is 1/2 sum of (l_j^T G l_k) (r_j^T H r_k) over j, k >= R, with l_k r_k^T the k-th direction found by `fit`.

    Args:
        method: The factorisation.
        weight: [O, I].
        fit: Curvature that the directions are found by.
        validation: Curvature that the loss is measured by.
    """
    left, right = method.factors(weight, fit.inputs, min(weight.shape))
    return 0.5 * _behind((left.T @ validation.outputs.double() @ left) * (right @ validation.inputs.double() @ right.T))


def _behind(crossed: torch.Tensor) -> torch.Tensor:
    """Return for each index of a matrix [R, R] the sum of its rows and columns from there on."""
    return crossed.flip(0, 1).cumsum(0).cumsum(1).diagonal().flip(0).clamp(min=0)


def unit(context: PlanContext, block: str, leaves: list[str], pairs: bool) -> Unit:
    """Return the choices of a block; in known architectures pairs of matrices compete with their members."""
    free, parts = list(leaves), []
    for make, wanted in _pairs(context) if pairs else ():
        if set(wanted) <= set(leaves):
            parts.append(make(context, block, tuple(_matrix(context, f"{block}.{leaf}") for leaf in wanted)))
            free = [leaf for leaf in free if leaf not in wanted]
    return Unit(block, (), (*parts, *(_matrix(context, f"{block}.{leaf}") for leaf in free)))


def _pairs(context: PlanContext) -> list[tuple[Callable[..., Unit], tuple[str, ...]]]:
    """Return the groups of matrices that share removable channels, with the functions that create their options."""
    try:
        architecture = architecture_of(context.network.checkpoint.config, decomposition.PAIRS)
    except ModelError:
        return []
    scores = [] if architecture.normed_heads else [(_scores, SCORES)]
    return [(_mlp, _MLP), (_head_values, VALUES), *scores]


def _matrix(context: PlanContext, name: str) -> Unit:
    """Return the options of one matrix: whole, low rank, or another family. An expert has one form at any rank."""
    weight, inputs, expert = context.weight(name), context.fit[name].inputs, is_expert(name)
    total, least, mask = sum(weight.shape), min(weight.shape), 8 * ceil(len(weight) / 8)
    options = [
        context.option(name, DENSE, 0.0, context.bits * weight.numel() + mask * expert, Identity(pivoted=expert))
    ]
    gradients = None if name in context.notes else on_disk({"": context.whole(name).outputs})[""]
    for rank in sorted({rank for share in _SHARES if (rank := max(1, round(share * least))) < least}):
        stored = context.bits * rank * (total - rank) + mask
        costs = [float(lost[name][rank]) for lost in (context.whitened, context.weighted)]
        method = WhitenedSVD(rank=rank, outputs=gradients if costs[1] < costs[0] else None)
        options.append(context.option(name, "low-rank", context.factor(name) * min(costs), stored, method))
    for family, make in () if expert else context.families.items():
        for tried in map(make, _FAMILY_SHARES):
            tensor = tried.compress(weight.to(context.dtype), inputs).tensor
            rounded = context.bits / (8 * context.dtype.itemsize) if tensor.quantisable else 1.0
            options.append(
                Option(family, context.price(name, tensor.dequantize()), rounded * tensor.stored_bits, tried)
            )
    return Unit(name, options)


def _mlp(context: PlanContext, block: str, parts: tuple[Unit, ...]) -> Unit:
    """Return the options of an MLP with fewer channels.

    Prices are computed for some numbers of channels and interpolated along the elimination path.
    """
    down, curvature = context.weight(f"{block}.mlp.down_proj"), context.fit[f"{block}.mlp.down_proj"]
    outputs, width = down.shape
    most = int(_MOST_CHANNELS * width)
    path = context.paths[block] = decomposition.channels(down, curvature, most, group=_GROUP)
    counts = sorted({round(most * (i + 1) / _STEPS) for i in range(_STEPS)})
    priced = sorted({max(1, round(most * share)) for share in _PRICED})
    prices = [
        context.price(f"{block}.mlp.down_proj", decomposition.without_inputs(down, curvature, path.order[:count]))
        for count in priced
    ]
    rises = [price / max(float(path.costs[count]), 1e-30) for price, count in zip(prices, priced, strict=True)]
    each, masks = 3 * outputs * context.bits, 8 * 3 * ceil((width + outputs) / 8) + 3 * 64
    options = [
        Option("fewer channels", float(cost), each * (width - n) + masks, None, ("channels", n))
        for n, cost in zip(counts, np.interp(counts, priced, rises) * path.costs[counts].numpy(), strict=True)
    ]
    return Unit(f"{block}.mlp", options, parts)


def _head_values(context: PlanContext, block: str, parts: tuple[Unit, ...]) -> Unit:
    """Return the options of attention with fewer values, the least important of all heads first."""
    v, o = (context.weight(f"{block}.{leaf}") for leaf in VALUES)
    size = context.head_size
    name = f"{block}.self_attn.v_proj"
    heads = decomposition.values(v, o, context.fit[name], size)
    order = torch.cat([head.losses for head in heads]).argsort()
    alone = torch.cat([decomposition.prices(head, context.validation[name], i) for i, head in enumerate(heads)])
    costs = context.factor(name) * alone[order].cumsum(0)
    each = context.bits * (v.shape[1] + len(o) * o.shape[1] // len(v))
    masks = 8 * (ceil(len(v) / 8) + ceil(v.shape[1] / 8) + ceil(len(o) / 8) + ceil(o.shape[1] / 8)) + 2 * 64
    counts = sorted({round(len(v) * _MOST_OF_HEADS * (i + 1) / _STEPS) for i in range(_STEPS)} - {0})
    options = [
        Option("fewer values", float(costs[n - 1]), each * (len(v) - n) + masks, None, ("values", n)) for n in counts
    ]
    return Unit(f"{block}.values", options, parts)


def _scores(context: PlanContext, block: str, parts: tuple[Unit, ...]) -> Unit:
    """Return the options of queries and keys: fewer rotary pairs, or low rank on one basis."""
    return Unit(f"{block}.scores", [*_rotary(context, block), *_shared(context, block)], parts)


def _rotary(context: PlanContext, block: str) -> list[Option]:
    """Return the options with fewer rotary pairs."""
    a, b = (f"{block}.{leaf}" for leaf in SCORES)
    q, k, size = context.weight(a), context.weight(b), context.head_size
    _, path = decomposition.rotary_pairs(q, k, context.fit[a], context.fit[b], size)
    alone = decomposition.pair_costs(q, k, context.validation[a], context.validation[b], size).flatten()[path.order]
    costs = (context.factor(a) * context.factor(b)) ** 0.5 * alone.cumsum(0)
    each = context.bits * q.shape[1] * 2 * (1 + len(q) // len(k))
    masks = 8 * (ceil(len(q) / 8) + ceil(len(k) / 8) + 2 * ceil(q.shape[1] / 8)) + 2 * 64
    total = len(costs)
    counts = sorted({round(total * _MOST_OF_HEADS * (i + 1) / _STEPS) for i in range(_STEPS)} - {0})
    return [
        Option("fewer rotary pairs", float(costs[n - 1]), each * (total - n) + masks, None, ("rotary", n))
        for n in counts
    ]


def _shared(context: PlanContext, block: str) -> list[Option]:
    """Return the options with queries and keys on one basis, with or without gradients."""
    if not context.shared:
        return []
    names = [f"{block}.{leaf}" for leaf in SCORES]
    rows, inputs = sum(len(context.weight(name)) for name in names), context.weight(names[0]).shape[1]
    costs = [_shared_tails(context, names, shared_method(context, names, None, weighted)) for weighted in (False, True)]
    masks, places, owner = sum(ceil(len(context.weight(name)) / 8) for name in names), 4 * len(names), len("q_proj")
    options = []
    for rank in sorted({max(1, round(share * min(rows, inputs))) for share in _SHARES}):
        plain, weighted = (float(lost[rank]) for lost in costs)
        bits = context.bits * rank * (rows + inputs - rank) + 8 * (masks + places + owner)
        edit = ("shared, weighted" if weighted < plain else "shared", rank)
        options.append(Option("shared low rank", min(plain, weighted), bits, None, edit))
    return options


def _shared_tails(context: PlanContext, names: list[str], method: SharedSVD) -> torch.Tensor:
    """Return the loss of `tails`, summed over matrices on one basis."""
    weights = {name: context.weight(name) for name in names}
    stack, seen = torch.cat(list(weights.values())), context.fit[names[0]].inputs
    left, right = method.method(weights, seen).factors(stack, seen, min(stack.shape))
    reach = right @ context.validation[names[0]].inputs.double() @ right.T
    lost = torch.zeros(len(right), dtype=torch.float64)
    for name, rows in zip(names, torch.split(left, [len(weight) for weight in weights.values()]), strict=True):
        lost += (
            0.5 * context.factor(name) * _behind((rows.T @ context.validation[name].outputs.double() @ rows) * reach)
        )
    return lost


def shared_method(context: PlanContext, names: list[str], rank: int | None, weighted: bool) -> SharedSVD:
    """Return the method for matrices on one basis, fitted to all tokens if the rank is given."""
    outputs = [(context.fit[name] if rank is None else context.whole(name)).outputs for name in names]
    if not weighted:
        return SharedSVD(rank=rank)
    return SharedSVD(rank=rank, outputs=on_disk({"": torch.block_diag(*outputs)})[""])  # type: ignore[no-untyped-call]
