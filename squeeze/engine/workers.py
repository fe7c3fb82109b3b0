"""Who works on the parts of a block: this process, one part after another, or others side by side.

A function of a part gets the block as it is, and changes nothing of it; what it returns comes back in the order of the
parts. So what is made of that is the same whoever they are. `squeeze/cluster` has those of a cluster.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, TypeVar

from torch import nn

__all__ = ["Here", "OnBlock", "Workers"]

T = TypeVar("T")


class OnBlock(Protocol):
    """They have a block. apart: whether matrices that share their inputs are worked on one by one."""

    apart: bool

    def over(self, function: Callable[..., T], parts: Iterable[tuple[Any, ...]]) -> Iterator[T]:
        """function(block, *part) of each part, in their order."""
        ...

    def share(self, value: Any) -> Any:
        """What stands for a value in parts, so that it is sent once."""
        ...

    def changed(self, names: Iterable[str]) -> None:
        """The weights of these modules of the block are others than they were."""
        ...


class Workers(Protocol):
    def on(self, name: str, block: nn.Module) -> AbstractContextManager[OnBlock]:
        """Workers that have the block of this name meanwhile."""
        ...


class Here:
    """This process."""

    def on(self, name: str, block: nn.Module) -> AbstractContextManager[OnBlock]:
        return nullcontext(_HereOnBlock(block))


class _HereOnBlock:
    apart = False

    def __init__(self, block: nn.Module) -> None:
        self._block = block

    def over(self, function: Callable[..., T], parts: Iterable[tuple[Any, ...]]) -> Iterator[T]:
        return (function(self._block, *part) for part in parts)

    def share(self, value: Any) -> Any:
        return value

    def changed(self, names: Iterable[str]) -> None:
        pass
