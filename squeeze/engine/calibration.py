"""What a model's layers see: hidden states kept in files, the order in which layers run, statistics of inputs.

Nothing here knows what the statistics are for.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch import nn

from squeeze.engine.method import LARGE
from squeeze.errors import SqueezeError
from squeeze.numerics.hadamard import rotate_blocks

__all__ = [
    "Activations",
    "InputStatistics",
    "Stop",
    "error_propagated",
    "record",
    "spacing",
    "stages",
    "turns_of",
]

_PAIRED = 20  # tokens for each input


@dataclass(frozen=True)
class Activations:
    """Hidden states of N sequences, float32 [N, L, H], in a file: what is in memory is the system's to decide."""

    path: Path
    count: int
    length: int
    width: int

    def write(self, sequences: Iterable[torch.Tensor]) -> None:
        """Write all of them, in one step."""
        unfinished = self.path.with_suffix(".unfinished")
        with unfinished.open("wb") as sink:
            for hidden in sequences:
                sink.write(self.as_bytes(hidden))
        unfinished.replace(self.path)

    @staticmethod
    def as_bytes(hidden: torch.Tensor) -> memoryview:
        """One sequence as it lies in the file."""
        return hidden.float().cpu().contiguous().numpy().data

    def read(self, device: torch.device) -> Iterator[torch.Tensor]:
        """[L, H] each. Raises SqueezeError where the file has fewer."""
        with self.path.open("rb") as source:
            for _ in range(self.count):
                hidden = torch.empty((self.length, self.width))
                if source.readinto(hidden.numpy()) != hidden.nbytes:  # type: ignore[arg-type]
                    raise SqueezeError(f"{self.path}: the end of its hidden states is gone: run the command again")
                yield hidden.to(device)

    def whole(self) -> bool:
        return self.path.is_file() and self.path.stat().st_size == 4 * self.count * self.length * self.width


@dataclass
class InputStatistics:
    """Of the inputs x of one or more matrices. Once `finish` was called, hessian: float32 [I, I], the mean of x x^T;
    cross: likewise the input-error cross-covariance, of (y - x) x^T, where y is the same input in the original network,
    over the `paired` inputs of which it is known; count: inputs seen; routed: of an expert that was shown all tokens,
    how many its router sent; largest: float32 [], their largest magnitude before they were rounded, where that is
    needed. bound: a token's squared length counts as at most so many times the median one's of its sequence; a first
    token that attention rests on (Xiao et al. 2023, arXiv 2309.17453) may else hold nearly all of the sum. None for no
    bound. strips: before that the sum of x x^T: of some rows each, from its diagonal on."""

    count: int = 0
    bound: float | None = None
    routed: int | None = None
    hessian: torch.Tensor | None = None
    cross: torch.Tensor | None = None
    paired: int = 0
    largest: torch.Tensor | None = None
    strips: list[torch.Tensor] = field(default_factory=list)

    def add(self, x: torch.Tensor, original: torch.Tensor | None = None) -> None:
        """x, original: [T, I]."""
        x = x.reshape(-1, x.shape[-1]).float()
        size = x.shape[1]
        if not self.strips:
            self.strips = [x.new_zeros((last - first, size - first)) for first, last in _strips(size)]
        weighted = x if self.bound is None else x * _weights(x, self.bound)
        for strip, (first, last) in zip(self.strips, _strips(size), strict=True):
            strip.addmm_(weighted[:, first:last].T, x[:, first:])
        self.count += len(x)
        if original is not None:
            if self.cross is None:
                self.cross = x.new_zeros((size, size))
            self.cross.addmm_((original.reshape(x.shape).float() - x).T, weighted)
            self.paired += len(x)

    def join(self, sums: Self) -> None:
        """Add the sums of other inputs, in float64: in the same order the same bits, whoever has made them."""
        self.count, self.paired = self.count + sums.count, self.paired + sums.paired
        if not self.strips:
            self.strips = sums.strips
        elif sums.strips:
            self.strips = [_joined(*pair) for pair in zip(self.strips, sums.strips, strict=True)]
        if sums.cross is not None:
            self.cross = sums.cross if self.cross is None else _joined(self.cross, sums.cross)

    def finish(self) -> None:
        """Turn sums into means."""
        if self.strips:
            size = self.strips[0].shape[1]
            self.hessian = self.strips[0].new_empty((size, size), dtype=torch.float32)
            for first, last in _strips(size):
                self.hessian[first:last, first:] = self.strips.pop(0).div_(self.count)
                self.hessian[last:, first:last] = self.hessian[first:last, last:].T
        if self.cross is not None:
            self.cross = self.cross.div_(self.paired).float()


def _joined(total: torch.Tensor, sums: torch.Tensor) -> torch.Tensor:
    return total.double().add_(sums)


def _weights(x: torch.Tensor, bound: float) -> torch.Tensor:
    """Of each token [T, 1], at most 1: squared lengths times these are at most `bound` times their median."""
    lengths = x.square().sum(-1, keepdim=True)
    return (bound * lengths.median() / lengths.clamp(min=torch.finfo(torch.float32).tiny)).clamp(max=1.0)


def _strips(size: int) -> Iterator[tuple[int, int]]:
    """Eight or fewer ranges that a side of a square matrix is cut into."""
    step = max(128, -(-size // 8))
    return ((first, min(first + step, size)) for first in range(0, size, step))


def spacing(tokens: int, widest: int) -> int:
    """N, where the original runs on one sequence in N: often enough to estimate the cross-covariance of a matrix with
    `widest` inputs, and no oftener."""
    return max(1, tokens // (_PAIRED * widest))


def error_propagated(
    weights: Sequence[torch.Tensor], statistics: InputStatistics, strength: float, damping: float = 0.01
) -> list[torch.Tensor]:
    """W + strength W D (H + damping)^-1 of each W [O, I], quantisation error propagation (QEP, Arai and Ichikawa 2025,
    arXiv 2504.09629): towards the least squares fit of the original's outputs. D is the mean of (y - x) x^T, H that of
    x x^T, y the original's inputs, x the compressed network's. Where H has no Cholesky factor, weights stay."""
    hessian, cross = statistics.hessian, statistics.cross
    assert hessian is not None and cross is not None
    damped = hessian.clone() if len(hessian) > LARGE else hessian.double()
    damped.diagonal().add_(damping * damped.diagonal().mean() + 1e-12)
    lower, failed = torch.linalg.cholesky_ex(damped)
    del damped
    if failed:
        return list(weights)
    corrected = []
    for weight in weights:
        pull = (weight @ cross).T.to(lower.dtype)
        corrected.append(weight + strength * torch.cholesky_solve(pull, lower).T.float())
    return corrected


@dataclass(frozen=True)
class Stage:
    """Linear modules of a block that are quantised together: each group shares its inputs."""

    groups: tuple[tuple[str, ...], ...]


def stages(block: nn.Module, names: Iterable[str], runs: Iterator[Callable[[], object]]) -> list[Stage]:
    """The order in which linear modules run, those with the same input grouped, alike ones of experts in one stage.

    runs: functions that run the block on some input, tried until each module has been called. Modules that never are
    come in no stage.
    """
    waiting, groups_in_order = set(names), []
    for run in runs:
        seen = _calls(block, waiting, run)
        group: list[str] = []
        for i, (name, x) in enumerate(seen):
            if i and x is not seen[i - 1][1]:
                groups_in_order.append(tuple(group))
                group = []
            group.append(name)
        if group:
            groups_in_order.append(tuple(group))
        waiting -= {name for name, _ in seen}
        if not waiting:
            break
    merged: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
    for names_of_group in groups_in_order:
        merged.setdefault(tuple(_starred(name) for name in names_of_group), []).append(names_of_group)
    return [Stage(tuple(groups)) for groups in merged.values()]


def _calls(block: nn.Module, names: Iterable[str], run: Callable[[], object]) -> list[tuple[str, torch.Tensor]]:
    """Each call of one of the modules in a run, with its input."""
    seen: list[tuple[str, torch.Tensor]] = []
    with Recorder(block, names, lambda name, x: seen.append((name, x))):
        run()
    return seen


def _starred(name: str) -> str:
    return ".".join("*" if part.isdigit() else part for part in name.split("."))


def turns_of(module: nn.Module) -> int:
    """As Checkpoint.turns, of a module of a Network."""
    return int(getattr(module, "turns", 1))


class Stop(Exception):
    """Ends a run of a block once all that is wanted has been seen."""


@dataclass
class Recorder:
    """Calls note(name, x) with the input of each of the modules when it runs, turned where the module turns it, before
    other hooks change it; after `last` calls it raises Stop."""

    block: nn.Module
    names: Iterable[str]
    note: Callable[[str, torch.Tensor], object]
    last: int | None = None
    _hooks: list[Any] = field(default_factory=list)
    _calls: int = 0

    def __enter__(self) -> Self:
        for name in self.names:
            self._hooks.append(self.block.get_submodule(name).register_forward_pre_hook(self._hook(name), prepend=True))
        return self

    def _hook(self, name: str) -> Callable[[nn.Module, tuple[torch.Tensor, ...]], None]:
        def hook(module: nn.Module, args: tuple[torch.Tensor, ...]) -> None:
            self.note(name, rotate_blocks(args[0], turns_of(module)))
            self._calls += 1
            if self._calls == self.last:
                raise Stop

        return hook

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        for hook in self._hooks:
            hook.remove()
        self._calls = 0
        return kind is Stop


def record(block: nn.Module, groups: Iterable[tuple[str, ...]], run: Callable[[], object]) -> dict[str, torch.Tensor]:
    """The inputs [T, I] of the first module of each group in one run, which ends there where there is one group."""
    firsts = [group[0] for group in groups]
    seen: dict[str, torch.Tensor] = {}
    with Recorder(block, firsts, seen.__setitem__, 1 if len(firsts) == 1 else None):
        run()
    return {name: x.reshape(-1, x.shape[-1]) for name, x in seen.items()}
