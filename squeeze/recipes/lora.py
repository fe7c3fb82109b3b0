"""`squeeze.delta` with the format peft: a fine-tune stored as a LoRA adapter of its base.

The difference D of each matrix becomes B A of a given rank, with the least error of D x over calibration inputs x. That
is the truncated SVD of D S with S S^T = H (SVD-LLM, Wang et al. 2024, arXiv 2403.07378). peft and vLLM load what is
written: adapter_config.json and adapter_model.safetensors (LoRA, Hu et al. 2021, arXiv 2106.09685).
"""

import json
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, cast

import torch
from safetensors.torch import save_file

from squeeze.checkpoint.checkpoint import Checkpoint, disk_errors
from squeeze.engine.method import Method, Result
from squeeze.engine.network import Network, is_linear
from squeeze.engine.pipeline import Writer
from squeeze.engine.report import Report
from squeeze.factor.lowrank import SVD, WhitenedSVD
from squeeze.factor.matrices import LowRank
from squeeze.packing import folder as folders
from squeeze.prune.delta.base import BaseWeights
from squeeze.system.work import scratch_folder

__all__ = ["ADAPTER", "CONFIG", "LoraMethod", "make_writer", "write_adapter"]

ADAPTER, CONFIG = "adapter_model.safetensors", "adapter_config.json"
_PREFIX = "base_model.model."  # of all names of an adapter's tensors
_LEAVES = ("lora_A.weight", "lora_B.weight")


@dataclass(frozen=True)
class LoraTensor:
    """A base [O, I] of floats, and the factors B [O, R] and A [R, I] whose product is added to it."""

    base: torch.Tensor
    factors: LowRank

    @property
    def rank(self) -> int | None:
        return self.factors.rank

    def dequantize(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Return the sum [O, I], rounded once to `dtype`."""
        return (self.base.float() + self.factors.dequantize()).to(dtype)

    @property
    def stored_bits(self) -> int:
        """The bits of the factors."""
        return self.factors.stored_bits


@dataclass(frozen=True, kw_only=True)
class LoraMethod:
    """Store a fine-tune's matrix as a product of low rank that is added to its base.

    Attributes:
        inner: the method that factorises the difference.
        load: returns the base's matrix [O, I].
    """

    name: ClassVar[str] = "lora"
    needs_hessian: ClassVar[bool] = True
    unrounded: ClassVar[bool] = True

    inner: Method
    load: Callable[[], torch.Tensor] = field(repr=False, compare=False)

    @classmethod
    def of_rank(cls, rank: int, load: Callable[[], torch.Tensor]) -> "LoraMethod":
        return cls(inner=WhitenedSVD(rank=rank, pivoted=False), load=load)

    def fallback(self) -> "LoraMethod":
        return replace(self, inner=self.inner.fallback() if isinstance(self.inner, WhitenedSVD) else SVD(pivoted=False))

    def compress(self, weight: torch.Tensor, hessian: torch.Tensor | None = None) -> Result[LoraTensor]:
        """Factorise the difference of a weight; see Method.compress."""
        base = self.load()
        found = self.inner.compress(weight.float() - base.float(), hessian)
        return Result(LoraTensor(base, found.tensor), found.notes)


def make_writer(dtype: torch.dtype) -> Writer:
    """Return a writer of the factors as peft names them, without the prefix."""

    def tensors(module: str, tensor: LoraTensor, transposed: bool) -> dict[str, torch.Tensor]:
        parts = cast("tuple[torch.Tensor, torch.Tensor]", (tensor.factors.right, tensor.factors.left))
        return {f"{module}.{leaf}": part.to(dtype).contiguous() for leaf, part in zip(_LEAVES, parts, strict=True)}

    return Writer("peft", tensors, lambda left: {}, measured=True)


def write_adapter(
    report: Report,
    written: Path,
    out: Path,
    base: BaseWeights,
    network: Network,
    transposed: Iterable[str],
    overwrite: bool,
) -> None:
    """Write the adapter of a folder of factors, and delete that folder.

    Args:
        report: The report, which gets the bytes of the adapter, and the tensors that it cannot hold.
        written: The folder with factors, and with all other tensors of the fine-tune.
        out: The adapter's folder.
        base: The base.
        network: The network, whose names of modules peft looks for.
        transposed: Modules that are stored transposed.
        overwrite: Whether an existing folder is replaced.
    """
    checkpoint = Checkpoint.open(written)
    names = [name for name in checkpoint.files if name.endswith(_LEAVES)]
    others = [name for name in checkpoint.files if name not in names]
    changed = [name for name in others if not torch.equal(checkpoint.load([name], strict=False)[name], base.load(name))]
    if changed:
        which = f"{changed[0]} and {len(changed) - 1} more" if len(changed) > 1 else changed[0]
        report.notes.append(f"the adapter does not hold {which}, which differ from the base's")
    places = {network.stored_name(name): name for name, module in network.model.named_modules() if is_linear(module)}
    task = "CAUSAL_LM" if network.is_causal else None
    config: dict[str, Any] = {
        **{"peft_type": "LORA", "task_type": task, "base_model_name_or_path": str(base.path)},
        **{"r": max(layer.rank or 0 for layer in report.layers), "bias": "none", "inference_mode": True},
        **{"target_modules": [places[layer.name] for layer in report.layers]},
        **{"fan_in_fan_out": bool(set(transposed)), "lora_dropout": 0.0},
    }
    config |= {"lora_alpha": config["r"]}
    ranks = {places[layer.name]: layer.rank for layer in report.layers if layer.rank != config["r"]}
    config |= {"rank_pattern": ranks, "alpha_pattern": ranks}
    with scratch_folder(out) as work:
        content = work / folders.CONTENT
        content.mkdir()
        with disk_errors(content / ADAPTER):
            tensors = {
                f"{_PREFIX}{places[layer.name]}.{leaf}": checkpoint.load([name])[name]
                for layer in report.layers
                for leaf, name in ((leaf, f"{layer.name}.{leaf}") for leaf in _LEAVES)
            }
            save_file(tensors, content / ADAPTER, {"format": "pt"})
        (content / CONFIG).write_text(json.dumps(config, indent=2) + "\n")
        report.target, report.stored_bytes = str(out), (content / ADAPTER).stat().st_size
        report.parts, report.outer = {}, {}  # of the folder that is deleted
        report.write(content)
        folders.move_into_place(content, out, overwrite)
    shutil.rmtree(written)
