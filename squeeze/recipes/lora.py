"""`squeeze.delta` with the format peft: a fine-tune stored as a LoRA adapter of its base.

factor/lora.py has the method. peft and vLLM load what is written: adapter_config.json and
adapter_model.safetensors (Hu et al. 2021, arXiv 2106.09685). Factors on grids are written as the floats that they
represent, so that these load them, too; `pack` stores their codes and scales.
"""

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from squeeze.checkpoint.checkpoint import Checkpoint, disk_errors
from squeeze.checkpoint.lora_folder import ADAPTER, CONFIG, LEAVES, PREFIX
from squeeze.engine.network import Network, is_linear
from squeeze.engine.report import Report
from squeeze.engine.writing import Writer
from squeeze.factor.form import as_dense
from squeeze.factor.lora import LoraTensor
from squeeze.packing import folder as folders
from squeeze.prune.delta.base import BaseWeights
from squeeze.system.work import scratch_folder

__all__ = ["make_writer", "write_adapter"]


def make_writer(dtype: torch.dtype, bits: int | None = None) -> Writer:
    """Return a writer of the factors as peft names them, without the prefix.

    Args:
        dtype: Dtype of the factors.
        bits: Bits per value of factors on grids, whose codes and scales the report then counts.
    """

    def tensors(module: str, tensor: LoraTensor, transposed: bool) -> dict[str, torch.Tensor]:
        parts = tensor.factors.right, tensor.factors.left
        return {f"{module}.{leaf}": as_dense(one, dtype).contiguous() for leaf, one in zip(LEAVES, parts, strict=True)}

    return Writer("peft", tensors, lambda left: {}, measured=bits is None)


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
    names = [name for name in checkpoint.files if name.endswith(LEAVES)]
    others = [name for name in checkpoint.files if name not in names]
    changed = [name for name in others if not torch.equal(checkpoint.load([name], strict=False)[name], base.load(name))]
    if changed:
        which = f"{changed[0]} and {len(changed) - 1} more" if len(changed) > 1 else changed[0]
        report.notes.append(f"the adapter does not hold {which}, which differ from the base's")
    places = {network.stored_name(name): name for name, module in network.model.named_modules() if is_linear(module)}
    if (bits := report.settings.get("bits")) is not None:
        coded = sum(round(layer.bits * layer.shape[0] * layer.shape[1] / 8) for layer in report.layers)
        report.notes.append(f"factors are on grids of {bits} bits: `squeeze pack` stores them in about {coded} bytes")
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
                f"{PREFIX}{places[layer.name]}.{leaf}": checkpoint.load([name])[name]
                for layer in report.layers
                for leaf, name in ((leaf, f"{layer.name}.{leaf}") for leaf in LEAVES)
            }
            save_file(tensors, content / ADAPTER, {"format": "pt"})
        (content / CONFIG).write_text(json.dumps(config, indent=2) + "\n")
        report.target, report.stored_bytes = str(out), (content / ADAPTER).stat().st_size
        report.parts, report.outer = {}, {}  # of the folder that is deleted
        report.write(content)
        folders.move_into_place(content, out, overwrite)
    shutil.rmtree(written)
