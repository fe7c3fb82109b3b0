"""Chooses the bits of each matrix so that the least is lost in so many stored bytes.

What a matrix loses is measured: the squared errors of rounding it, each weighted with the diagonal of the empirical
Fisher information of its weight on calibration text (as OBD, LeCun et al. 1990, and SqueezeLLM, Kim et al. 2023,
weight them), which is half the rise of the loss to second order. Choosing is a multiple-choice knapsack.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn

from squeeze.engine.gradients import backward
from squeeze.engine.network import Network, weight_of
from squeeze.errors import SqueezeError
from squeeze.quant.formats.spec import BITS
from squeeze.system.machine import trim_memory

__all__ = ["allocate", "choose", "fisher"]

_UNITS = 1 << 16  # parts of the budget that sizes are rounded up to
_TABLE = 1 << 27  # bytes that the table of choices may take
_EXPERT = re.compile(r"\.experts\.\d+\.")
N = TypeVar("N", int, float)
Size = Callable[[torch.Tensor, int], tuple[torch.Tensor, int]]  # weight, bits -> what it becomes, stored bytes


def fisher(network: Network, tokens: torch.Tensor, names: Iterable[str]) -> Iterator[dict[str, torch.Tensor]]:
    """By block, from the last one to the first, float32 [O, I] for each of its linear modules among `names`: the mean
    over tokens of (dL/dy_o x_i)^2, L the sum of the tokens' losses. The block is loaded then.

    tokens: [N, L]. One block and as much again as its matrices take are in memory, hidden states in files.
    """
    wanted = set(names)
    for name, block, run in backward(network, tokens):
        leaves = [leaf for leaf, _ in block.named_modules() if f"{name}.{leaf}" in wanted]
        modules = {f"{name}.{leaf}": block.get_submodule(leaf) for leaf in leaves}
        squares = {full: torch.zeros_like(weight_of(module)) for full, module in modules.items()}
        hooks = [module.register_forward_hook(_observing(squares[full])) for full, module in modules.items()]
        try:
            run()
        finally:
            for hook in hooks:
                hook.remove()
        for total in squares.values():
            total.div_(tokens.numel())
        yield squares


def _observing(total: torch.Tensor) -> Callable[..., None]:
    def observe(module: nn.Module, args: tuple[torch.Tensor, ...], out: torch.Tensor) -> None:
        x = args[0].detach().reshape(-1, args[0].shape[-1])

        def add(gradient: torch.Tensor) -> None:
            total.addmm_(gradient.reshape(-1, gradient.shape[-1]).square().T, x.square())

        if out.requires_grad:
            out.register_hook(add)  # type: ignore[no-untyped-call]

    return observe


def choose(
    costs: Mapping[str, Mapping[int, float]], sizes: Mapping[str, Mapping[int, int]], budget: int
) -> dict[str, int]:
    """Bits for each matrix with the least sum of costs whose sizes sum to at most `budget`.

    costs, sizes: by name and bits. Exact but for sizes being rounded up to 1 / 65,536 of the budget (more for many
    matrices). Raises SqueezeError where even the smallest sizes are too large.
    """
    names = list(costs)
    least = sum(min(sizes[name].values()) for name in names)
    if least > budget:
        raise SqueezeError(f"the matrices take at least {least} bytes, and {budget} are left for them")
    units = max(min(_UNITS, _TABLE // max(len(names), 1)), 1)
    spare = budget - least
    unit = max(spare / units, 1e-9)
    best = np.zeros(units + 1)
    choice = np.empty((len(names), units + 1), np.uint8)
    for row, name in enumerate(names):
        base = min(sizes[name].values())
        fresh = np.full(units + 1, np.inf)
        for bits, cost in costs[name].items():
            step = int(np.ceil((sizes[name][bits] - base) / unit - 1e-9)) if sizes[name][bits] > base else 0
            if step > units:
                continue
            total = np.full(units + 1, np.inf)
            total[step:] = best[: units + 1 - step] + cost
            better = total < fresh
            fresh[better], choice[row, better] = total[better], bits
        best = fresh
    remaining, chosen = units, {}
    for row in range(len(names) - 1, -1, -1):
        name, bits = names[row], int(choice[row, remaining])
        chosen[name] = bits
        base = min(sizes[name].values())
        remaining -= int(np.ceil((sizes[name][bits] - base) / unit - 1e-9)) if sizes[name][bits] > base else 0
    return {name: chosen[name] for name in names}


def allocate(
    network: Network,
    tokens: torch.Tensor,
    units: Mapping[str, str],
    rounded: Size,
    budget: Callable[[int], float],
    choices: Sequence[int] = BITS,
) -> tuple[dict[str, int], dict[str, Any]]:
    """Bits for each unit, and the costs that decided. units: by the name of each of the network's linear modules; those
    of a unit get the same bits.

    rounded(weight, bits): the values a weight [O, I] takes with so many bits, and the bytes they are stored in;
    it may raise SqueezeError for bits that cannot be stored. budget(weights): bytes for so many weights. choices: the
    bits to choose from, or other numbers that `rounded` takes.
    """
    costs: dict[str, dict[int, float]] = {}
    sizes: dict[str, dict[int, int]] = {}
    weights = 0
    for information in map(_known_of_all, fisher(network, tokens, units)):
        for name in list(information):
            weight = weight_of(network.module(name))
            weights += weight.numel()
            costs[name], sizes[name] = _priced(weight, information.pop(name), rounded, choices)
            trim_memory()
    costs, sizes = _summed(costs, units), _summed(sizes, units)
    chosen = choose(costs, sizes, int(budget(weights)))
    spent = {"bytes": sum(sizes[name][bits] for name, bits in chosen.items())}
    return chosen, {**spent, "costs": costs, "sizes": sizes}


def _priced(
    weight: torch.Tensor, information: torch.Tensor, rounded: Size, choices: Sequence[int]
) -> tuple[dict[int, float], dict[int, int]]:
    """What a matrix loses with each number of bits that it can have, and the bytes that it takes."""
    costs: dict[int, float] = {}
    sizes: dict[int, int] = {}
    for bits in choices:
        with suppress(SqueezeError):
            values, sizes[bits] = rounded(weight, bits)
            costs[bits] = float((information * (values - weight).square()).sum()) / 2
    return costs, sizes


def _known_of_all(information: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """An expert that no token reached is taken to be like the mean one of its layer."""
    alike: dict[str, list[str]] = {}
    for name in information:
        alike.setdefault(_EXPERT.sub(".experts.*.", name), []).append(name)
    for names in alike.values():
        unknown = [name for name in names if not information[name].any()]
        if 0 < len(unknown) < len(names):
            mean = torch.stack([information[name] for name in names]).sum(0) / (len(names) - len(unknown))
            information |= dict.fromkeys(unknown, mean)
    return information


def _summed(values: Mapping[str, Mapping[int, N]], units: Mapping[str, str]) -> dict[str, dict[int, N]]:
    """Over the matrices of each unit, for the bits that all of them can have."""
    members: dict[str, list[Mapping[int, N]]] = {}
    for name, unit in units.items():
        members.setdefault(unit, []).append(values[name])
    return {
        unit: {bits: sum(one[bits] for one in ones) for bits in ones[0] if all(bits in one for one in ones)}
        for unit, ones in members.items()
    }
