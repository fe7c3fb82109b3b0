"""Tensor trains, Tucker and tensor rings of a matrix, by singular value decompositions of unfoldings.

A matrix [O, I] with O = o1 o2 .. and I = i1 i2 .. is a tensor. Inputs are taken into account by whitening each input
mode. For that H = E[x x^T] is replaced by the Kronecker product of its partial traces, whose Cholesky factors the cores
undo (for Tucker, whose input mode is whole, H itself). TT-SVD: Oseledets 2011; its error is at most the root of the sum
of the squared errors of its steps. Truncated HOSVD: De Lathauwer, De Moor and Vandewalle 2000. TR-SVD: Zhao et al. 2016
(arXiv 1606.05535).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import ClassVar, Self

import torch

from squeeze.engine.method import Result
from squeeze.errors import SqueezeError
from squeeze.factor.form import Form
from squeeze.factor.lowrank import root
from squeeze.factor.methods import NetworkOptions, RingOptions, TrainOptions
from squeeze.factor.networks import TTMatrix, TuckerMatrix

__all__ = ["TensorNetwork", "TensorRing", "TensorTrain", "Tucker", "factors_of", "ring_svd", "tt_svd", "tucker_svd"]

_DAMPING = 1e-3
_BISECTIONS = 40


def factors_of(size: int, count: int) -> tuple[int, ...]:
    """Return `count` factors of a size, as equal as possible, the smallest first."""
    factors = []
    for remaining in range(count, 1, -1):
        ideal = round(size ** (1 / remaining), 9)
        factor = max((n for n in range(1, int(ideal) + 1) if size % n == 0), default=1)
        factors.append(factor)
        size //= factor
    return (*factors, size)


def _split(matrix: torch.Tensor, rank: int) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Return orthonormal columns [M, rank], their factor [rank, N], and the squared error."""
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    rank = min(rank, len(values))
    return left[:, :rank], values[:rank, None] * right[:rank], float(values[rank:].square().sum())


def tt_svd(tensor: torch.Tensor, ranks: Sequence[int]) -> tuple[list[torch.Tensor], float]:
    """Return the cores [R_k, n_k, R_k+1] of a tensor [n_1, .., n_d] with at most the given d - 1 inner ranks, and a
    bound of the Frobenius norm of the error.

    The bound is the root of the sum of the squared errors of the steps.
    """
    cores, squared, before = [], 0.0, 1
    remainder = tensor.reshape(tensor.shape[0], -1)
    for size, rank in zip(tensor.shape, ranks, strict=False):
        left, remainder, error = _split(remainder.reshape(before * size, -1), rank)
        cores.append(left.view(before, size, -1))
        squared, before = squared + error, left.shape[1]
    cores.append(remainder.reshape(before, tensor.shape[-1], 1))
    return cores, squared**0.5


def ring_svd(tensor: torch.Tensor, ring: int, ranks: Sequence[int]) -> tuple[list[torch.Tensor], float]:
    """Return the cores [R_k, n_k, R_k+1] of a ring, and a bound of the error as in tt_svd.

    Args:
        tensor: of d >= 2 modes.
        ring: rank that closes the ring.
        ranks: the d - 1 inner ranks, at most.
    """
    left, remainder, error = _split(tensor.reshape(tensor.shape[0], -1), ring * ranks[0])
    ring = max(n for n in range(1, ring + 1) if left.shape[1] % n == 0)
    after = left.shape[1] // ring
    cores = [left.view(-1, ring, after).transpose(0, 1)]
    remainder = remainder.reshape(ring, -1).T  # [after n_2 .. n_d, ring]
    before, squared = after, error
    for size, rank in zip(tensor.shape[1:-1], ranks[1:], strict=True):
        left, remainder, error = _split(remainder.reshape(before * size, -1), rank)
        cores.append(left.view(before, size, -1))
        squared, before = squared + error, left.shape[1]
    cores.append(remainder.reshape(before, tensor.shape[-1], ring))
    return cores, squared**0.5


def tucker_svd(tensor: torch.Tensor, ranks: Sequence[int]) -> tuple[torch.Tensor, list[torch.Tensor], float]:
    """Return the core [r_1, ..], orthonormal factors [n_k, r_k], and a bound of the error.

    The bound is the root of the sum of the squared singular values that are left out of each unfolding.
    """
    factors, squared = [], 0.0
    core = tensor
    for mode, rank in enumerate(ranks):
        unfolded = tensor.movedim(mode, 0).reshape(tensor.shape[mode], -1)
        values, vectors = torch.linalg.eigh(unfolded @ unfolded.T)
        rank_kept = min(rank, len(values))
        squared += float(values[: len(values) - rank_kept].clamp(min=0).sum())
        factors.append(vectors.flip(1)[:, :rank_kept])
        core = torch.tensordot(core, factors[-1], ([0], [0]))
    return core, factors, squared**0.5


def _spectra(unfoldings: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the squared singular values of each unfolding, descending."""
    grams = ((u @ u.T) if u.shape[0] <= u.shape[1] else (u.T @ u) for u in unfoldings)
    return [torch.linalg.eigvalsh(gram).flip(0).clamp(min=0) for gram in grams]


def _ranks(spectra: Sequence[torch.Tensor], size: Callable[[list[int]], int], limit: int) -> list[int]:
    """Return ranks that leave out the same share of each spectrum, the smallest share that `limit` values allow."""
    tails = [torch.cat([s.flip(0).cumsum(0).flip(0), s.new_zeros(1)]) / s.sum().clamp(min=1e-300) for s in spectra]

    def at(share: float) -> list[int]:
        return [max(1, int((tail > share).sum())) for tail in tails]

    low, high = 0.0, 1.0
    if size(at(high)) > limit:
        raise SqueezeError(f"expected to keep at least {size(at(high))} values, for ranks of 1, got {limit}")
    for _ in range(_BISECTIONS):
        middle = (low * high) ** 0.5 if low else high / 4
        low, high = (low, middle) if size(at(middle)) <= limit else (middle, high)
        if high < 1e-12:
            break
    return at(high)


@dataclass(frozen=True, kw_only=True)
class TensorNetwork(NetworkOptions, ABC):
    """The base of methods that factorise a matrix as a tensor. `whiten`: weight errors by the inputs, if there is a
    Hessian."""

    name: ClassVar[str]
    needs_hessian: ClassVar[bool] = True

    @abstractmethod
    def decompose(self, weight: torch.Tensor, hessian: torch.Tensor | None) -> Form:
        """Return the form of a float64 weight [O, I], in float64."""

    def compress(self, weight: torch.Tensor, hessian: torch.Tensor | None = None) -> Result[Form]:
        """Factorise a weight; see Method.compress. Raises SqueezeError if no rank is small enough."""
        wide = self.decompose(weight.double(), hessian.double() if self.whiten and hessian is not None else None)
        rounded = {name: tensor.to(weight.dtype).contiguous() for name, tensor in wide.tensors().items()}
        return Result(type(wide).of(rounded))

    def fallback(self) -> Self:
        """Return the method without whitening: the same form, so that experts without statistics are stored as the
        others."""
        return replace(self, whiten=False)


@dataclass(frozen=True, kw_only=True)
class TensorTrain(TrainOptions, TensorNetwork):
    """Factorise a matrix W (out, in) as a tensor train: for comparison, since low rank has less error at the same size.

    TT-SVD, Oseledets 2011. `modes` is the number of pairs (o_k, i_k) that the matrix is divided into, and of cores.
    """

    name: ClassVar[str] = "tt"

    def decompose(self, weight: torch.Tensor, hessian: torch.Tensor | None) -> Form:
        tensor, inverses, outputs, inputs = _as_tensor(weight, hessian, self.modes)
        sizes = tensor.shape
        unfoldings = [tensor.reshape(prod(sizes[:k]), -1) for k in range(1, self.modes)]

        def size(ranks: list[int]) -> int:
            ends = [1, *ranks, 1]
            return sum(a * n * b for a, n, b in zip(ends, sizes, ends[1:], strict=False))

        ranks = _ranks(_spectra(unfoldings), size, int(self.keep * weight.numel()))
        return _with_modes(tt_svd(tensor, ranks)[0], inverses, outputs, inputs)


@dataclass(frozen=True, kw_only=True)
class TensorRing(RingOptions, TensorNetwork):
    """Factorise a matrix W (out, in) as a tensor ring: a train whose ends are joined by the rank `ring`.

    TR-SVD, Zhao et al. 2016, arXiv 1606.05535. `modes` as in TensorTrain; the first split must have room for `ring`.
    """

    name: ClassVar[str] = "ring"

    def decompose(self, weight: torch.Tensor, hessian: torch.Tensor | None) -> Form:
        tensor, inverses, outputs, inputs = _as_tensor(weight, hessian, self.modes)
        sizes = tensor.shape
        unfoldings = [tensor.reshape(prod(sizes[:k]), -1) for k in range(1, self.modes)]

        def even(ranks: list[int]) -> list[int]:
            return [-(-ranks[0] // self.ring), *(min(self.ring * rank, sizes[-1] * self.ring) for rank in ranks[1:])]

        def size(ranks: list[int]) -> int:
            ends = [self.ring, *even(ranks), self.ring]
            return sum(a * n * b for a, n, b in zip(ends, sizes, ends[1:], strict=False))

        ranks = _ranks(_spectra(unfoldings), size, int(self.keep * weight.numel()))
        return _with_modes(ring_svd(tensor, self.ring, even(ranks))[0], inverses, outputs, inputs)


@dataclass(frozen=True, kw_only=True)
class Tucker(TensorNetwork):
    """Factorise a matrix W (out, in) as a Tucker tensor [o1, o2, I] with one factor a mode.

    Truncated HOSVD, De Lathauwer et al. 2000.
    """

    name: ClassVar[str] = "tucker"

    def decompose(self, weight: torch.Tensor, hessian: torch.Tensor | None) -> Form:
        first, second = factors_of(len(weight), 2)
        inner, inverse = (None, None) if hessian is None else root(hessian, _DAMPING)
        tensor = (weight if inner is None else weight @ inner).view(first, second, -1)
        unfoldings = [tensor.movedim(mode, 0).reshape(tensor.shape[mode], -1) for mode in range(3)]

        def size(ranks: list[int]) -> int:
            return prod(ranks) + sum(n * r for n, r in zip(tensor.shape, ranks, strict=True))

        ranks = _ranks(_spectra(unfoldings), size, int(self.keep * weight.numel()))
        core, (a, b, c), _ = tucker_svd(tensor, ranks)
        return TuckerMatrix(core, a, b, c.T if inverse is None else c.T @ inverse)


def _as_tensor(
    weight: torch.Tensor, hessian: torch.Tensor | None, modes: int
) -> tuple[torch.Tensor, list[torch.Tensor], tuple[int, ...], tuple[int, ...]]:
    """Return the whitened tensor [o1 i1, o2 i2, ..], the matrices [i_k, i_k] that undo whitening, and the factors of
    O and I."""
    outputs, inputs = factors_of(weight.shape[0], modes), factors_of(weight.shape[1], modes)[::-1]
    tensor = weight.view(*outputs, *inputs)
    inverses = []
    for k, size in enumerate(inputs):
        inner = inverse = torch.eye(size).to(weight)
        if hessian is not None:
            inner, inverse = root(_partial_trace(hessian, inputs, k), _DAMPING)
        tensor = torch.tensordot(tensor, inner, ([modes + k], [0])).movedim(-1, modes + k)
        inverses.append(inverse)
    order = [place for k in range(modes) for place in (k, modes + k)]
    shape = [o * i for o, i in zip(outputs, inputs, strict=True)]
    return tensor.permute(order).reshape(shape), inverses, outputs, inputs


def _partial_trace(hessian: torch.Tensor, inputs: Sequence[int], mode: int) -> torch.Tensor:
    """Return the mean of H over all other input modes, [i_k, i_k]."""
    before, size, after = prod(inputs[:mode]), inputs[mode], prod(inputs[mode + 1 :])
    return torch.einsum("aibajb->ij", hessian.view(before, size, after, before, size, after)) / (before * after)


def _with_modes(
    cores: list[torch.Tensor], inverses: list[torch.Tensor], outputs: Sequence[int], inputs: Sequence[int]
) -> TTMatrix:
    """Reshape cores [R, o i, S] to [R, o, i, S], and undo whitening."""
    reshaped = []
    for core, inverse, o, i in zip(cores, inverses, outputs, inputs, strict=True):
        reshaped.append(torch.einsum("rois,ij->rojs", core.reshape(core.shape[0], o, i, core.shape[2]), inverse))
    return TTMatrix(tuple(reshaped))
