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


_KEPT = 2 << 30  # bytes


class Loading(Protocol):
    """A network whose modules are loaded by name; load_own and release_own exclude the weights of submodules."""

    model: Any
    eager: bool

    @property
    def blocks(self) -> list[str]: ...

    def above(self) -> list[str]: ...

    def load(self, name: str, narrow: nn.Module | None = None) -> nn.Module: ...

    def release(self, name: str) -> None: ...

    def load_own(self, name: str) -> None: ...

    def release_own(self, name: str) -> None: ...


@contextmanager
def surroundings(network: Loading, stack: list[str]) -> Iterator[None]:
    """Load modules around the blocks of a stack the first time that they run in the `with` block.

    Blocks of other stacks stay loaded while they fit in _KEPT, and the rest are loaded for each run.
    """
    loaded: list[str] = []
    table, above = _table(network.model), set(network.above()) - (set(network.blocks) - set(stack))
    kept = _Kept(network, loaded)
    with ExitStack() as hooks:
        hooks.callback(_release, network, loaded)
        for name in above:
            if name not in stack:
                network.load_own(name)
                hooks.callback(network.release_own, name)
        for name, module in network.model.named_modules():
            if name not in above and not any(f"{name}.".startswith(f"{block}.") for block in stack):
                on_first = partial(_load, network, name, loaded, table)
                hooks.callback(module.register_forward_pre_hook(on_first).remove)
                if network.eager and module is not table and not _has_table(module, table):
                    _load(network, name, loaded, table, module, None)
                if name in network.blocks:
                    hooks.callback(module.register_forward_hook(partial(kept.after, name)).remove)
        if table is not None and not any(f"{_name_of(network.model, table)}.".startswith(f"{x}.") for x in stack):
            _load(network, _name_of(network.model, table), loaded, table, table, None)  # now: models read its device
            hooks.callback(table.register_forward_pre_hook(_only_rows).remove)
            hooks.callback(table.register_forward_hook(_all_rows).remove)
        yield


class _Kept:
    """The blocks of other stacks in memory, by the room that is left for them."""

    def __init__(self, network: Loading, loaded: list[str]) -> None:
        self.network, self.loaded, self.room, self.names = network, loaded, _KEPT, set[str]()

    def after(self, name: str, module: nn.Module, args: Any, out: Any) -> None:
        """Release a block that has run if there is no room for it."""
        if name in self.names or name not in self.loaded:
            return
        size = sum(parameter.nbytes for parameter in module.parameters())
        if size <= self.room:
            self.room -= size
            self.names.add(name)
        else:
            self.network.release(name)
            self.loaded.remove(name)


def _has_table(module: nn.Module, table: nn.Module | None) -> bool:
    return any(one is table for one in module.modules())


def _name_of(model: nn.Module, wanted: nn.Module) -> str:
    names: dict[nn.Module, str] = {module: name for name, module in model.named_modules()}
    return names[wanted]


def _table(model: Any) -> nn.Module | None:
    if not hasattr(model, "get_input_embeddings"):  # of diffusers
        return None
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
