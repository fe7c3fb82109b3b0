"""Mixtures of experts of compressed-tensors in transformers, by our own reader: transformers merges experts of few
schemes, forgets a scale of NVFP4, and rounds no inputs of experts.

Weights are made dense in a scratch folder, from which transformers loads them as those of any model. Then modules are
what quantised.load makes of them.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn
from transformers.core_model_loading import WeightConverter, WeightTransform

from squeeze.checkpoint import safetensors as tensorfile
from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.engine.experts import is_expert
from squeeze.integrations import quantised
from squeeze.integrations.fused_experts import converters
from squeeze.integrations.restoring import restored, scratch_folder
from squeeze.packing.manifest import MANIFEST
from squeeze.quant.sources import floats

__all__ = ["Mixture"]

_SHARD = 1 << 30  # bytes of a scratch file


class Mixture:
    """A folder that is being loaded. names: of its tensors as they are when they are dense."""

    def __init__(self, folder: Path) -> None:
        self._scratch = ExitStack()
        self._close = weakref.finalize(self, self._scratch.close)  # also where loading ends in an error
        packed = (folder / MANIFEST).is_file()
        self.folder = self._scratch.enter_context(restored(folder)) if packed else folder
        self.names: list[str] = []

    @classmethod
    def of(cls, files: Sequence[str]) -> Mixture | None:
        """Of the files that transformers is to load; None where they hold no quantised experts."""
        tables = (tensorfile.read(Path(file)).by_name for file in files if file.endswith(".safetensors"))
        found = any(is_expert(name) and name.endswith(".weight_scale") for table in tables for name in table)
        return cls(Path(files[0]).parent) if found else None

    def dense(self) -> list[str]:
        """Files of dense weights in the place of those."""
        scratch = self._scratch.enter_context(scratch_folder())
        files: list[str] = []
        with torch.device("cpu"):  # transformers makes empty models meanwhile
            source = floats(Checkpoint.open(self.folder))
            self.names = list(source.files)
            for number, tensors in enumerate(_batches(source)):
                files.append(str(scratch / f"{number}.safetensors"))
                save_file(tensors, files[-1], {"format": "pt"})
        return files

    def converters(self, model: nn.Module, conversions: Sequence[WeightTransform]) -> list[WeightConverter]:
        """Those that transformers lacks for the files of `dense`."""
        return converters(model, self.names, conversions)

    def place(self, model: nn.Module, *, dense: bool) -> None:
        """Let a model that has loaded those files compute as the folder says, unless it is to stay dense."""
        if not dense:
            quantised.place(model, self.folder)
        self._close()


def _batches(source: Checkpoint) -> Iterator[dict[str, torch.Tensor]]:
    batch: dict[str, torch.Tensor] = {}
    for name in source.files:
        batch |= {name: tensor.contiguous() for name, tensor in source.load([name], strict=False).items()}
        if sum(tensor.nbytes for tensor in batch.values()) >= _SHARD:
            yield batch
            batch = {}
    if batch:
        yield batch
