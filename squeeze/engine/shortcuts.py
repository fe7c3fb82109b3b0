"""Parts of a block that need not run again.

Once all matrices of a child module, such as attention, are compressed, its output is fixed. It is the product of its
last matrix with that matrix's inputs, which were recorded for that matrix. So these inputs are kept, and later runs of
the block start from them.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from squeeze.engine.calibration import Activations, hadamard_size_of
from squeeze.engine.network import weight_of
from squeeze.numerics.hadamard import rotate_blocks

__all__ = ["CachedInputs", "Shortcuts", "shortened"]


@dataclass(frozen=True)
class CachedInputs:
    """The inputs of a module, [L, width] a sequence, whose output is that of the block's child that contains it.

    `length` is the length of the tuple that the child returns, whose other items are None; None if it returns a tensor.
    `rows` is the shape of the module's inputs without their width, such as (1, L), or (2, L) in a sample of two.
    """

    child: str
    length: int | None
    width: int
    rows: tuple[int, ...]


class Shortcuts:
    """The shortcuts of one block: `ends` are modules whose inputs are worth keeping, `used` those already in use."""

    def __init__(self, block: nn.Module, names: Iterable[str], run: Callable[[], object]) -> None:
        self.waiting = set(names)
        self.ends = _ends(block, self.waiting, run)
        self.used: dict[str, CachedInputs] = {}

    def take(self, names: Iterable[str], complete: Iterable[str]) -> list[str]:
        """Note that these modules are compressed, and use their inputs if that makes a child's output fixed.

        Args:
            names: of the modules.
            complete: modules whose inputs are kept for all sequences.

        Returns:
            The modules in `ends` whose inputs cannot be used.
        """
        self.waiting -= set(names)
        ending = sorted(self.ends.keys() & set(names))
        serving = [name for name in ending if name in complete and not self._waits(self.ends[name].child)]
        self.used |= {name: self.ends[name] for name in serving}
        return [name for name in ending if name not in serving]

    def _waits(self, child: str) -> bool:
        return any(name.startswith(f"{child}.") for name in self.waiting)


@contextmanager
def shortened(
    block: nn.Module, cached: Mapping[str, CachedInputs], files: Mapping[str, Activations], device: torch.device
) -> Iterator[None]:
    """Make children of a block start from kept inputs in the `with` block.

    Args:
        block: the block.
        cached: by the name of the module.
        files: of the inputs, read in the order of the sequences.
        device: of the inputs.
    """
    for name, one in cached.items():
        forward = _forward(block.get_submodule(name), files[name].read(device), one)
        block.get_submodule(one.child).forward = forward
    try:
        yield
    finally:
        for one in cached.values():
            del block.get_submodule(one.child).forward


def _forward(module: nn.Module, values: Iterator[torch.Tensor], cached: CachedInputs) -> Callable[..., Any]:
    def forward(*args: Any, **kwargs: Any) -> Any:
        x = rotate_blocks(next(values), hadamard_size_of(module))  # undoes the rotation, which the module applies again
        out = module(x.view(*cached.rows, x.shape[-1]))
        return out if cached.length is None else (out, *[None] * (cached.length - 1))

    return forward


def _ends(block: nn.Module, names: Iterable[str], run: Callable[[], object]) -> dict[str, CachedInputs]:
    """Return modules that run once and whose output is that of the block's child that contains them."""
    outputs: dict[str, torch.Tensor | None] = {}
    ends: dict[str, CachedInputs] = {}
    hooks = []

    def note(name: str) -> Callable[[nn.Module, Any, torch.Tensor], None]:
        def hook(module: nn.Module, given: Any, out: torch.Tensor) -> None:
            outputs[name] = None if name in outputs else out.clone()

        return hook

    def compare(child: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(module: nn.Module, given: Any, out: Any) -> None:
            first, *others = out if isinstance(out, tuple) else (out,)
            if not isinstance(first, torch.Tensor) or any(other is not None for other in others):
                return
            for name, value in outputs.items():
                if name.startswith(f"{child}.") and value is not None and torch.equal(value, first):
                    width = weight_of(block.get_submodule(name)).shape[1]
                    length = len(out) if isinstance(out, tuple) else None
                    ends[name] = CachedInputs(child, length, width, tuple(value.shape[:-1]))

        return hook

    for name in names:
        hooks.append(block.get_submodule(name).register_forward_hook(note(name)))
    for child, module in block.named_children():
        hooks.append(module.register_forward_hook(compare(child)))
    run()
    for hook in hooks:
        hook.remove()
    return {name: end for name, end in ends.items() if outputs[name] is not None}
