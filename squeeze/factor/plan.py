"""A plan for a checkpoint: which family, rank or pair each matrix gets, from measured curvature and stored bytes."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import ceil
from typing import Any

import torch
from torch import nn

from squeeze.errors import ModelError, SqueezeError
from squeeze.model.checkpoint import Checkpoint
from squeeze.model.curvature import Curvature, curvature, damage
from squeeze.model.evaluate import load_model
from squeeze.model.method import Method
from squeeze.model.network import Network, is_linear, weight_of
from squeeze.model.pipeline import plan as linear_modules
from squeeze.model.planner import Option, Unit, choose
from squeeze.prune import modular
from squeeze.prune.lowrank import Keep, WhitenedSVD, root, spectrum

__all__ = ["Plan", "make_plan"]

_SHARES = tuple(i / 100 for i in range(30, 100, 2))  # of a matrix's values that are tried
_STEPS = 24  # numbers of channels that are tried
_MOST_CHANNELS = 0.3  # of an MLP that may go
Maker = Callable[[float], Method]


@dataclass(frozen=True)
class Plan:
    """methods: by the checkpoint's name of a module; replaced: tensors that pairs have become; rows: what was chosen,
    (name, family, stored bits, predicted nats)."""

    methods: dict[str, Method]
    replaced: dict[str, torch.Tensor]
    rows: list[tuple[str, str, int, float]] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return {name: {"family": family, "bits": bits, "cost": cost} for name, family, bits, cost in self.rows}


@dataclass
class _Scene:
    """What options are made from. bits: of a stored value."""

    network: Network
    model: nn.Module
    seen: dict[str, Curvature]
    bits: int
    families: Mapping[str, Maker]

    def weight(self, name: str) -> torch.Tensor:
        return weight_of(self.model.get_submodule(name)).detach()


def make_plan(
    checkpoint: Checkpoint,
    tokens: torch.Tensor,
    *,
    keep: float | None = None,
    target_bytes: int | None = None,
    pairs: bool = True,
    families: Mapping[str, Maker] | None = None,
    bits: int = 16,
    ignore: Iterable[str] = (),
    seed: int = 0,
    device: str = "cpu",
    progress: Callable[[int], None] | None = None,
) -> Plan:
    """Plan for `keep` of the blocks' matrices, or for a whole checkpoint of `target_bytes`.

    tokens: calibration sequences [N, L]. pairs: also leave channels out between matrices, where the architecture is
    known. families: other makers of methods by share of stored values, whose damage is measured. The whole model and
    its curvature are in memory. Raises SqueezeError where the budget cannot be met, ModelError for experts.
    """
    network = Network(checkpoint)
    blocks = {block: linear_modules(network, block, ignore)[0] for block in network.blocks}
    names = [f"{block}.{leaf}" for block, leaves in blocks.items() for leaf in leaves]
    model = load_model(checkpoint.folder, torch.float32, device)
    if not set(names) <= {name for name, module in model.named_modules() if is_linear(module)}:
        raise ModelError(f"{checkpoint.folder}: experts cannot be planned yet; choose one --method for all")
    network.check(tokens)
    seen = curvature(model, tokens, names, seed, progress)
    scene = _Scene(network, model, seen, bits, families or {})
    values = sum(scene.weight(name).numel() for name in names)
    if target_bytes is not None:
        stored = checkpoint.bytes_of(network.sources[f"{name}.weight"] for name in names)
        budget = 8 * (target_bytes - (checkpoint.bytes_of(checkpoint.files) - stored))
    elif keep is not None:
        budget = int(keep * bits * values)
    else:
        raise SqueezeError("say how much to keep, or how many bytes the result may take")
    known = pairs and _has_pairs(checkpoint)
    units = [_unit(scene, block, leaves, known) for block, leaves in blocks.items()]
    return _assembled(scene, choose(units, budget))


def _has_pairs(checkpoint: Checkpoint) -> bool:
    try:
        return modular.heads_of(checkpoint.config) > 0
    except ModelError:
        return False


def _unit(scene: _Scene, block: str, leaves: list[str], pairs: bool) -> Unit:
    """Everything in a block. Pairs stand against the matrices they are made of."""
    free, parts = list(leaves), []
    if pairs:
        for make, wanted in ((_mlp, _MLP), (_head_values, _VALUES)):
            if set(wanted) <= set(leaves):
                parts.append(make(scene, block, tuple(_matrix(scene, f"{block}.{leaf}") for leaf in wanted)))
                free = [leaf for leaf in free if leaf not in wanted]
    return Unit(block, (), (*parts, *(_matrix(scene, f"{block}.{leaf}") for leaf in free)))


_MLP = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
_VALUES = ("self_attn.v_proj", "self_attn.o_proj")


def _matrix(scene: _Scene, name: str) -> Unit:
    """One matrix: whole, of low rank, or of another family."""
    weight, seen = scene.weight(name), scene.seen[name]
    outputs, inputs = weight.shape
    options = [Option("dense", 0.0, scene.bits * weight.numel(), Keep())]
    method = WhitenedSVD(outputs=seen.outputs)
    lost = 0.5 * spectrum(weight, root(seen.inputs, method.damping)[0], root(seen.outputs, method.output_damping)[0])
    tails = lost.flip(0).cumsum(0).flip(0).tolist()
    for rank in sorted({max(1, round(share * min(outputs, inputs))) for share in _SHARES}):
        stored = scene.bits * rank * (outputs + inputs - rank) + 8 * ceil(outputs / 8)
        options.append(Option("low-rank", tails[rank], stored, WhitenedSVD(rank=rank, outputs=seen.outputs)))
    for family, make in scene.families.items():
        for share in (0.95, 0.9, 0.8, 0.7, 0.6):
            one = make(share)
            tensor = one.compress(weight.bfloat16(), seen.inputs).tensor
            options.append(Option(family, damage(tensor.dequantize() - weight, seen), tensor.stored_bits, one))
    return Unit(name, options)


def _mlp(scene: _Scene, block: str, parts: tuple[Unit, ...]) -> Unit:
    """Fewer channels of an MLP."""
    down = scene.weight(f"{block}.mlp.down_proj")
    outputs, width = down.shape
    most = int(_MOST_CHANNELS * width)
    path = modular.channels(down, scene.seen[f"{block}.mlp.down_proj"], most)
    counts = sorted({round(most * (i + 1) / _STEPS) for i in range(_STEPS)})
    each, masks = 3 * outputs * scene.bits, 8 * 3 * ceil((width + outputs) / 8) + 3 * 64
    options = [
        Option("fewer channels", float(path.costs[n]), each * (width - n) + masks, None, ("channels", n))
        for n in counts
    ]
    return Unit(f"{block}.mlp", options, parts)


def _head_values(scene: _Scene, block: str, parts: tuple[Unit, ...]) -> Unit:
    """Fewer values of each head: as many in all as `edit` says, the least important ones of all heads first."""
    v, o = (scene.weight(f"{block}.{leaf}") for leaf in _VALUES)
    size = modular.heads_of(scene.network.checkpoint.config)
    lost = torch.cat([head.losses for head in modular.values(v, o, scene.seen[f"{block}.self_attn.v_proj"], size)])
    costs = torch.cat([lost.new_zeros(1), lost.sort().values.cumsum(0)])
    each = scene.bits * (v.shape[1] + len(o) * o.shape[1] // len(v))
    masks = 8 * (ceil(len(v) / 8) + ceil(v.shape[1] / 8) + ceil(len(o) / 8) + ceil(o.shape[1] / 8)) + 2 * 64
    counts = sorted({round(len(v) * 0.6 * (i + 1) / _STEPS) for i in range(_STEPS)} - {0})
    options = [
        Option("fewer values", float(costs[n]), each * (len(v) - n) + masks, None, ("values", n)) for n in counts
    ]
    return Unit(f"{block}.values", options, parts)


def _assembled(scene: _Scene, chosen: Mapping[str, Option]) -> Plan:
    stored = scene.network.stored_name
    methods: dict[str, Method] = {}
    replaced: dict[str, torch.Tensor] = {}
    rows = []
    for name, option in chosen.items():
        rows.append((name, option.family, option.bits, option.cost))
        if option.method is not None:
            methods[stored(name)] = option.method
            continue
        assert option.edit is not None
        block, (what, count) = name.rpartition(".")[0], option.edit
        edited = _edited_mlp(scene, block, count) if what == "channels" else _edited_values(scene, block, count)
        for leaf, tensor in edited.items():
            source = scene.network.sources[f"{block}.{leaf}.weight"]
            replaced[source] = tensor.to(scene.network.checkpoint.load([source])[source].dtype).contiguous()
            methods[stored(f"{block}.{leaf}")] = modular.Slice()
    return Plan(methods, replaced, rows)


def _edited_mlp(scene: _Scene, block: str, count: int) -> dict[str, torch.Tensor]:
    matrices = {leaf: scene.weight(f"{block}.mlp.{leaf}_proj") for leaf in ("gate", "up", "down")}
    seen = scene.seen[f"{block}.mlp.down_proj"]
    gone = modular.channels(matrices["down"], seen, count).order
    return {f"mlp.{leaf}_proj": tensor for leaf, tensor in modular.without_channels(matrices, seen, gone).items()}


def _edited_values(scene: _Scene, block: str, count: int) -> dict[str, torch.Tensor]:
    v, o = (scene.weight(f"{block}.{leaf}") for leaf in _VALUES)
    size = modular.heads_of(scene.network.checkpoint.config)
    heads = modular.values(v, o, scene.seen[f"{block}.self_attn.v_proj"], size)
    bar = torch.cat([head.losses for head in heads]).sort().values[count - 1]
    ranks = [int((head.losses > bar).sum()) for head in heads]
    return dict(zip(_VALUES, modular.with_values(v, o, heads, ranks), strict=True))
