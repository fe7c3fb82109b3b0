"""Calibration of a checkpoint's block by the workers of a cluster: shards of data and matrices run in parallel.

These are Workers of engine/sharding.py. The block, shared values and results go through the cluster's object store.
Hidden states are files in the run's work folder, so that a part can be repeated on another worker.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import nn

from squeeze.cluster.engine import Call, Engine, Needs
from squeeze.cluster.run import ATTEMPTS
from squeeze.cluster.tasks import run_calls
from squeeze.engine.network import is_linear, weight_of
from squeeze.errors import ClusterError, SqueezeError, escaped

__all__ = ["ClusterWorkers"]

T = TypeVar("T")
_LEAST_MEMORY = 1 << 30  # bytes of a worker without the block and the statistics of inputs
_SQUARES = 16  # bytes of an entry of a Hessian while a matrix is solved


@dataclass(frozen=True)
class ClusterWorkers:
    """Workers of a cluster for calibration. `threads` is the number of threads of a worker.

    The result has the same bytes as that of one process with as many threads on the same kind of processor.
    """

    engine: Engine[Any]
    threads: int = 1

    @contextmanager
    def on(self, name: str, block: nn.Module) -> "Iterator[_OnBlock]":
        """Prepare the workers for a block, as Workers.on does.

        Raise ClusterError if a worker is lost again and again.
        """
        yield _OnBlock(self, name, block)


class _OnBlock:
    splits_groups = True

    def __init__(self, workers: ClusterWorkers, name: str, block: nn.Module) -> None:
        self._workers, self._name, self._block = workers, name, block
        self._states: list[Any] = []  # references to the block and to later changes of its weights
        self._changed: set[str] = set()
        self._needs = self._needed()

    def _needed(self) -> Needs:
        widest = max((weight_of(one).shape[1] for one in self._block.modules() if is_linear(one)), default=0)
        memory = _LEAST_MEMORY + sum(value.nbytes for value in self._block.parameters()) + _SQUARES * widest**2
        first = next(self._block.parameters(), None)
        gpus = 1 if first is not None and first.is_cuda else 0
        return Needs(self._workers.threads, gpus, memory)

    def over(self, function: Callable[..., T], parts: Iterable[tuple[Any, ...]]) -> Iterator[T]:
        self._tell_state()
        title, fixed = f"{function.__name__} {self._name}", (function, self._workers.threads, len(self._states))
        calls = (
            Call(number, f"{title}, part {number + 1}", worked, (*fixed, *self._states, *part), self._needs)
            for number, part in enumerate(parts)
        )
        waiting: dict[int, T] = {}
        following = 0
        for outcome in run_calls(self._workers.engine, calls):
            if outcome.error is not None:
                raise _reportable(outcome.error)
            waiting[outcome.key] = outcome.result
            while following in waiting:
                yield waiting.pop(following)
                following += 1

    def share(self, value: Any) -> Any:
        return self._workers.engine.share(value)

    def changed(self, names: Iterable[str]) -> None:
        self._changed |= set(names)

    def _tell_state(self) -> None:
        if not self._states or self._changed:
            value: Any = self._block
            if self._states:
                modules = {name: self._block.get_submodule(name) for name in sorted(self._changed)}
                value = {name: (module.weight, getattr(module, "bias", None)) for name, module in modules.items()}
            self._states.append(self.share(value))
        self._changed.clear()


def _reportable(error: BaseException) -> BaseException:
    """Return the error to report."""
    if isinstance(error, SqueezeError | OSError | MemoryError):
        return error
    reason = escaped((str(error).strip() or type(error).__name__).splitlines()[0])
    return ClusterError(f"a worker was lost, {ATTEMPTS} times: {reason}")


def worked(function: Callable[..., Any], threads: int, states: int, *arguments: Any) -> Any:
    """Return function(block, *part) on a worker.

    Args:
        function: The function.
        threads: The number of torch's threads.
        states: The number of states of the block among `arguments`.
        arguments: The block, later changes of its weights and biases, and then the part.
    """
    torch.set_num_threads(threads)
    block: nn.Module = arguments[0]
    for changed in arguments[1:states]:
        for name, (weight, bias) in changed.items():
            module = block.get_submodule(name)
            module.weight = weight
            if bias is not None:
                module.bias = bias
    with torch.inference_mode():
        return function(block, *arguments[states:])
