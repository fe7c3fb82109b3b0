"""A plan for a checkpoint: which family, rank or pair each matrix gets, from measured curvature and stored bytes.

options.py says what there is to choose from and what it costs, model/planner.py chooses.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import torch

from squeeze.errors import ModelError, SqueezeError
from squeeze.factor.options import Maker, Scene, edited, unit
from squeeze.model.checkpoint import Checkpoint
from squeeze.model.curvature import curvature
from squeeze.model.evaluate import load_model
from squeeze.model.method import Method
from squeeze.model.network import Network, is_linear
from squeeze.model.pipeline import Progress
from squeeze.model.pipeline import plan as linear_modules
from squeeze.model.planner import Option, choose
from squeeze.prune.modular import Slice

__all__ = ["Plan", "make_plan"]


@dataclass(frozen=True)
class Plan:
    """methods: by the checkpoint's name of a module; replaced: tensors that pairs have become; rows: what was chosen,
    (name, family, stored bits, predicted nats)."""

    methods: dict[str, Method]
    replaced: dict[str, torch.Tensor]
    rows: list[tuple[str, str, int, float]] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return {name: {"family": family, "bits": bits, "cost": cost} for name, family, bits, cost in self.rows}


def make_plan(
    checkpoint: Checkpoint,
    tokens: torch.Tensor,
    *,
    keep: float | None = None,
    target_bytes: int | None = None,
    pairs: bool = True,
    families: Mapping[str, Maker] | None = None,
    dtype: torch.dtype = torch.bfloat16,
    ignore: Iterable[str] = (),
    seed: int = 0,
    device: str = "cpu",
    progress: Progress | None = None,
) -> Plan:
    """Plan for `keep` of the blocks' matrices, or for a whole checkpoint of `target_bytes`.

    tokens: calibration sequences [N, L], two at least. pairs: also leave channels out between matrices, where the
    architecture is known. families: other makers of methods by share of stored values, whose damage is measured.
    dtype: of stored values. The whole model and its curvature are in memory. Raises SqueezeError where the budget
    cannot be met, ModelError for experts.
    """
    if keep is None and target_bytes is None:
        raise SqueezeError("say how much to keep, or how many bytes the result may take")
    if len(tokens) < 2:
        raise SqueezeError("a plan needs at least two calibration sequences: it prices on one half what the other gave")
    network = Network(checkpoint)
    blocks = {block: linear_modules(network, block, ignore)[0] for block in network.blocks}
    names = [f"{block}.{leaf}" for block, leaves in blocks.items() for leaf in leaves]
    model = load_model(checkpoint.folder, torch.float32, device)
    if not set(names) <= {name for name, module in model.named_modules() if is_linear(module)}:
        raise ModelError(f"{checkpoint.folder}: experts cannot be planned yet; choose one --method for all")
    network.check(tokens)
    done = count(1)

    def tick(more: int) -> None:
        if progress:
            progress("curvature", next(done), len(tokens))

    seen, held = (curvature(model, half, names, seed, tick) for half in (tokens[::2], tokens[1::2]))
    scene = Scene(network, model, seen, held, dtype, families or {})
    units = [unit(scene, block, leaves, pairs) for block, leaves in blocks.items()]
    return _assembled(scene, choose(units, _budget(scene, keep, target_bytes)))


def _budget(scene: Scene, keep: float | None, target_bytes: int | None) -> int:
    """Bits for the matrices."""
    checkpoint, sources = scene.network.checkpoint, scene.network.sources
    if target_bytes is None:
        assert keep is not None
        return int(keep * scene.bits * sum(scene.weight(name).numel() for name in scene.seen))
    stored = checkpoint.bytes_of(sources[f"{name}.weight"] for name in scene.seen)
    return 8 * (target_bytes - (checkpoint.bytes_of(checkpoint.files) - stored))


def _assembled(scene: Scene, chosen: Mapping[str, Option]) -> Plan:
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
        block = name.rpartition(".")[0]
        for leaf, tensor in edited(scene, block, option.edit).items():
            source = scene.network.sources[f"{block}.{leaf}.weight"]
            replaced[source] = tensor.to(scene.network.checkpoint.load([source])[source].dtype).contiguous()
            methods[stored(f"{block}.{leaf}")] = Slice()
    return Plan(methods, replaced, rows)
