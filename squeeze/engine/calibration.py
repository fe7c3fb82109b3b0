"""Calibration data: hidden states in files, the order in which layers run, and statistics of inputs."""

from collections import Counter
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
    "hadamard_size_of",
    "record",
    "spacing",
    "stages",
]

_LEAST = 1e-30  # of a sum of weights
_CONSTANT = 1e-6  # share of its mean square that an input without variance keeps
_PAIRED = 20  # tokens per input that the cross-covariance is estimated from


@dataclass(frozen=True)
class Activations:
    """Hidden states of N sequences in a file, float32 [N, L, H]; the system decides what of it is in memory."""

    path: Path
    count: int
    length: int
    width: int

    def write(self, sequences: Iterable[torch.Tensor]) -> None:
        """Write all sequences in one step."""
        unfinished = self.path.with_suffix(".unfinished")
        with unfinished.open("wb") as sink:
            for hidden in sequences:
                sink.write(self.as_bytes(hidden))
        unfinished.replace(self.path)

    @staticmethod
    def as_bytes(hidden: torch.Tensor) -> memoryview:
        """Return the bytes of one sequence as they are in the file."""
        return hidden.float().cpu().contiguous().numpy().data

    def read(self, device: torch.device) -> Iterator[torch.Tensor]:
        """Yield each sequence [L, H]. Raises SqueezeError if the file is too short."""
        with self.path.open("rb") as source:
            for _ in range(self.count):
                hidden = torch.empty((self.length, self.width))
                if source.readinto(hidden.numpy()) != hidden.nbytes:  # type: ignore[arg-type]
                    raise SqueezeError(f"{self.path}: hidden states are incomplete: run the command again")
                yield hidden.to(device)

    def whole(self) -> bool:
        return self.path.is_file() and self.path.stat().st_size == 4 * self.count * self.length * self.width


@dataclass
class InputStatistics:
    """Second moments of the inputs x of one or more matrices, summed until `finish` turns them into means.

    Attributes:
        count: inputs seen.
        bound: a token's squared length counts at most `bound` times the median of its sequence; None for no bound.
            Without one, a first token that attention rests on (attention sink, Xiao et al. 2023, arXiv 2309.17453) may
            make up nearly all of the sum.
        routed: for an expert that was shown all tokens, how many its router sent.
        hessian: after `finish` the mean of x x^T, float32 [I, I].
        cross: after `finish` the input-error cross-covariance, the mean of (y - x) x^T over `paired` inputs, where y is
            the same input in the original network.
        paired: inputs whose original is known.
        mean: after `finish` the weighted mean of x, float32 [I]; before, the sum.
        shift: after `finish` the weighted mean of y - x, float32 [I]; before, the sum. None without originals.
        weight, paired_weight: the sums of the weights of all inputs, and of those whose original is known.
        largest: the largest magnitude before rounding, float32 [], if it is needed.
        strips: before `finish` the sum of x x^T, some rows each, from its diagonal on.
    """

    count: int = 0
    bound: float | None = None
    routed: int | None = None
    hessian: torch.Tensor | None = None
    cross: torch.Tensor | None = None
    paired: int = 0
    mean: torch.Tensor | None = None
    shift: torch.Tensor | None = None
    weight: float = 0.0
    paired_weight: float = 0.0
    largest: torch.Tensor | None = None
    strips: list[torch.Tensor] = field(default_factory=list)

    def add(self, x: torch.Tensor, original: torch.Tensor | None = None) -> None:
        """Add inputs x [T, I], and the same inputs in the original if they are known."""
        x = x.reshape(-1, x.shape[-1]).float()
        size = x.shape[1]
        if not self.strips:
            self.strips = [x.new_zeros((last - first, size - first)) for first, last in _strips(size)]
        weights = None if self.bound is None else _weights(x, self.bound)
        weighted, mass = (x, float(len(x))) if weights is None else (x * weights, float(weights.sum()))
        self.mean = weighted.sum(0) if self.mean is None else self.mean.add_(weighted.sum(0))
        self.weight += mass
        for strip, (first, last) in zip(self.strips, _strips(size), strict=True):
            strip.addmm_(weighted[:, first:last].T, x[:, first:])
        self.count += len(x)
        if original is not None:
            if self.cross is None:
                self.cross = x.new_zeros((size, size))
            moved = original.reshape(x.shape).float() - x
            self.cross.addmm_(moved.T, weighted)
            moved = (moved if weights is None else moved * weights).sum(0)
            self.shift = moved if self.shift is None else self.shift.add_(moved)
            self.paired, self.paired_weight = self.paired + len(x), self.paired_weight + mass

    def join(self, sums: Self) -> None:
        """Add the sums of other inputs, in float64: in the same order they give the same bits, whoever computed
        them."""
        self.count, self.paired = self.count + sums.count, self.paired + sums.paired
        self.weight, self.paired_weight = self.weight + sums.weight, self.paired_weight + sums.paired_weight
        for name in ("mean", "shift"):
            own, more = getattr(self, name), getattr(sums, name)
            if more is not None:
                setattr(self, name, more if own is None else _joined(own, more))
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
        if self.mean is not None:
            self.mean = (self.mean / max(self.weight, _LEAST)).float()
        if self.shift is not None:
            self.shift = (self.shift / max(self.paired_weight, _LEAST)).float()

    def centre(self) -> None:
        """Make `hessian` and `cross` those of x - mean, for a matrix whose bias makes up for the mean."""
        if self.hessian is None or self.mean is None:
            return
        least = _CONSTANT * self.hessian.diagonal()
        self.hessian = torch.addr(self.hessian, self.mean, self.mean, alpha=-self.weight / self.count)
        self.hessian.diagonal().clamp_(min=least)  # rounding may leave less than 0 of an input that hardly changes
        if self.cross is not None and self.shift is not None:
            share = self.paired_weight / self.paired
            self.cross = torch.addr(self.cross, self.shift, self.mean, alpha=-share)


def _joined(total: torch.Tensor, sums: torch.Tensor) -> torch.Tensor:
    return total.double().add_(sums)


def _weights(x: torch.Tensor, bound: float) -> torch.Tensor:
    """Return a weight of at most 1 for each token [T, 1], which bounds squared lengths by `bound` times their
    median."""
    lengths = x.square().sum(-1, keepdim=True)
    return (bound * lengths.median() / lengths.clamp(min=torch.finfo(torch.float32).tiny)).clamp(max=1.0)


def _strips(size: int) -> Iterator[tuple[int, int]]:
    """Yield at most eight ranges that divide a side of a square matrix."""
    step = max(128, -(-size // 8))
    return ((first, min(first + step, size)) for first in range(0, size, step))


def spacing(tokens: int, widest: int) -> int:
    """Return N so that the original runs on one sequence in N.

    That is often enough to estimate the cross-covariance of a matrix with `widest` inputs from `tokens` tokens.
    """
    return max(1, tokens // (_PAIRED * widest))


def error_propagated(
    weights: Sequence[torch.Tensor], statistics: InputStatistics, strength: float, damping: float = 0.01
) -> list[torch.Tensor]:
    """Correct weights for the errors of earlier layers: quantisation error propagation.

    Each W [O, I] becomes W + strength W D (H + damping)^-1, towards the least squares fit of the original's outputs
    (QEP, Arai and Ichikawa 2025, arXiv 2504.09629). D is the mean of (y - x) x^T and H that of x x^T. Weights stay if H
    has no Cholesky factor.

    Args:
        weights: matrices that share their inputs.
        statistics: of the inputs, with the cross-covariance.
        strength: 0 to 1.
        damping: share of the mean diagonal that is added to H.
    """
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
    """Linear modules of a block that are compressed together; the modules of a group share their inputs.

    `repeated` has the modules that run several times in one run of the block.
    """

    groups: tuple[tuple[str, ...], ...]
    repeated: frozenset[str] = frozenset()


def stages(block: nn.Module, names: Iterable[str], runs: Iterator[Callable[[], object]]) -> list[Stage]:
    """Return the linear modules of a block in the order in which they run, those with the same input grouped.

    The same modules of several experts are in one stage. Modules that are never called are in no stage.

    Args:
        block: the block.
        names: of the linear modules.
        runs: functions that run the block on some input, tried until each module has been called.
    """
    waiting, groups_in_order, repeated = set(names), [], set()
    for run in runs:
        called = _calls(block, waiting, run)
        seen = [(name, next(x for other, x in called if other == name)) for name in dict.fromkeys(n for n, _ in called)]
        repeated |= {name for name, count in Counter(name for name, _ in called).items() if count > 1}
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
    found = [tuple(groups) for groups in merged.values()]
    return [Stage(some, frozenset(repeated & {name for group in some for name in group})) for some in found]


def _calls(block: nn.Module, names: Iterable[str], run: Callable[[], object]) -> list[tuple[str, torch.Tensor]]:
    """Return each call of one of the modules in a run, with its input."""
    seen: list[tuple[str, torch.Tensor]] = []
    with Recorder(block, names, lambda name, x: seen.append((name, x))):
        run()
    return seen


def _starred(name: str) -> str:
    return ".".join("*" if part.isdigit() else part for part in name.split("."))


def hadamard_size_of(module: nn.Module) -> int:
    """Return the Hadamard block size by which a network rotates a module's inputs; see Checkpoint.hadamard_size."""
    return int(getattr(module, "hadamard_size", 1))


class Stop(Exception):
    """The end of a run of a block, once everything needed has been seen."""


@dataclass
class Recorder:
    """A context that calls note(name, x) with the input of each module when it runs.

    Inputs are rotated if the module rotates them, and not yet changed by other hooks. After `last` calls Stop is
    raised.
    """

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
            self.note(name, rotate_blocks(args[0], hadamard_size_of(module)))
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


def record(block: nn.Module, stage: Stage, run: Callable[[], object]) -> dict[str, torch.Tensor]:
    """Return the inputs [T, I] of the first module of each group of a stage in one run, which stops early if there is
    one group that runs once."""
    firsts = [group[0] for group in stage.groups]
    seen: dict[str, list[torch.Tensor]] = {}

    def note(name: str, x: torch.Tensor) -> None:
        seen.setdefault(name, []).append(x.reshape(-1, x.shape[-1]))

    with Recorder(block, firsts, note, 1 if len(firsts) == 1 and not stage.repeated else None):
        run()
    return {name: parts[0] if len(parts) == 1 else torch.cat(parts) for name, parts in seen.items()}
