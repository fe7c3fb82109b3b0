"""Loading of the modules around the blocks when the model's own forward reaches them, and their release afterwards.

They compute in float32, like a whole model of that dtype. The input embedding is as large as the vocabulary, so it
keeps its own dtype, and only the rows that are looked up become float32.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Protocol

import torch
from torch import nn

__all__ = ["surroundings"]


class Loading(Protocol):
    """A network whose modules are loaded by name; load_own and release_own exclude the weights of submodules."""

    model: Any
    blocks: list[str]

    def above(self) -> list[str]: ...

    def load(self, name: str, narrow: nn.Module | None = None) -> nn.Module: ...

    def release(self, name: str) -> None: ...

    def load_own(self, name: str) -> None: ...

    def release_own(self, name: str) -> None: ...


@contextmanager
def surroundings(network: Loading) -> Iterator[None]:
    """Load modules around the blocks the first time that they run in the `with` block."""
    loaded: list[str] = []
    table, above = _table(network.model), set(network.above())
    with ExitStack() as stack:
        stack.callback(_release, network, loaded)
        for name in above:
            if name not in network.blocks:
                network.load_own(name)
                stack.callback(network.release_own, name)
        for name, module in network.model.named_modules():
            if name not in above and not any(f"{name}.".startswith(f"{block}.") for block in network.blocks):
                on_first = partial(_load, network, name, loaded, table)
                stack.callback(module.register_forward_pre_hook(on_first).remove)
        if table is not None:  # now, since models read its device
            name = next(name for name, module in network.model.named_modules() if module is table)
            _load(network, name, loaded, table, table, None)
            stack.callback(table.register_forward_pre_hook(_only_rows).remove)
            stack.callback(table.register_forward_hook(_all_rows).remove)
        yield


def _table(model: Any) -> nn.Module | None:
    try:
        table = model.get_input_embeddings()
    except NotImplementedError:
        return None
    return table if isinstance(table, nn.Embedding) else None


def _load(
    network: Loading, name: str, loaded: list[str], table: nn.Module | None, module: nn.Module, args: Any
) -> None:
    """Fill a module that is about to run with its weights, unless it has them."""
    if not any(f"{name}.".startswith(f"{other}.") for other in loaded):
        network.load(name, narrow=table)
        loaded.append(name)


def _release(network: Loading, names: list[str]) -> None:
    for name in names:
        network.release(name)


def _only_rows(table: nn.Embedding, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Reduce an embedding to the rows that are looked up, in float32."""
    used, places = torch.unique(args[0], return_inverse=True)
    kept: Any = table.weight, table.padding_idx
    table.kept = kept
    table._parameters["weight"] = nn.Parameter(table.weight[used].float(), requires_grad=False)
    table.padding_idx = None
    return places, *args[1:]


def _all_rows(table: nn.Embedding, args: Any, out: Any) -> None:
    kept: Any = table.kept
    table._parameters["weight"], table.padding_idx = kept
    del table.kept
