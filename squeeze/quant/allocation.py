"""Choice of the bits of each matrix: the smallest rise of the loss for a given size.

The rise of the loss that rounding a matrix causes is estimated to second order. It is half the sum of its squared
errors, weighted with the diagonal of the empirical Fisher information. That is measured on calibration text, as in OBD
(LeCun et al. 1990) and SqueezeLLM (Kim et al. 2023). The choice is a multiple-choice knapsack problem.
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

_UNITS = 1 << 16  # sizes are rounded up to this fraction of the budget
_TABLE = 1 << 27  # most bytes of the table of choices
_EXPERT = re.compile(r"\.experts\.\d+\.")
N = TypeVar("N", int, float)
Size = Callable[[torch.Tensor, int], tuple[torch.Tensor, int]]  # weight, bits -> rounded weight, stored bytes


def fisher(network: Network, tokens: torch.Tensor, names: Iterable[str]) -> Iterator[dict[str, torch.Tensor]]:
    """Compute the diagonal Fisher information of the linear modules of each block, from the last block to the first.

    It is the mean over tokens of (dL/dy_o x_i)^2, with L the sum of the tokens' losses. A block is loaded while its
    entry is yielded. One block and a copy of its matrices are in memory; hidden states are in files.

    Args:
        network: the network.
        tokens: calibration sequences [N, L].
        names: linear modules to look at.

    Yields:
        For a block, float32 [O, I] by module name.
    """
    selected = set(names)
    for name, block, run in backward(network, tokens):
        leaves = [leaf for leaf, _ in block.named_modules() if f"{name}.{leaf}" in selected]
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
    """Choose the bits of each matrix so that the sum of costs is least and the sizes sum to at most `budget`.

    The result is optimal, except that sizes are rounded up to 1 / 65,536 of the budget (more if there are many
    matrices).

    Args:
        costs: by matrix and bits, the rise of the loss.
        sizes: by matrix and bits, the stored bytes.
        budget: bytes for all matrices.

    Raises:
        SqueezeError: the smallest sizes exceed the budget.
    """
    names = list(costs)
    least = sum(min(sizes[name].values()) for name in names)
    if least > budget:
        raise SqueezeError(f"the matrices need at least {least} bytes, got a budget of {budget}")
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
    """Choose the bits of each unit of matrices, and return them with the costs and sizes that decided.

    Args:
        network: the network.
        tokens: calibration sequences [N, L].
        units: the unit of each linear module, by its name; modules of a unit get the same bits.
        rounded: rounded(weight [O, I], bits) returns the rounded weight and its stored bytes. It may raise SqueezeError
            for bits that cannot be stored.
        budget: budget(weights) returns the bytes for that number of weights.
        choices: bits to choose from, or other numbers that `rounded` takes.

    Returns:
        Bits by unit, and a table with "bytes", "costs" and "sizes".
    """
    costs: dict[str, dict[int, float]] = {}
    sizes: dict[str, dict[int, int]] = {}
    weights = 0
    for information in map(_with_expert_means, fisher(network, tokens, units)):
        for name in list(information):
            weight = weight_of(network.module(name))
            weights += weight.numel()
            costs[name], sizes[name] = _priced(weight, information.pop(name), rounded, choices)
            trim_memory()
    costs, sizes = _summed(costs, units), _summed(sizes, units)
    selected = choose(costs, sizes, int(budget(weights)))
    spent = {"bytes": sum(sizes[name][bits] for name, bits in selected.items())}
    return selected, {**spent, "costs": costs, "sizes": sizes}


def _priced(
    weight: torch.Tensor, information: torch.Tensor, rounded: Size, choices: Sequence[int]
) -> tuple[dict[int, float], dict[int, int]]:
    """Return the rise of the loss and the stored bytes of a matrix, by bits."""
    costs: dict[int, float] = {}
    sizes: dict[int, int] = {}
    for bits in choices:
        with suppress(SqueezeError):
            values, sizes[bits] = rounded(weight, bits)
            costs[bits] = float((information * (values - weight).square()).sum()) / 2
    return costs, sizes


def _with_expert_means(information: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Give experts that no token reached the mean information of the other experts of their layer."""
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
    """Sum values over the matrices of each unit, for the bits that all of them can have."""
    members: dict[str, list[Mapping[int, N]]] = {}
    for name, unit in units.items():
        members.setdefault(unit, []).append(values[name])
    return {
        unit: {bits: sum(one[bits] for one in ones) for bits in ones[0] if all(bits in one for one in ones)}
        for unit, ones in members.items()
    }
