"""Parts of a block that need not run again.

Once all matrices of, say, an attention module are compressed, what comes out of it stays what it is: the product of its
last matrix with that matrix's inputs, which were seen when that one's turn came. So those inputs are kept, and later
runs of the block go from them.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import nn

from squeeze.engine.calibration import Activations, turns_of
from squeeze.engine.network import weight_of
from squeeze.numerics.hadamard import turned

__all__ = ["Shortcuts"]


class Shortcuts:
    """Of one block: `read` before each run of it over all sequences, `keep` in the run, `take` when a matrix is done.

    names: of the block's modules with matrices that get compressed; run: runs the block once, to find those of them
    whose outputs are those of a child of the block; inputs: what the block is given; work: a folder for files.
    """

    def __init__(
        self, block: nn.Module, names: Iterable[str], run: Callable[[], object], inputs: Activations, work: Path
    ) -> None:
        self.block, self.inputs, self.work, self.waiting = block, inputs, work, set(names)
        self.ends = _ends(block, self.waiting, run)
        self._sinks: dict[str, BinaryIO] = {}
        self._kept: dict[str, Activations] = {}
        self._values: dict[str, Iterator[torch.Tensor]] = {}

    def read(self, device: torch.device) -> Iterator[torch.Tensor]:
        """The block's inputs, one sequence after the other, each for one run."""
        self._values = {name: file.read(device) for name, file in self._kept.items()}
        yield from self.inputs.read(device)

    def keep(self, names: Iterable[str], x: torch.Tensor) -> None:
        """x: [L, I], the input of these modules in this run."""
        for name in self.ends.keys() & set(names):
            if name not in self._sinks:
                self._sinks[name] = (self.work / f"{name}.kept").open("wb")
            self._sinks[name].write(Activations.as_bytes(x))

    def take(self, names: Iterable[str]) -> None:
        """These modules are compressed: from now on what comes out of them is fixed, and of their children, too."""
        self.waiting -= set(names)
        for name in self._sinks.keys() & set(names):
            sink, (child, length) = self._sinks.pop(name), self.ends[name]
            sink.close()
            module = self.block.get_submodule(name)
            file = Activations(Path(sink.name), self.inputs.count, self.inputs.length, weight_of(module).shape[1])
            if file.whole() and not any(other.startswith(f"{child}.") for other in self.waiting):
                self._kept[name] = file
                self.block.get_submodule(child).forward = self._forward(name, module, length)
            else:
                file.path.unlink()

    def _forward(self, name: str, module: nn.Module, length: int | None) -> Callable[..., Any]:
        def forward(*args: Any, **kwargs: Any) -> Any:
            x = turned(next(self._values[name]), turns_of(module))  # twice is not at all: the module turns it again
            out = module(x[None])
            return out if length is None else (out, *[None] * (length - 1))

        return forward

    def close(self) -> None:
        """The block is as it was, also after an error."""
        for sink in self._sinks.values():
            with suppress(OSError):  # of a disk that is full
                sink.close()
        self._sinks.clear()
        for name, file in self._kept.items():
            del self.block.get_submodule(self.ends[name][0]).forward
            file.path.unlink()
        self._kept.clear()


def _ends(block: nn.Module, names: Iterable[str], run: Callable[[], object]) -> dict[str, tuple[str, int | None]]:
    """Modules that run once, whose output is that of the child of the block that they are in: its name,
    and the length of its tuple, the rest of which is None."""
    outputs: dict[str, torch.Tensor | None] = {}
    ends: dict[str, tuple[str, int | None]] = {}
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
                    ends[name] = child, len(out) if isinstance(out, tuple) else None

        return hook

    for name in names:
        hooks.append(block.get_submodule(name).register_forward_hook(note(name)))
    for child, module in block.named_children():
        hooks.append(module.register_forward_hook(compare(child)))
    run()
    for hook in hooks:
        hook.remove()
    return {name: end for name, end in ends.items() if outputs[name] is not None}
