"""What a chosen option of several matrices does to a block: the methods that make it, or the tensors it edits."""

import torch

from squeeze.engine.method import Method
from squeeze.factor import modegpt as decomposition
from squeeze.recipes.plan.options import SCORES, VALUES, PlanContext, shared_method

__all__ = ["edited", "planned"]


def planned(context: PlanContext, block: str, edit: tuple[str, int]) -> dict[str, Method]:
    """By module, the methods of an option of several matrices that are made in the pass over the blocks; none where
    the option edits weights."""
    what, count = edit
    if not what.startswith("shared"):
        return {}
    names = [f"{block}.{leaf}" for leaf in SCORES]
    return dict.fromkeys(names, shared_method(context, names, count, what == "shared, weighted"))


def edited(context: PlanContext, block: str, edit: tuple[str, int]) -> dict[str, torch.Tensor]:
    """The tensors of a pair, by their names in the block."""
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
