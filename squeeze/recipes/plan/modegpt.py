"""MoDeGPT as published (Lin et al. 2024, arXiv 2408.09632): every block's pairs of matrices shrink by one ratio.

MLPs keep channels by ridge leverage scores, and the others are compensated (Nystrom). Queries and keys keep the rotary
pairs with the largest product of sizes, equally many in each head (CR). Values of each head are reduced by the SVD of
values and outputs together, over all query heads that share them. Statistics come from the original model, without
gradients and without error propagation. The paper's second variant, a ratio for each block, is covered by plan.py,
which chooses for every pair.
"""

from collections.abc import Iterable, Mapping
from math import ceil

import torch
from torch import nn

from squeeze.checkpoint.architectures import architecture_of, head_size
from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.engine.calibration import InputStatistics
from squeeze.engine.forward import forward
from squeeze.engine.network import Network, weight_of
from squeeze.engine.selection import plan as linear_modules
from squeeze.errors import SqueezeError
from squeeze.factor import modegpt as decomposition
from squeeze.factor.curvature import Curvature, on_disk
from squeeze.factor.sensitivity import watched
from squeeze.recipes.plan.edits import Edits

__all__ = ["modegpt"]

_RIDGE = 1e-3  # of the mean diagonal
_QUERY, _KEY, _VALUE, _OUTPUT = (f"self_attn.{leaf}_proj" for leaf in "qkvo")
_MLP, _DOWN = ("gate", "up", "down"), ".down_proj"
Weights = dict[str, torch.Tensor]  # by the names of tensors in a block


def modegpt(
    checkpoint: Checkpoint,
    tokens: torch.Tensor,
    keep: float,
    *,
    ignore: Iterable[str] = (),
    device: str = "cpu",
) -> Edits:
    """Shrink every block to a share of its bits, and return the edits.

    One block is in memory, with 4 I^2 bytes for each input. Those of MLPs wait in files until the attention is done.

    Args:
        checkpoint: A checkpoint of Llama's kind.
        tokens: int64 [N, L], the calibration set.
        keep: Share of bits to keep. Heads keep this share of rotary pairs and values, rounded down, and MLPs what is
            then left.
        ignore: Parts of the names of modules to leave alone.
        device: Torch device.

    Raises:
        ModelError: If the architecture is not of Llama's kind.
        SqueezeError: If `keep` is not a share.
    """
    if not 0 < keep <= 1:
        raise SqueezeError(f"expected a share above 0 and at most 1 to keep, got {keep:g}")
    network = Network(checkpoint)
    architecture, size = architecture_of(checkpoint.config, decomposition.PAIRS), head_size(checkpoint.config)
    leaves = {block: linear_modules(network, block, tuple(ignore))[0] for block in network.blocks}
    names = [f"{block}.{leaf}" for block in leaves for leaf in leaves[block]]
    values = {name: weight_of(network.module(name)).numel() for name in names}
    mlps = {block: _mlps(leaves[block]) for block in leaves}
    statistics: dict[str, InputStatistics] = {}
    edits = Edits(network)
    for block, module, run in forward(Network(checkpoint, device), tokens):
        with watched(module, [leaf for leaf in leaves[block] if leaf.endswith((_QUERY, _DOWN))]) as found:
            run()
        statistics |= {f"{block}.{leaf}": _on_disk(one) for leaf, one in found.items() if leaf.endswith(_DOWN)}
        if {_QUERY, _KEY, _VALUE, _OUTPUT} <= set(leaves[block]):
            inputs = found[_QUERY]
            inputs.hessian = None if inputs.hessian is None else inputs.hessian.cpu()
            edits.put(block, attention(_tensors(module), inputs, size, keep, not architecture.normed_heads))
    whole = [f"{block}.{mlp}." for block in mlps for mlp in mlps[block]]
    inside = sum(count for name, count in values.items() if name.startswith(tuple(whole)))
    share = (keep * sum(values.values()) - _outside(edits, values, whole)) / max(inside, 1)
    for block in leaves:
        module = network.load(block)
        for mlp in mlps[block]:
            parts = {leaf: weight_of(module.get_submodule(f"{mlp}.{leaf}_proj")).detach() for leaf in _MLP}
            pruned, note = channels(parts, statistics.pop(f"{block}.{mlp}{_DOWN}", InputStatistics()), share)
            edits.put(f"{block}.{mlp}", {f"{leaf}_proj.weight": matrix for leaf, matrix in pruned.items()}, note)
        network.release(block)
    return edits


def _mlps(leaves: Iterable[str]) -> list[str]:
    """Return the MLPs of a block whose matrices are all to be compressed."""
    known = set(leaves)
    mlps = [leaf.removesuffix(_DOWN) for leaf in leaves if leaf.endswith(_DOWN)]
    return [mlp for mlp in mlps if {f"{mlp}.{leaf}_proj" for leaf in _MLP} <= known]


def _on_disk(statistics: InputStatistics) -> InputStatistics:
    hessian = None if statistics.hessian is None else on_disk({"hessian": statistics.hessian})["hessian"]
    return InputStatistics(statistics.count, hessian=hessian)


def _outside(edits: Edits, values: Mapping[str, int], mlps: list[str]) -> float:
    """Count the values that the matrices outside the MLPs are stored in."""
    total = 0.0
    for name, count in values.items():
        if not name.startswith(tuple(mlps)):
            changed = edits.replaced.get(edits.network.sources[f"{name}.weight"])
            total += count if changed is None else _stored_values(changed)
    return total


def _tensors(block: nn.Module) -> Weights:
    """Return the tensors of a block's attention."""
    state = block.get_submodule("self_attn").state_dict()
    return {f"self_attn.{name}": tensor.cpu() for name, tensor in state.items()}


def attention(tensors: Weights, statistics: InputStatistics, size: int, keep: float, scores: bool = True) -> Weights:
    """Return the tensors of an attention layer with a share of each head's rotary pairs and values, and 0 elsewhere.

    Args:
        tensors: Tensors by name.
        statistics: Statistics of the inputs of queries, keys and values.
        size: Values of a head.
        keep: Share to keep, rounded down.
        scores: Whether rotary pairs are removed, which normalised heads do not allow.
    """
    q, k, v, o = (tensors[f"{leaf}.weight"] for leaf in (_QUERY, _KEY, _VALUE, _OUTPUT))
    moments = statistics.hessian
    assert moments is not None
    if scores:
        q, k = _fewer_pairs(q, k, moments, size, keep)
    readers = o.double().view(len(o), len(v) // size, -1, size)
    grams = torch.einsum("ogqs,ogqt->gst", readers, readers)
    joint = torch.block_diag(*grams)  # type: ignore[no-untyped-call]
    heads = decomposition.values(v, o, Curvature(moments, joint), size, 1e-6)
    ranks = [max(1, int(keep * size))] * len(heads)
    v, o, bias = decomposition.with_values(v, o, heads, ranks, tensors.get(f"{_VALUE}.bias"))
    edited = {f"{leaf}.weight": w for leaf, w in zip((_QUERY, _KEY, _VALUE, _OUTPUT), (q, k, v, o), strict=True)}
    return edited if bias is None else edited | {f"{_VALUE}.bias": bias}


def _fewer_pairs(
    q: torch.Tensor, k: torch.Tensor, moments: torch.Tensor, size: int, keep: float
) -> tuple[torch.Tensor, torch.Tensor]:
    seen_q, seen_k = (Curvature(moments, torch.eye(len(matrix))) for matrix in (q, k))
    costs = decomposition.pair_costs(q, k, seen_q, seen_k, size)  # [key heads, size / 2]
    gone = costs.topk(size // 2 - max(1, int(keep * (size // 2))), largest=False).indices
    units = torch.stack([torch.arange(len(gone))[:, None].expand_as(gone), gone], -1).flatten(0, 1)
    return decomposition.without_pairs(q, k, units, size)


def channels(
    matrices: Mapping[str, torch.Tensor], statistics: InputStatistics, share: float
) -> tuple[Weights, str | None]:
    """Return gate, up and down of an MLP in at most a share of their bits, masks included, and a note or None.

    With too few statistics the channels that are large in all three matrices stay, without compensation.
    """
    down = matrices["down"]
    outputs, width = down.shape
    masks = _masks(width, outputs) / outputs  # as channels
    count = min(width, max(1, int(share * width - masks)))
    if statistics.hessian is None or statistics.count < width:
        note = f"only {statistics.count} calibration tokens reached its {width} channels: the largest are kept"
        sizes = matrices["gate"].norm(dim=1) * matrices["up"].norm(dim=1) * down.norm(dim=0)
        removed = sizes.topk(width - count, largest=False).indices
        return {name: _zeroed(name, matrix, removed) for name, matrix in matrices.items()}, note
    removed = decomposition.leverage(statistics.hessian, _RIDGE).topk(width - count, largest=False).indices
    return decomposition.without_channels(matrices, Curvature(statistics.hessian, torch.eye(outputs)), removed), None


def _zeroed(name: str, matrix: torch.Tensor, removed: torch.Tensor) -> torch.Tensor:
    out = matrix.clone()
    (out.T if name == "down" else out)[removed] = 0
    return out


def _stored_values(matrix: torch.Tensor) -> float:
    """Count the values that decomposition.RowColumnPruning stores for a matrix, masks included."""
    rows, columns = (matrix != 0).any(1), (matrix != 0).any(0)
    return int(rows.sum()) * int(columns.sum()) + _masks(*matrix.shape)


def _masks(rows: int, columns: int) -> float:
    """Return the size of a sliced matrix's masks in values of 16 bits."""
    return (8 * (ceil(rows / 8) + ceil(columns / 8)) + 64) / 16
