"""A block of a checkpoint by the workers of a cluster: shards of its calibration, and its matrices, side by side.

These are Workers of engine/workers.py. The block, what parts share and what becomes of them lie in files of the run's
work folder, where the hidden states are, too: so a part may be done again wherever another worker is.
"""

import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from squeeze.checkpoint.checkpoint import disk_told
from squeeze.cluster.engine import Call, Engine, Needs
from squeeze.cluster.run import ATTEMPTS
from squeeze.cluster.tasks import each
from squeeze.engine.network import is_linear, weight_of
from squeeze.errors import ClusterError, SqueezeError, escaped

__all__ = ["ClusterWorkers"]

T = TypeVar("T")
_LEAST_MEMORY = 1 << 30  # bytes of a worker beside the block and what it knows of inputs
_SQUARES = 16  # bytes of an entry of a Hessian while a matrix is solved


@dataclass(frozen=True)
class ClusterWorkers:
    """threads: of a worker. The same bytes come of it as of one process with as many, on the same kind of processor."""

    engine: Engine[Any]
    threads: int = 1

    @contextmanager
    def on(self, name: str, block: nn.Module, work: Path) -> "Iterator[_OnBlock]":
        """As Workers.on. Raises ClusterError where a worker is lost again and again."""
        held = _OnBlock(self, name, block, work)
        try:
            yield held
        finally:
            held.close()


@dataclass(frozen=True)
class _Shared:
    """Stands for a value in a file."""

    path: Path


class _OnBlock:
    apart = True

    def __init__(self, workers: ClusterWorkers, name: str, block: nn.Module, work: Path) -> None:
        self._workers, self._name, self._block, self._work = workers, name, block, work
        self._mark = f"block-{secrets.token_hex(6)}"
        self._states: list[Path] = []  # the block as it was, and then what has changed of it
        self._changed: set[str] = set()
        self._shares: list[Path] = []
        self._needs = self._needed()
        self._files = 0

    def _needed(self) -> Needs:
        engine = self._workers.engine
        widest = max((weight_of(one).shape[1] for one in self._block.modules() if is_linear(one)), default=0)
        memory = _LEAST_MEMORY + sum(value.nbytes for value in self._block.parameters()) + _SQUARES * widest**2
        first = next(self._block.parameters(), None)
        gpus = 1 if first is not None and first.is_cuda else 0
        return Needs(self._workers.threads, gpus, engine.memory_to_ask_for(memory))

    def over(self, function: Callable[..., T], parts: Iterable[tuple[Any, ...]]) -> Iterator[T]:
        self._write_state()
        states, threads = tuple(self._states), self._workers.threads
        title = f"{function.__name__} {self._name}"
        calls = (
            Call(
                number,
                f"{title}, part {number + 1}",
                worked,
                (states, function, part, self._file(), threads),
                self._needs,
            )
            for number, part in enumerate(parts)
        )
        waiting: dict[int, Path] = {}
        following = 0
        for outcome in each(self._workers.engine, calls):
            if outcome.error is not None:
                raise _told(outcome.error)
            waiting[outcome.key] = outcome.result
            while following in waiting:
                path = waiting.pop(following)
                result = torch.load(path, weights_only=False)  # that a worker has just made
                path.unlink()
                following += 1
                yield result
        while self._shares:
            self._shares.pop().unlink(missing_ok=True)

    def share(self, value: Any) -> Any:
        self._shares.append(self._file())
        _save(value, self._shares[-1])
        return _Shared(self._shares[-1])

    def changed(self, names: Iterable[str]) -> None:
        self._changed |= set(names)

    def _write_state(self) -> None:
        if not self._states or self._changed:
            value: Any = self._block
            if self._states:
                value = {name: self._block.get_submodule(name).weight for name in sorted(self._changed)}
            self._states.append(self._file())
            _save(value, self._states[-1])
        self._changed.clear()

    def _file(self) -> Path:
        self._files += 1
        return self._work / f"{self._mark}.{self._files}"

    def close(self) -> None:
        """Delete all files."""
        for path in self._work.glob(f"{self._mark}.*"):
            path.unlink(missing_ok=True)


def _told(error: BaseException) -> BaseException:
    """What the command says of it."""
    if isinstance(error, SqueezeError | OSError | MemoryError):
        return error
    reason = escaped((str(error).strip() or type(error).__name__).splitlines()[0])
    return ClusterError(f"a worker was lost, {ATTEMPTS} times: {reason}")


def worked(
    states: tuple[Path, ...], function: Callable[..., Any], part: tuple[Any, ...], out: Path, threads: int
) -> Path:
    """function(block, *part), which a worker does, and writes what becomes of it into a file."""
    torch.set_num_threads(threads)
    with torch.inference_mode():
        _save(function(_block_of(states), *map(_value, part)), out)
    return out


_held: tuple[tuple[Path, ...], Any] = (), None  # a worker's last block, and what it is made of


def _block_of(states: tuple[Path, ...]) -> nn.Module:
    """The block as files say, of which the first holds all of it."""
    global _held  # noqa: PLW0603  so that a block is read once by each worker
    known, block = _held
    if not known or states[: len(known)] != known:
        known, block = states[:1], torch.load(states[0], mmap=True, weights_only=False)
    for path in states[len(known) :]:
        for name, weight in torch.load(path, mmap=True, weights_only=False).items():
            block.get_submodule(name).weight = weight
    _held = states, block
    made: nn.Module = block
    return made


def _value(given: Any) -> Any:
    return torch.load(given.path, mmap=True, weights_only=False) if isinstance(given, _Shared) else given


def _save(value: Any, path: Path) -> None:
    """In one step, also where two workers do the same."""
    unfinished = path.with_name(f"{path.name}.{secrets.token_hex(4)}.{os.getpid()}")
    with disk_told(unfinished):
        torch.save(value, unfinished)
    unfinished.replace(path)
