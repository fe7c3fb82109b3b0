"""Sparse folders with every zero written out, which any loader reads: our own, and two kinds of compressed-tensors.

The latter are sparse-24-bitmask and marlin-24, which compressed-tensors wrote and no longer decompresses (legacy.py).
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from squeeze.errors import FormatError
from squeeze.model.checkpoint import Checkpoint, Parts, copy_other_files
from squeeze.model.report import NAME as REPORT
from squeeze.model.work import stamps
from squeeze.packing import folder
from squeeze.prune import legacy
from squeeze.prune.sparse24 import LEAVES, METHOD, SparseFormat
from squeeze.prune.tensor import SparseTensor
from squeeze.work import work_folder

__all__ = ["expand"]

_BITMASK = ("compressed", "bitmask", "shape")
_MARLIN = ("weight_packed", "meta", "scale_packed")
_CONFIGS = ("quantization_config", "compression_config", "sparsity_config")
_STORES_TRANSPOSED = ("gpt2",)  # whose linear modules are Conv1D


def expand(source: Path | str, target: Path | str, overwrite: bool = False) -> int:
    """Write a sparse folder as one of dense weights; the bytes of its tensors.

    Raises FormatError where there is nothing sparse in the source or it is damaged; then nothing is written.
    """
    source, target = Path(source), Path(target)
    checkpoint = Checkpoint.open(source)
    modules = _modules(checkpoint.files)
    if not modules:
        raise FormatError(f"{source}: has no sparse weights")
    config = dict(checkpoint.config)
    described = [config.pop(key) for key in _CONFIGS if key in config]
    dtype = getattr(torch, str(_dtype(described, config)), torch.bfloat16)
    bits = _bits(described)
    folder.check_target(source, target, overwrite)
    with work_folder(target, "expanding", {"source": stamps(source)}, False) as work:
        parts, made = Parts(work), work / folder.CONTENT
        made.mkdir()
        taken = {f"{module}.{leaf}" for module, leaves in modules.items() for leaf in leaves}
        rest = [name for name in checkpoint.files if name not in taken]
        for number, name in enumerate(rest):
            parts.put(f"rest.{number}", checkpoint.load([name], strict=False))
        for number, (module, leaves) in enumerate(modules.items()):
            tensors = checkpoint.load((f"{module}.{leaf}" for leaf in leaves), strict=False)
            weight = _weight(module, tensors, bits).dequantize(dtype)
            transposed = "sparse_grid" in leaves and config.get("model_type") in _STORES_TRANSPOSED
            parts.put(f"sparse.{number}", {f"{module}.weight": weight.T if transposed else weight})
        order = [*(f"rest.{i}" for i in range(len(rest))), *(f"sparse.{i}" for i in range(len(modules)))]
        size = parts.join(order, made)
        copy_other_files(source, made)
        (made / REPORT).unlink(missing_ok=True)
        (made / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        folder.move_into_place(made, target, overwrite)
    return size


def _modules(names: Iterable[str]) -> dict[str, list[str]]:
    """The leaves of every sparse module, by its name."""
    found: dict[str, list[str]] = {}
    for name in names:
        module, _, leaf = name.rpartition(".")
        if leaf in (*LEAVES, *_BITMASK, *_MARLIN):
            found.setdefault(module, []).append(leaf)
    marks = ("sparse_mask", "bitmask", "meta")
    return {module: leaves for module, leaves in found.items() if any(mark in leaves for mark in marks)}


def _weight(module: str, tensors: dict[str, torch.Tensor], bits: int) -> SparseTensor:
    if f"{module}.sparse_mask" in tensors:
        return SparseFormat().weight(module, tensors)
    if f"{module}.bitmask" in tensors:
        return legacy.bitmask(module, tensors)
    return legacy.marlin(module, tensors, bits)


def _dtype(described: list[Any], config: dict[str, Any]) -> str:
    own = next((one["dtype"] for one in described if one.get("quant_method") == METHOD and "dtype" in one), None)
    return str(own or config.get("dtype") or config.get("torch_dtype") or "bfloat16")


def _bits(described: list[Any]) -> int:
    """Of marlin-24's codes, by the first config group."""
    for one in described:
        for group in (one.get("config_groups") or {}).values():
            return int((group.get("weights") or {}).get("num_bits", 4))
    return 4
