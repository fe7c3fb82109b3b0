"""The rank of each matrix of a LoRA adapter, by the rise of the loss that a size of the adapter costs.

Let S_i S_i^T be the moments of a matrix's inputs, and S_o S_o^T those of its outputs' gradients. A difference D costs
half the sum of the squared singular values of S_o^T D S_i that its rank leaves out. That is the rise of the loss in
nats a token, to second order (factor/curvature.py). The ranks are chosen by factor/planner.py.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import torch

from squeeze.engine.network import Network, weight_of
from squeeze.engine.pipeline import Progress
from squeeze.errors import SqueezeError
from squeeze.factor.curvature import Curvature, curvature
from squeeze.factor.lora import bits_of_rank
from squeeze.factor.lowrank import root
from squeeze.factor.planner import Option, Unit, choose

__all__ = ["Ranked", "ranked"]

_DAMPING = 1e-3  # of the moments, as a share of the mean diagonal
_STEP = 4  # between ranks


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
        target_bytes: Bytes of the adapter's tensors; of rounded ones, those that `pack` stores.
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
    units, moments = [], dict[str, Curvature]()
    size = partial(bits_of_rank, bits=bits, dtype=network.checkpoint.float_type())
    for block in network.blocks:
        module = network.load(block)
        for name, (owner, leaf) in names.items():
            if owner == block and name in bases:
                moments[name] = _known(found, f"{block}.{leaf}")
                weight = weight_of(module.get_submodule(leaf)).detach().float()
                units.append(Unit(name, _options(weight - bases[name]().float(), moments[name], size)))
        network.release(block)
    try:
        chosen = choose(units, 8 * target_bytes)
    except SqueezeError as error:
        raise SqueezeError(f"an adapter of {target_bytes} bytes is too small: {error}") from None
    return {name: Ranked(int(option.family), moments[name].outputs) for name, option in chosen.items()}


def _leaves(network: Network) -> Iterator[tuple[str, str]]:
    return ((block, leaf) for block in network.blocks for leaf, _ in network.module(block).named_modules() if leaf)


def _known(found: Mapping[str, Curvature], name: str) -> Curvature:
    if name not in found:
        raise SqueezeError(f"no token of the calibration set reaches {name}: give a `rank` in place of `target_bytes`")
    return found[name]


def _options(change: torch.Tensor, moments: Curvature, size: Callable[[tuple[int, int], int], int]) -> list[Option]:
    """Return the ranks of a difference [O, I], with the rise of the loss that each leaves."""
    inner, outer = (root(one, _DAMPING)[0] for one in (moments.inputs, moments.outputs))
    lost = torch.linalg.svdvals(outer.T @ change.double() @ inner).square() / 2
    left_out = lost.flip(0).cumsum(0).flip(0).tolist()
    last = len(left_out)
    ranks = sorted({1, *range(_STEP, last + 1, _STEP), last})
    return [
        Option(str(rank), left_out[rank] if rank < last else 0.0, size((change.shape[0], change.shape[1]), rank))
        for rank in ranks
    ]
