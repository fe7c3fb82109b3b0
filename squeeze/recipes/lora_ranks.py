"""The rank of each matrix of a LoRA adapter, by the rise of the loss that a size of the adapter costs.

Let S_i S_i^T be the moments of a matrix's inputs, and S_o S_o^T those of its outputs' gradients. A difference D costs
half the sum of the squared singular values of S_o^T D S_i that its rank leaves out. That is the rise of the loss in
nats a token, to second order (factor/curvature.py). Rounding factors to grids can cost more than what a rank leaves
out: they are made and measured at some ranks. The ranks are chosen by factor/planner.py. One rank for all matrices is
taken if its rise is not larger.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from squeeze.engine.network import Network, weight_of
from squeeze.engine.pipeline import Progress
from squeeze.errors import SqueezeError
from squeeze.factor.curvature import Curvature, curvature, damage
from squeeze.factor.lora import LoraMethod, bits_of_rank
from squeeze.factor.lowrank import root
from squeeze.factor.planner import Option, Unit, choose

__all__ = ["Ranked", "ranked"]

_DAMPING = 1e-3  # of the moments, as a share of the mean diagonal
_STEP = 4  # between ranks
_SHARES = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0)  # of the one rank for all, at which factors on grids are measured
Size = Callable[[tuple[int, int], int], int]  # bits that factors of a matrix [O, I] take, by its shape and the rank
Pair = tuple[torch.Tensor, torch.Tensor]  # a matrix of the fine-tune and the base's, float32 [O, I]


@dataclass(frozen=True)
class Ranked:
    """The rank of a matrix, and E[g g^T] [O, O] over gradients g of its outputs."""

    rank: int
    outputs: torch.Tensor


def ranked(
    network: Network,
    bases: Mapping[str, Callable[[], torch.Tensor]],
    tokens: torch.Tensor,
    target_bytes: int,
    bits: int | None,
    *,
    seed: int = 0,
    progress: Progress | None = None,
) -> dict[str, Ranked]:
    """Choose the rank of each matrix, at least 1.

    Args:
        network: The fine-tune.
        bases: A function that returns the base's matrix [O, I], by the checkpoint's name of the module.
        tokens: int64 [N, L], calibration sequences.
        target_bytes: Bytes of the adapter's tensors.
        bits: Bits per value of the factors, or None for 16.
        seed: Seed of the sampled gradients.
        progress: Called with what is done and what is left.

    Raises:
        SqueezeError: If the size is too small, or the fine-tune lets no gradient through.
    """
    names = {network.stored_name(f"{block}.{leaf}"): (block, leaf) for block, leaf in _leaves(network)}
    leaves: dict[str, list[str]] = {}
    for name in bases:
        block, leaf = names[name]
        leaves.setdefault(block, []).append(leaf)
    done = 0

    def tick(count: int) -> None:
        nonlocal done
        done += count
        if progress:
            progress("curvature", done, len(network.blocks))

    found = curvature(network, tokens, leaves, seed, tick)
    size = partial(bits_of_rank, bits=bits, dtype=network.checkpoint.float_type())
    shapes = {name: weight_of(network.module(".".join(names[name]))).shape for name in bases}
    common = _one_rank([(shape[0], shape[1]) for shape in shapes.values()], 8 * target_bytes, size)
    units, moments = [], dict[str, Curvature]()
    for block in network.blocks:
        module = network.load(block)
        for name, (owner, leaf) in names.items():
            if owner == block and name in bases:
                moments[name] = _known(found, f"{block}.{leaf}")
                pair = weight_of(module.get_submodule(leaf)).detach().float(), bases[name]().float()
                measured = _options if bits is None else partial(_measured, bits=bits)
                units.append(Unit(name, measured(pair, moments[name], size, common)))
        network.release(block)
    try:
        chosen = _best(units, common, 8 * target_bytes)
    except SqueezeError as error:
        raise SqueezeError(f"an adapter of {target_bytes} bytes is too small: {error}") from None
    return {name: Ranked(int(option.family), moments[name].outputs) for name, option in chosen.items()}


def _best(units: Sequence[Unit], common: int, budget: int) -> dict[str, Option]:
    """Return the ranks with the least rise of the loss, or the one rank for all if they are not better."""
    chosen = choose(units, budget)
    if common == 0:
        return chosen
    alike = {
        unit.name: max((one for one in unit.options if int(one.family) <= common), key=lambda one: int(one.family))
        for unit in units
    }
    return min(alike, chosen, key=lambda ranks: sum(one.cost for one in ranks.values()))


def _one_rank(shapes: Sequence[tuple[int, int]], budget: int, size: Size) -> int:
    """Return the largest rank of all matrices whose factors take at most `budget` bits; 0 if 1 is too large."""

    def fits(rank: int) -> bool:
        return sum(size(shape, min(rank, *shape)) for shape in shapes) <= budget

    low, high = 0, max(min(shape) for shape in shapes) + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _leaves(network: Network) -> Iterator[tuple[str, str]]:
    return ((block, leaf) for block in network.blocks for leaf, _ in network.module(block).named_modules() if leaf)


def _known(found: Mapping[str, Curvature], name: str) -> Curvature:
    if name not in found:
        raise SqueezeError(f"no token of the calibration set reaches {name}: give a `rank` in place of `target_bytes`")
    return found[name]


def _options(pair: Pair, moments: Curvature, size: Size, common: int) -> list[Option]:
    """Return ranks of the difference of a pair, with the rise of the loss that each leaves."""
    inner, outer = (root(one, _DAMPING)[0] for one in (moments.inputs, moments.outputs))
    lost = torch.linalg.svdvals(outer.T @ (pair[0] - pair[1]).double() @ inner).square() / 2
    left_out = lost.flip(0).cumsum(0).flip(0).tolist()
    last, shape = len(left_out), (pair[0].shape[0], pair[0].shape[1])
    ranks = sorted({1, *range(_STEP, last + 1, _STEP), min(max(common, 1), last), last})
    return [Option(str(rank), left_out[rank] if rank < last else 0.0, size(shape, rank)) for rank in ranks]


def _measured(pair: Pair, moments: Curvature, size: Size, common: int, bits: int) -> list[Option]:
    """Return some ranks of the difference of a pair, with the rise of the loss by factors on grids."""
    (weight, base), options = pair, []
    shape = weight.shape[0], weight.shape[1]
    for rank in sorted({1, *(min(max(round(share * common), 1), *shape) for share in _SHARES)}):
        made = LoraMethod.of_rank(rank, lambda: base, bits).compress(weight, moments.inputs).tensor
        options.append(Option(str(rank), damage(made.dequantize() - weight, moments), size(shape, rank)))
    return options
