"""The policy of small cache files: exact in memory, and transform-coded over several layers at once in a file.

Keys (before their rotary embedding) and values of neighbouring layers come from nearly the same residual stream, so
they are correlated. The transform takes all heads of several layers together. Let F = L L^T be the Fisher information
of a head, B the block-diagonal matrix of these L, and C the joint covariance. With B^T C B = U diag(v) U^T, let
y = U^T B^T (x - mean). Then a squared error in y costs the same loss everywhere, so that one quantiser step serves all
coefficients: most round to 0, and coefficients.py codes them.

Sources: KVTC (Staniszewski and Lancucki 2025, arXiv:2511.01815: principal components over heads and layers, bits by
their variance, entropy coding of stored caches). The weights by Fisher information are those of transform.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from squeeze.errors import PolicyError, SqueezeError
from squeeze.kv.archive.coefficients import MOST
from squeeze.kv.base import HeadGroup, Policy

__all__ = ["Archive", "Basis"]

RECENT = 2.0  # the latest tokens are coded with a step that is smaller by this factor
_NUMBERS = ("sinks", "window")
_TENSORS = {"lower": torch.float32, "mean": torch.float32, "vectors": torch.float16, "magnitudes": torch.int32}
_MOST_CHANNELS = 1 << 16


@dataclass(frozen=True, eq=False)
class Basis:
    """A transform of the states of several layers.

    Args:
        layers: The layers' numbers, ascending.
        lower: [m, D, D], the Cholesky factor L of the Fisher information of each head: for each layer in turn those of
            keys, then those of values.
        mean: [m, D].
        vectors: float16 [m * D, K], the columns of U that are kept.
        magnitudes: int32 [K], mean magnitudes of quantised coefficients, in units of 1 / 256.
    """

    layers: tuple[int, ...]
    lower: torch.Tensor
    mean: torch.Tensor
    vectors: torch.Tensor
    magnitudes: torch.Tensor

    @property
    def kept(self) -> int:
        """The number of coefficients."""
        return self.vectors.shape[1]

    @property
    def heads(self) -> int:
        """The number of KV heads of a layer."""
        return len(self.lower) // (2 * len(self.layers))

    @cached_property
    def inverse(self) -> torch.Tensor:
        """The inverses of `lower`, [m, D, D]."""
        unit = torch.eye(self.lower.shape[1]).expand_as(self.lower)
        inverse: torch.Tensor = torch.linalg.solve_triangular(self.lower, unit, upper=False)
        return inverse

    def check(self) -> None:
        """Raise ValueError if the parts of a basis from a file do not match each other."""
        heads, size = self.mean.shape if self.mean.dim() == 2 else (0, 0)
        if not heads or heads % (2 * len(self.layers)) or heads * size > _MOST_CHANNELS:
            raise ValueError
        if self.lower.shape != (heads, size, size) or self.vectors.dim() != 2:
            raise ValueError
        if self.vectors.shape[0] != heads * size or self.magnitudes.shape != (self.kept,):
            raise ValueError
        if any(getattr(self, name).dtype != dtype for name, dtype in _TENSORS.items()):
            raise ValueError
        if not all(x.isfinite().all() for x in (self.lower, self.mean, self.vectors)):
            raise ValueError
        if self.kept and not 1 <= int(self.magnitudes.min()) <= int(self.magnitudes.max()) <= 1 << 30:
            raise ValueError
        if not (self.lower.diagonal(dim1=-2, dim2=-1) > 0).all():
            raise ValueError

    def forward(self, states: torch.Tensor, step: float) -> torch.Tensor:
        """Transform states [T, m, D] to coefficients [T, K] in units of a step."""
        white: torch.Tensor = torch.einsum("tmd,mde->tme", states - self.mean, self.lower)
        return white.flatten(1) @ self.vectors.float() / step

    def backward(self, coefficients: torch.Tensor, step: float) -> torch.Tensor:
        """Transform coefficients [T, K] in units of a step back to states [T, m, D]."""
        white = (coefficients * step) @ self.vectors.float().T
        states: torch.Tensor = torch.einsum("tme,med->tmd", white.unflatten(1, self.mean.shape), self.inverse)
        return states + self.mean


@dataclass(frozen=True, eq=False)
class Archive(Policy):
    """A policy that keeps a cache exact in memory, and lets its file take few bits.

    Args:
        bases: The transforms; each layer is in one of them.
        step: The step of the quantiser.
        bits: The expected bits per value in a file, sinks left out.
        frequencies: Frequencies of the rotary embedding that is undone, or None.
        sinks: The number of first tokens that a file has in 16 bits, not transformed.
        window: The number of latest tokens that are coded more finely.
    """

    bases: tuple[Basis, ...]
    step: float
    bits: float
    frequencies: torch.Tensor | None = None
    sinks: int = 4
    window: int = 64
    archives = True
    block = 0

    def head_groups(self, layer: int, heads: int) -> list[HeadGroup]:
        return []

    def quantised(self, basis: Basis, states: torch.Tensor) -> np.ndarray:
        """Return the coefficients of states [T, m, D] as int32 [T, K].

        Raises SqueezeError if they are far outside what the policy was calibrated on.
        """
        found = (basis.forward(states, self.step) * self._gains(len(states))).round()
        if not (found.abs() <= MOST).all():  # NaN as well
            raise SqueezeError("the cache has states that are far from all that the policy was calibrated on")
        whole: np.ndarray = found.to(torch.int32).numpy()
        return whole

    def restored(self, basis: Basis, coefficients: np.ndarray) -> torch.Tensor:
        """Return the states [T, m, D], float32, of coefficients int32 [T, K]."""
        values = torch.from_numpy(coefficients).float() / self._gains(len(coefficients))
        return basis.backward(values, self.step)

    def _gains(self, tokens: int) -> torch.Tensor:
        """Return the factor of each token, float32 [T, 1]."""
        gains = torch.ones(tokens, 1)
        gains[max(tokens - self.window, 0) :] = RECENT
        return gains

    def to_tensors(self) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        """Return what a policy file holds: values for JSON, and tensors."""
        plain: dict[str, Any] = {name: getattr(self, name) for name in ("step", "bits", *_NUMBERS)}
        plain["layers"] = [basis.layers for basis in self.bases]
        tensors = {
            f"{number}.{name}": getattr(basis, name).contiguous()
            for number, basis in enumerate(self.bases)
            for name in _TENSORS
        }
        return plain, tensors if self.frequencies is None else {**tensors, "frequencies": self.frequencies}

    @classmethod
    def from_tensors(cls, plain: dict[str, Any], tensors: dict[str, torch.Tensor]) -> Archive:
        """Return the policy of what `to_tensors` returned.

        Raises KeyError, TypeError, ValueError or AttributeError if it is anything else.
        """
        if any(type(plain[name]) is not int or not 0 <= plain[name] < 1 << 31 for name in _NUMBERS):
            raise ValueError
        if any(type(plain[name]) is not float or not 1e-30 < plain[name] < 1e30 for name in ("step", "bits")):
            raise ValueError
        groups = [tuple(layers) for layers in plain["layers"]]
        flat = [layer for layers in groups for layer in layers]
        if not all(groups) or any(type(layer) is not int or layer < 0 for layer in flat) or sorted(set(flat)) != flat:
            raise ValueError
        bases = [
            Basis(layers, *(tensors[f"{number}.{name}"] for name in _TENSORS)) for number, layers in enumerate(groups)
        ]
        for basis in bases:
            basis.check()
        frequencies = tensors.get("frequencies")
        if frequencies is not None and (
            frequencies.dim() != 1
            or frequencies.dtype != torch.float32
            or any(2 * frequencies.numel() > basis.mean.shape[1] for basis in bases)
            or not frequencies.isfinite().all()
        ):
            raise ValueError
        numbers = {name: plain[name] for name in ("step", "bits", *_NUMBERS)}
        return cls(tuple(bases), frequencies=frequencies, **numbers)

    def check_layers(self, shapes: dict[int, tuple[int, int]]) -> None:
        """Raise PolicyError if it was calibrated for layers of other heads and channels than these, by number."""
        mine = {layer: (basis.heads, basis.mean.shape[1]) for basis in self.bases for layer in basis.layers}
        if mine != shapes:
            raise PolicyError("the policy was calibrated for another model: its layers or heads are others")

    def __repr__(self) -> str:
        return f"Archive(bits={self.bits:.3f}, sinks={self.sinks}, window={self.window})"
