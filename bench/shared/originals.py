"""The models that benchmarks make smaller, as folders in bf16.

The bundled SmolLM2-135M comes in 4 bits, so that its weights lie on a grid, which a method can find again. With the
adapter of levels 7 to 9 added, they lie on none.
"""

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from squeeze.lm import adapter, models
from squeeze.lm.sources import INNER, OUTER
from squeeze.recipes.import_gguf import import_gguf


def named(row: str, adapted: bool) -> str:
    """The name of a row of one of the models."""
    return row + "-adapted" * adapted


def folder_of(work: Path, adapted: bool) -> Path:
    """Where in WORK all is kept that is made of one of the models."""
    return work / "adapted" if adapted else work


def original(work: Path, adapted: bool) -> Path:
    """The folder of one of the models, which is made if it is not there."""
    folder = folder_of(work, adapted) / "original"
    if not folder.is_dir():
        source = models.bundled_path()
        if source is None:
            raise SystemExit(f"Error: the bundled model is not installed: {models.HELP}")
        folder.parent.mkdir(exist_ok=True, parents=True)
        import_gguf(source, folder)
        if adapted:
            _adapt(folder / "model.safetensors")
    return folder


def _adapt(path: Path) -> None:
    added, tensors = adapter.load(models.BUNDLED_ADAPTER), load_file(path)
    for name, change in added.changes.items():
        weight = tensors[_stored(name)]
        tensors[_stored(name)] = (weight.float() + torch.from_numpy(change.rows(0, len(weight)))).to(weight.dtype)
    for name, norm in added.norms.items():
        tensors[_stored(name)] = torch.tensor(norm).to(tensors[_stored(name)].dtype)
    save_file(tensors, path, {"format": "pt"})


def _stored(name: str) -> str:
    """The checkpoint's name of what an adapter calls 0.query or final_norm."""
    layer, _, part = name.rpartition(".")
    return f"model.layers.{layer}.{INNER[part][0]}" if layer else OUTER[part][0]
