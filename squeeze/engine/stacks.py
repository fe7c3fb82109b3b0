"""The lists of blocks of a model, such as an encoder's and a decoder's, in the order in which its forward runs them.

A list is a ModuleList or Sequential whose modules hold matrices, and that is in no other such list. A list that cannot
run block by block is replaced by the module around it, which is then one block.
"""

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any

from torch import nn

from squeeze.errors import ModelError

__all__ = ["around", "find_blocks", "find_stacks", "is_linear", "running_order"]

_LINEAR = ("Conv1D", "FalconLinear")  # classes of transformers with a forward of their own that is linear all the same
_READ_ELSEWHERE = "NonDynamicallyQuantizableLinear"  # whose weight torch's MultiheadAttention reads without calling it


def is_linear(module: nn.Module) -> bool:
    """Return whether a module multiplies its inputs by its matrix: torch's Linear, or GPT-2's Conv1D, stored
    transposed.

    Other subclasses of Linear, such as DeepSeek V4's grouped one, multiply in ways of their own.
    """
    kind = type(module)
    if kind.__name__ == _READ_ELSEWHERE:
        return False
    return kind.__name__ in _LINEAR or getattr(kind, "forward", None) is nn.Linear.forward


def find_blocks(model: nn.Module) -> list[str]:
    """Return the names of the decoder's blocks: the longest list of modules that is in no other list.

    Lists of parts for vision or audio, which may be longer, are left out if transformers distinguishes the decoder.
    """
    lists = {name: module for name, module in model.named_modules() if isinstance(module, nn.ModuleList)}
    decoder = getattr(model, "get_decoder", lambda: model)()
    prefix = next((f"{name}." for name, module in model.named_modules() if name and module is decoder), "")
    lists = {name: m for name, m in lists.items() if name.startswith(prefix)} or lists
    outer = {name: m for name, m in lists.items() if not any(name.startswith(f"{other}.") for other in lists)}
    if not outer:
        raise ModelError(f"{type(model).__name__}: expected a decoder-only architecture with a list of blocks")
    name = max(outer, key=lambda key: len(outer[key]))
    return [f"{name}.{i}" for i in range(len(outer[name]))]


def find_stacks(model: nn.Module) -> list[list[str]]:
    """Return the names of the blocks in each list of a model. Raises ModelError if it has none."""
    found: dict[str, list[str]] = {}
    for name, module in model.named_modules():
        if name and isinstance(module, nn.ModuleList | nn.Sequential) and not any(_inside(name, one) for one in found):
            blocks = dict(module.named_children())
            if any(map(_holds_matrices, blocks.values())) and not any(map(is_linear, blocks.values())):
                found[name] = [f"{name}.{child}" for child in blocks]
    if not found:
        raise ModelError(f"{type(model).__name__}: expected an architecture with a list of blocks that hold matrices")
    return list(found.values())


def running_order(model: nn.Module, stacks: list[list[str]], run: Callable[[], Any]) -> list[list[str]]:
    """Return the stacks that a run of the model reaches, in the order in which it does."""
    order: list[int] = []

    def note(number: int) -> Callable[..., None]:
        def before(module: nn.Module, args: Any) -> None:
            if number not in order:
                order.append(number)

        return before

    with ExitStack() as hooks:
        for number, blocks in enumerate(stacks):
            for name in blocks:
                hooks.callback(model.get_submodule(name).register_forward_pre_hook(note(number)).remove)
        run()
    return [stacks[number] for number in order]


def around(stack: list[str], stacks: Iterable[list[str]]) -> list[str] | None:
    """Return the module around a list of blocks as a stack of one block, or None if it is the whole model or holds
    another stack."""
    outer = stack[0].rpartition(".")[0] if len(stack) > 1 or stack[0].rpartition(".")[2].isdigit() else stack[0]
    outer = outer.rpartition(".")[0]
    others = (name for other in stacks if other != stack for name in other)
    return None if not outer or any(_inside(name, outer) for name in others) else [outer]


def _inside(name: str, outer: str) -> bool:
    return name.startswith(f"{outer}.")


def _holds_matrices(module: nn.Module) -> bool:
    return any(is_linear(one) for one in module.modules())
