"""A plan of which family, rank or pair each matrix gets, by measured curvature and stored bytes.

options.py lists the choices and their costs, and factor/planner.py chooses.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import torch

from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.engine.expert_names import is_expert
from squeeze.engine.method import Method
from squeeze.engine.network import Network, weight_of
from squeeze.engine.pipeline import Progress
from squeeze.engine.selection import plan as linear_modules
from squeeze.errors import SqueezeError
from squeeze.factor import modegpt as decomposition
from squeeze.factor.curvature import Curvature, curvature, on_disk
from squeeze.factor.planner import Option, Unit, choose
from squeeze.recipes.plan.edits import Edits
from squeeze.recipes.plan.options import DENSE, SCORES, VALUES, Maker, PlanContext, shared_method, unit

__all__ = ["Plan", "edited", "make_plan", "planned"]

_PARTS = ("outputs", "inputs")
_PLACE = 32  # bits of an entry, besides its value


@dataclass
class Plan(Edits):
    """The chosen options and their edits.

    `rows` are (name, family, stored bits, predicted nats). `single_family` has, by family, the predicted nats of using
    that family for every matrix at one ratio, in at most as many bits.
    """

    rows: list[tuple[str, str, int, float]] = field(default_factory=list)
    single_family: dict[str, float] = field(default_factory=dict)

    @property
    def predicted(self) -> dict[str, float]:
        """Predicted rises of the loss in nats a token, of the plan and of each family alone."""
        return {"plan": sum(cost for *_, cost in self.rows), **self.single_family}

    def as_json(self) -> dict[str, Any]:
        return {name: {"family": family, "bits": bits, "cost": cost} for name, family, bits, cost in self.rows}


@dataclass(frozen=True, kw_only=True)
class PlanConfig:
    """Limits and choices of a plan.

    `keep` is a share of the blocks' matrices, and `target_bytes` the size of the whole checkpoint. `pairs` also removes
    channels between matrices, and `shared` puts queries and keys on one basis, in known architectures. `families` are
    more makers of methods, whose loss is measured. `dtype` is that of stored values and `value_bits` what each takes if
    factors are quantised. `entries` is the number of exact entries of each matrix.
    """

    keep: float | None = None
    target_bytes: int | None = None
    pairs: bool = True
    shared: bool = True
    families: Mapping[str, Maker] = field(default_factory=dict)
    dtype: torch.dtype = torch.bfloat16
    value_bits: float | None = None
    entries: int = 0
    ignore: tuple[str, ...] = ()

    @property
    def bits(self) -> float:
        """Bits of a stored value."""
        return self.value_bits or 8 * self.dtype.itemsize


def make_plan(
    checkpoint: Checkpoint,
    tokens: torch.Tensor,
    config: PlanConfig,
    *,
    seed: int = 0,
    device: str = "cpu",
    progress: Progress | None = None,
) -> Plan:
    """Choose a family and a rank for each matrix.

    One block is in memory, with its curvature and candidates; everything else lies in files. Experts that too few
    tokens reach are priced like the block's others, with a note.

    Args:
        checkpoint: The checkpoint.
        tokens: int64 [N, L], at least two calibration sequences.
        config: Limits and choices.
        seed: Seed of the sampled gradients.
        device: Torch device.
        progress: Called with what is done and what is left.

    Raises:
        SqueezeError: If the limits cannot be met.
    """
    if config.keep is None and config.target_bytes is None:
        raise SqueezeError("give a share (`keep`) or a size (`target_bytes`)")
    if len(tokens) < 2:
        raise SqueezeError("a plan needs at least two calibration sequences: one half is fitted and the other prices")
    network, device_network = Network(checkpoint), Network(checkpoint, device)
    network.check(tokens)
    blocks = {block: linear_modules(network, block, config.ignore)[0] for block in network.blocks}
    shapes = {
        name: (weight.shape[0], weight.shape[1])
        for block, leaves in blocks.items()
        for name in (f"{block}.{leaf}" for leaf in leaves)
        for weight in [weight_of(network.module(name))]
    }
    done = count(1)

    def tick(more: int) -> None:
        if progress:
            progress("curvature", next(done), 2 * len(blocks))

    fit, validation = (curvature(device_network, half, blocks, seed, tick) for half in (tokens[::2], tokens[1::2]))
    notes = {**fill(fit, shapes), **fill(validation, shapes)}
    fit, validation = ({name: half[name] for name in shapes} for half in (fit, validation))
    context = PlanContext(network, fit, validation, config.dtype, config.families, notes, config.shared, config.bits)
    units = [unit(context, block, leaves, config.pairs) for block, leaves in blocks.items()]
    budget = _budget(context, config.keep, config.target_bytes)
    budget -= (_PLACE + 8 * config.dtype.itemsize) * config.entries * len(shapes)
    plan = _assembled(context, choose(units, budget))
    plan.single_family = _single_family_costs(units, budget)
    return plan


def _single_family_costs(units: Sequence[Unit], budget: int) -> dict[str, float]:
    """Return the cost of each family alone, at the same share of every matrix's bits, unless it cannot be that
    small."""
    by_name: dict[str, Unit] = {}
    for member in units:
        by_name |= member.by_name()
    matrices = [member.options for member in by_name.values() if member.options[0].family == DENSE]
    share = budget / sum(options[0].bits for options in matrices)
    costs = {}
    for family in sorted({option.family for options in matrices for option in options} - {DENSE}):
        small = [
            [option.cost for option in options if option.family == family and option.bits <= share * options[0].bits]
            for options in matrices
        ]
        if all(small):
            costs[family] = sum(map(min, small))
    return costs


def fill(curvatures: dict[str, Curvature], shapes: Mapping[str, tuple[int, int]]) -> dict[str, str]:
    """Replace the curvature of experts that too few tokens reached, and return notes on them by name.

    They get a multiple of the identity, scaled like the same matrix of the block's other experts.

    Args:
        curvatures: Curvature by matrix, changed in place.
        shapes: (O, I) by matrix.
    """
    none = Curvature(torch.zeros(0), torch.zeros(0))
    short = {
        name: curvatures.get(name, none).tokens
        for name, (_, inputs) in shapes.items()
        if name not in curvatures or (is_expert(name) and curvatures[name].tokens < inputs)
    }
    known = {name: one for name, one in curvatures.items() if one.tokens}
    of_all: dict[str, dict[str, torch.Tensor]] = {}
    for name, tokens in short.items():
        if (key := _starred(name)) not in of_all:
            alike = [one for other, one in known.items() if _starred(other) == key]
            sizes = {part: _mean(getattr(one, part).diagonal().mean() for one in alike) for part in _PARTS}
            eyes = {part: sizes[part] * torch.eye(n) for part, n in zip(_PARTS, shapes[name], strict=True)}
            of_all[key] = on_disk(eyes)
        curvatures[name] = Curvature(**of_all[key], tokens=tokens)
    return {
        name: f"only {tokens} tokens of the plan's reached its {shapes[name][1]} inputs: priced as the mean expert"
        for name, tokens in short.items()
    }


def _starred(name: str) -> str:
    """Return a name that the same matrix of all experts of a block shares."""
    return re.sub(r"\.experts\.\d+\.", ".experts.*.", name)


def _mean(sizes: Iterable[torch.Tensor]) -> float:
    """Return the mean, or 1 without values, so that a matrix without statistics stays whole."""
    values = [float(size) for size in sizes]
    return sum(values) / len(values) if values else 1.0


def _budget(context: PlanContext, keep: float | None, target_bytes: int | None) -> int:
    """Return the bits for the matrices."""
    checkpoint, sources = context.network.checkpoint, context.network.sources
    if target_bytes is None:
        assert keep is not None
        return int(keep * context.bits * sum(context.numel(name) for name in context.fit))
    stored = checkpoint.bytes_of(sources[f"{name}.weight"] for name in context.fit)
    return 8 * (target_bytes - (checkpoint.bytes_of(checkpoint.files) - stored))


def _assembled(context: PlanContext, chosen: Mapping[str, Option]) -> Plan:
    plan = Plan(context.network)
    for name, option in chosen.items():
        plan.rows.append((name, option.family, round(option.bits), option.cost))
        if option.method is not None:
            plan.methods[context.network.stored_name(name)] = option.method
        else:
            assert option.edit is not None
            block = name.rpartition(".")[0]
            shared_methods = planned(context, block, option.edit)
            plan.methods |= {context.network.stored_name(module): method for module, method in shared_methods.items()}
            if not shared_methods:
                plan.put(block, edited(context, block, option.edit))
    return plan


def planned(context: PlanContext, block: str, edit: tuple[str, int]) -> dict[str, Method]:
    """Return the methods, by module, of an option that compresses several matrices; empty if it edits weights."""
    what, count = edit
    if not what.startswith("shared"):
        return {}
    names = [f"{block}.{leaf}" for leaf in SCORES]
    return dict.fromkeys(names, shared_method(context, names, count, what == "shared, weighted"))


def edited(context: PlanContext, block: str, edit: tuple[str, int]) -> dict[str, torch.Tensor]:
    """Return the edited tensors of a pair, by their names in the block."""
    what, count = edit
    return _EDITS[what](context, block, count)


def _edited_mlp(context: PlanContext, block: str, count: int) -> dict[str, torch.Tensor]:
    matrices = {leaf: context.weight(f"{block}.mlp.{leaf}_proj") for leaf in ("gate", "up", "down")}
    seen = context.whole(f"{block}.mlp.down_proj")
    out = decomposition.without_channels(matrices, seen, context.paths[block].order[:count])
    return {f"mlp.{leaf}_proj.weight": tensor for leaf, tensor in out.items()}


def _edited_values(context: PlanContext, block: str, count: int) -> dict[str, torch.Tensor]:
    v, o = (context.weight(f"{block}.{leaf}") for leaf in VALUES)
    size = context.head_size
    heads = decomposition.values(v, o, context.whole(f"{block}.self_attn.v_proj"), size)
    bar = torch.cat([head.losses for head in heads]).sort().values[count - 1]
    ranks = [int((head.losses > bar).sum()) for head in heads]
    bias = dict(context.module(f"{block}.{VALUES[0]}").named_parameters()).get("bias")
    new_v, new_o, new_bias = decomposition.with_values(v, o, heads, ranks, bias if bias is None else bias.detach())
    tensors = {f"{VALUES[0]}.weight": new_v, f"{VALUES[1]}.weight": new_o}
    return tensors if new_bias is None else tensors | {f"{VALUES[0]}.bias": new_bias}


def _edited_scores(context: PlanContext, block: str, count: int) -> dict[str, torch.Tensor]:
    a, b = (f"{block}.{leaf}" for leaf in SCORES)
    q, k, size = context.weight(a), context.weight(b), context.head_size
    units, _ = decomposition.rotary_pairs(q, k, context.fit[a], context.fit[b], size)
    pair = decomposition.without_pairs(q, k, units[:count], size)
    return {f"{leaf}.weight": matrix for leaf, matrix in zip(SCORES, pair, strict=True)}


_EDITS = {"channels": _edited_mlp, "values": _edited_values, "rotary": _edited_scores}
