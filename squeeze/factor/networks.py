"""Forms with several cores: tensor trains, tensor rings, Tucker, Monarch and BLAST.

A matrix [O, I] with O = o1 o2 .. and I = i1 i2 .. is a tensor with the modes (o1 i1), (o2 i2), ..: the layout of a
TT-matrix (Novikov et al. 2015, arXiv 1509.06569). kernels/tt and blr multiply without the dense matrix.
"""

from dataclasses import dataclass
from math import prod
from typing import ClassVar

import torch

from squeeze.factor.form import Form
from squeeze.kernels import blr, tt

__all__ = ["Blast", "MonarchMatrix", "TTMatrix", "TuckerMatrix"]


@dataclass(frozen=True)
class TTMatrix(Form):
    """A tensor train or ring with cores [R_k, o_k, i_k, R_k+1].

    A train begins and ends with rank 1; in a ring both ends have the same rank, over which is summed (tensor ring: Zhao
    et al. 2016, arXiv 1606.05535).
    """

    kind: ClassVar[str] = "tensor train or ring"
    leaves: ClassVar[tuple[str, ...]] = ("cores",)
    numbered_leaf: ClassVar[str | None] = "cores"

    cores: tuple[torch.Tensor, ...]

    @property
    def shape(self) -> tuple[int, int]:
        return prod(core.shape[1] for core in self.cores), prod(core.shape[2] for core in self.cores)

    def check(self) -> None:
        ends = zip(self.cores, (*self.cores[1:], self.cores[0]), strict=True)
        if any(core.ndim != 4 for core in self.cores) or any(a.shape[3] != b.shape[0] for a, b in ends):
            raise ValueError("the ranks of neighbouring cores differ")

    def multiply(self, x: torch.Tensor) -> torch.Tensor:
        if len(x) >= tt.rows_to_expand(tuple(core.shape for core in self.cores)):
            return x @ self.dequantize(x.dtype).T
        return tt.multiply(x, [core.to(x.dtype) for core in self.cores])

    def dequantize(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        first = self.cores[0].float()
        merged = first.permute(0, 3, 1, 2)  # [R_0, R, O, I]
        for core in self.cores[1:]:
            merged = torch.einsum("arpq,roib->abpoqi", merged, core.float())
            a, b, p, o, q, i = merged.shape
            merged = merged.reshape(a, b, p * o, q * i)
        return torch.einsum("aaoi->oi", merged).to(dtype)


@dataclass(frozen=True)
class TuckerMatrix(Form):
    """A tensor [o1, o2, I] as a core [r1, r2, r3] times one factor a mode: first [o1, r1], second [o2, r2], third [r3,
    I].

    Tucker 1966; De Lathauwer et al. 2000.
    """

    kind: ClassVar[str] = "tucker"
    leaves: ClassVar[tuple[str, ...]] = ("tucker", "first", "second", "third")

    tucker: torch.Tensor
    first: torch.Tensor
    second: torch.Tensor
    third: torch.Tensor

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.first) * len(self.second), self.third.shape[1]

    def check(self) -> None:
        if self.tucker.shape != (self.first.shape[1], self.second.shape[1], len(self.third)):
            raise ValueError("the core's ranks are not those of its factors")

    def multiply(self, x: torch.Tensor) -> torch.Tensor:
        y = x @ self.third.T.to(x.dtype)  # [T, r3]
        a, b, c = self.tucker.shape
        y = (y @ self.tucker.to(x.dtype).reshape(a * b, c).T).view(-1, a, b)
        y = self.first.to(x.dtype) @ y @ self.second.T.to(x.dtype)
        return y.flatten(1)

    def dequantize(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        operands = (self.tucker.float(), self.first.float(), self.second.float(), self.third.float())
        return torch.einsum("abc,oa,pb,ci->opi", *operands).flatten(0, 1).to(dtype)


@dataclass(frozen=True)
class MonarchMatrix(Form):
    """Blocks [o, i] of rank R in a grid of P x Q: inner [Q, P R, i], then outer [P, o, Q R].

    These are two block-diagonal matrices with a permutation between them (Monarch, Dao et al. 2022, arXiv 2204.00595,
    who have R = 1).
    """

    kind: ClassVar[str] = "monarch"
    leaves: ClassVar[tuple[str, ...]] = ("outer", "inner")

    outer: torch.Tensor
    inner: torch.Tensor

    @property
    def shape(self) -> tuple[int, int]:
        return self.outer.shape[0] * self.outer.shape[1], self.inner.shape[0] * self.inner.shape[2]

    def check(self) -> None:
        (p, _, qr), (q, pr, _) = self.outer.shape, self.inner.shape
        if qr % q or pr % p or qr // q != pr // p:
            raise ValueError("the blocks of the two factors have different ranks")

    def multiply(self, x: torch.Tensor) -> torch.Tensor:
        return blr.monarch(x, self.outer.to(x.dtype), self.inner.to(x.dtype))

    def dequantize(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        (p, o, _), (q, pr, i) = self.outer.shape, self.inner.shape
        outer = self.outer.float().view(p, o, q, pr // p)
        inner = self.inner.float().view(q, p, pr // p, i)
        return torch.einsum("poqr,qpri->poqi", outer, inner).reshape(self.shape).to(dtype)


@dataclass(frozen=True)
class Blast(Form):
    """Blocks (p, q) that are left_p diag(scales_pq) right_q: left [P, o, R], right [Q, R, i], scales [P, Q, R].

    BLAST, Lee et al. 2024, arXiv 2410.21262.
    """

    kind: ClassVar[str] = "blast"
    leaves: ClassVar[tuple[str, ...]] = ("bases", "mix", "inputs")

    bases: torch.Tensor
    mix: torch.Tensor
    inputs: torch.Tensor

    @property
    def shape(self) -> tuple[int, int]:
        return self.bases.shape[0] * self.bases.shape[1], self.inputs.shape[0] * self.inputs.shape[2]

    def check(self) -> None:
        (p, _, r), (q, s, _) = self.bases.shape, self.inputs.shape
        if tuple(self.mix.shape) != (p, q, r) or r != s:
            raise ValueError("the parts have different ranks")

    def multiply(self, x: torch.Tensor) -> torch.Tensor:
        return blr.blast(x, self.bases.to(x.dtype), self.mix.to(x.dtype), self.inputs.to(x.dtype))

    def dequantize(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        blocks = torch.einsum("por,pqr,qri->poqi", self.bases.float(), self.mix.float(), self.inputs.float())
        return blocks.reshape(self.shape).to(dtype)
