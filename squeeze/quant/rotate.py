"""Rotations of a Llama-type network, which spread large weights and activations over many channels; the function stays.

QuaRot (Ashkboos et al. 2024, arXiv 2404.00456). R1 rotates the residual stream (the embedding, every input of a block's
matrices, every output), R2 the values of each attention head. The weights of RMSNorm go into the matrices after it.
`online` adds two rotations at run time. R4 rotates the inputs of down_proj, whose weight is rotated to match. R3
rotates queries and keys after their rotary positions, which changes no weight. R1 in blocks of 16 or 32 is what MR-GPTQ
(2025, arXiv 2509.23202) uses for FP4, whose groups are that small.

Run-time rotations are described as compressed-tensors does, in a `transform_config`: by Sylvester's Hadamard matrix in
blocks, in float32. vLLM runs those of linear layers.
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
from squeeze.numerics.hadamard import hadamard, rotate_blocks
from squeeze.quant.formats.common import understood

__all__ = ["RotatedCheckpoint", "check_still", "online", "rotation", "transform_config"]

_EMBEDDING, _HEAD, _NORM = (f"{name}.weight" for name in (EMBEDDING, HEAD, LAST_NORM))
_DOWN = "mlp.down_proj"
_OUT = ("self_attn.o_proj", _DOWN)


def rotation(n: int, seed: int, block: int | None = None) -> torch.Tensor:
    """Return an orthogonal matrix [n, n] in float64: a Hadamard matrix with random signs, or a random orthogonal
    matrix.

    Args:
        n: size.
        seed: of the random numbers.
        block: size of the blocks of a block-diagonal matrix; None for one block. If no Hadamard matrix of that size is
            known, the matrix is random.

    Raises:
        ModelError: n is not a multiple of the block size.
    """
    size = block or n
    if n % size:
        raise ModelError(f"expected a rotation block that divides {n} dimensions, got {size}")
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
    """A checkpoint whose tensors are rotated as they are loaded.

    An output head that is tied to the embedding is stored separately, since the last norm's weights go into it.
    """

    seed: int = 0
    block: int | None = None
    online: bool = False
    _factors: dict[str, torch.Tensor] = field(default_factory=dict)

    @classmethod
    def of(
        cls, checkpoint: Checkpoint, seed: int = 0, block: int | None = None, online: bool = False
    ) -> "RotatedCheckpoint":
        """Return a rotated view of a checkpoint.

        Args:
            checkpoint: the original.
            seed: of the random signs.
            block: block size of R1; None for one block.
            online: add the rotations at run time, R3 and R4.

        Raises:
            ModelError: the architecture does not have Llama's names, or R3 and R4 do not fit it.
        """
        message = f"{checkpoint.folder}: architecture {{kind}} cannot be rotated; {{known}} can"
        architecture_of(checkpoint.config, message, experts=False)
        files = dict(checkpoint.files)
        if _EMBEDDING not in files:
            raise ModelError(
                f"{checkpoint.folder}: has no {_EMBEDDING}, as a causal language model that is rotated has"
            )
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
        """The rotation R1, float64 [H, H]."""
        return rotation(self.info(_EMBEDDING).shape[1], self.seed, self.block)

    @cached_property
    def values(self) -> torch.Tensor:
        """The rotation R2, float64 [head size, head size]."""
        return rotation(head_size(self.config), self.seed + 1)

    def hadamard_size(self, module: str) -> int:
        return self.transforms["R4"] if self.online and module.endswith(_DOWN) else 1

    @cached_property
    def transforms(self) -> dict[str, int]:
        """The Hadamard block sizes of R3 and R4, powers of two. Raises ModelError if the network's sizes do not
        allow them."""
        size, inputs = head_size(self.config), int(self.config["intermediate_size"])
        if size & (size - 1):
            raise ModelError(f"expected a head size that is a power of two, to rotate at run time, got {size}")
        whole = inputs & -inputs
        block = whole if self.block is None else min(whole, self.block & -self.block)
        if block == 1:
            raise ModelError(f"expected an even number of inputs of {_DOWN}, to rotate at run time, got {inputs}")
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
        if (most := self.hadamard_size(module)) > 1 and leaf == "weight":
            tensor = rotate_blocks(tensor, most)
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
    """Return a `transform_config` for Hadamard block sizes by "R3" and "R4"."""
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
    """Return the run-time transforms of a `quantization_config` by name; those of weights are in the weights.

    Raises FormatError if the description is invalid.
    """
    found = {}
    with understood("the transform_config of compressed-tensors"):
        described = config.get(_KEY) or {}
        for name, scheme in dict(described.get("config_groups") or {}).items():
            if applied := [one for one in scheme["apply"] if one["location"] in _ONLINE]:
                found[str(name)] = {**scheme, "apply": applied}
    return found


def check_still(config: Mapping[str, Any], folder: Path | str) -> None:
    """Raise FormatError if a `quantization_config` rotates activations at run time, so that weights alone are not the
    network."""
    if names := list(online(config)):
        raise FormatError(
            f"{folder}: what its weights are given is rotated at run time ({printable(', '.join(names))}), by "
            "transformers with the package compressed-tensors: other readers cannot"
        )
