"""Rotations fused into a Llama-type network, which spread large weights and inputs over many: the function stays.

QuaRot (Ashkboos et al. 2024, arXiv 2404.00456): R1 turns the residual stream (embedding, every input of a block's
matrices, every output), R2 the values of each attention head. The factors of RMSNorm go into the matrices behind it.
`online` adds what the network does as it runs: R4 turns what down_proj is given, whose weight is turned back here, and
R3 queries and keys after their rotary positions, which no weight knows of. A block of 16 or 32 for R1 is what MR-GPTQ
(2025, arXiv 2509.23202) uses for FP4, whose groups are that small.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from squeeze.checkpoint.architectures import EMBEDDING, HEAD, LAST_NORM, NORM_BEFORE, architecture_of, head_size
from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.checkpoint.safetensors import Tensor
from squeeze.errors import FormatError, ModelError, printable
from squeeze.numerics.hadamard import hadamard, turned
from squeeze.quant.formats.common import understood

__all__ = ["RotatedCheckpoint", "check_still", "online", "rotation", "transform_config"]

_EMBEDDING, _HEAD, _NORM = (f"{name}.weight" for name in (EMBEDDING, HEAD, LAST_NORM))
_DOWN = "mlp.down_proj"
_OUT = ("self_attn.o_proj", _DOWN)


def rotation(n: int, seed: int, block: int | None = None) -> torch.Tensor:
    """Orthogonal [n, n] in float64: a Hadamard matrix with random signs, of blocks where asked for; a random
    orthogonal matrix where there is no such Hadamard matrix."""
    size = block or n
    if n % size:
        raise ModelError(f"a rotation in blocks of {size} does not fit {n} dimensions")
    generator = torch.Generator().manual_seed(seed)
    matrix = hadamard(size)
    if matrix is None:
        q, r = torch.linalg.qr(torch.randn((size, size), generator=generator, dtype=torch.float64))
        orthogonal = q * r.diagonal().sign()
    else:
        orthogonal = matrix / size**0.5
    signs = torch.randint(0, 2, (n, 1), generator=generator).double() * 2 - 1
    return signs * torch.kron(torch.eye(n // size, dtype=torch.float64), orthogonal)


@dataclass(frozen=True)
class RotatedCheckpoint(Checkpoint):
    """A checkpoint whose tensors are rotated as they are loaded. A head that is tied to the embedding is stored
    apart, since the last norm's factors go into it."""

    seed: int = 0
    block: int | None = None
    online: bool = False
    _factors: dict[str, torch.Tensor] = field(default_factory=dict)

    @classmethod
    def of(
        cls, checkpoint: Checkpoint, seed: int = 0, block: int | None = None, online: bool = False
    ) -> "RotatedCheckpoint":
        """Raises ModelError for architectures that are not of Llama's kind, and for heads that R3 cannot turn."""
        message = f"{checkpoint.folder}: architecture {{kind}} cannot be rotated; {{known}} can"
        architecture_of(checkpoint.config, message, experts=False)
        files = dict(checkpoint.files)
        files.setdefault(_HEAD, files[_EMBEDDING])
        rotated = cls(checkpoint.folder, files, seed, block, online)
        if online:
            _ = rotated.transforms
        return rotated

    @cached_property
    def config(self) -> dict[str, Any]:
        return {**Checkpoint(self.folder, self.files).config, "tie_word_embeddings": False}

    @cached_property
    def stream(self) -> torch.Tensor:
        """R1, float64 [H, H]."""
        return rotation(self.info(_EMBEDDING).shape[1], self.seed, self.block)

    @cached_property
    def values(self) -> torch.Tensor:
        """R2, float64 [head size, head size]."""
        return rotation(head_size(self.config), self.seed + 1)

    def turns(self, module: str) -> int:
        return self.transforms["R4"] if self.online and module.endswith(_DOWN) else 1

    @cached_property
    def transforms(self) -> dict[str, int]:
        """Inputs of a Hadamard's block of the rotations at run time, R3 and R4: powers of two. Raises ModelError where
        there are none."""
        size, inputs = head_size(self.config), int(self.config["intermediate_size"])
        if size & (size - 1):
            raise ModelError(f"heads of {size} dimensions cannot be rotated at run time, only those of a power of two")
        whole = inputs & -inputs
        block = whole if self.block is None else min(whole, self.block & -self.block)
        if block == 1:
            raise ModelError(f"{inputs} inputs of {_DOWN} cannot be rotated at run time in equal blocks")
        return {"R3": size, "R4": block}

    def info(self, name: str) -> Tensor:
        return self.files[name].by_name[self._stored(name)]

    def _stored(self, name: str) -> str:
        return name if name in self.files[name].by_name else _EMBEDDING

    def load(
        self, names: Iterable[str], device: torch.device | str = "cpu", strict: bool = True
    ) -> dict[str, torch.Tensor]:
        tensors = {}
        for name in names:
            stored = self._stored(name)
            tensor = super().load([stored], device, strict)[stored]
            if tensor.is_floating_point():
                tensor = self._rotated(name, tensor.double()).to(tensor.dtype).contiguous()
            tensors[name] = tensor
        return tensors

    def _rotated(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        r1 = self.stream.to(tensor.device)
        if name == _EMBEDDING:
            return tensor @ r1
        if name == _HEAD:
            return (tensor * self._norm(_NORM, tensor)) @ r1
        if name == _NORM or name.endswith("layernorm.weight"):
            return torch.ones_like(tensor)
        module, _, leaf = name.rpartition(".")
        block, path = ".".join(module.split(".")[:3]), ".".join(module.split(".")[3:])
        if path == "self_attn.v_proj":
            tensor = self._heads(tensor)
        if path in NORM_BEFORE and leaf == "weight":
            return (tensor * self._norm(f"{block}.{NORM_BEFORE[path]}.weight", tensor)) @ r1
        if path == "self_attn.o_proj" and leaf == "weight":
            tensor = self._heads(tensor.T).T
        if (most := self.turns(module)) > 1 and leaf == "weight":
            tensor = turned(tensor, most)
        return r1.T @ tensor if path in _OUT else tensor

    def _heads(self, rows: torch.Tensor) -> torch.Tensor:
        """Rotate the rows [heads * size, ...] (or a bias) of each head."""
        r2 = self.values.to(rows.device)
        return (r2.T @ rows.reshape(-1, len(r2), rows[0].numel())).reshape(rows.shape)

    def _norm(self, name: str, like: torch.Tensor) -> torch.Tensor:
        if name not in self._factors:
            self._factors[name] = Checkpoint.load(self, [name])[name].double()
        return self._factors[name].to(like.device)


_KEY = "transform_config"
_ONLINE = ("input", "output", "k_cache", "q_attn")
_APPLIED = {
    "R3": [("re:.*self_attn$", "q_attn"), ("re:.*self_attn$", "k_cache")],
    "R4": [("re:.*mlp\\.down_proj$", "input")],
}


def transform_config(transforms: Mapping[str, int]) -> dict[str, Any]:
    """transforms: inputs of a Hadamard's block, by "R3" and "R4"."""
    groups = {
        name: {
            "type": "hadamard",
            "apply": [
                {"targets": [target], "location": place, "inverse": False, "ignore": []}
                for target, place in _APPLIED[name]
            ],
            "randomize": False,
            "requires_grad": False,
            "head_dim": size,
            "precision": "torch.float32",
        }
        for name, size in transforms.items()
    }
    return {_KEY: {"config_groups": groups}}


def online(config: Mapping[str, Any]) -> dict[str, Any]:
    """Of a `quantization_config`, the transforms that run with the network, by name; those of weights are in the
    weights. Raises FormatError where it is no description of transforms."""
    found = {}
    with understood("the transform_config of compressed-tensors"):
        described = config.get(_KEY) or {}
        for name, scheme in dict(described.get("config_groups") or {}).items():
            if applied := [one for one in scheme["apply"] if one["location"] in _ONLINE]:
                found[str(name)] = {**scheme, "apply": applied}
    return found


def check_still(config: Mapping[str, Any], folder: Path | str) -> None:
    """Raises FormatError where weights alone are not the network, since it turns what they are multiplied with. config:
    the `quantization_config` of the folder."""
    if names := list(online(config)):
        raise FormatError(
            f"{folder}: what its weights are given is rotated at run time ({printable(', '.join(names))}), by "
            "transformers with the package compressed-tensors: other readers cannot"
        )
