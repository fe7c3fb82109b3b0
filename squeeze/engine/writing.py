"""Write the results of the pipeline: the tensors of finished blocks, and at the end the folder with everything else."""

import json
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import nn

from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.checkpoint.config_json import guarded
from squeeze.checkpoint.diffusion import is_diffusion
from squeeze.checkpoint.other_files import copy_other_files
from squeeze.checkpoint.parts import Parts
from squeeze.checkpoint.weight_files import stem_of
from squeeze.engine.block import BlockJob, CompressedMatrix
from squeeze.engine.method import Method
from squeeze.engine.network import Network, weight_of
from squeeze.engine.outer import embedding_of, head_of, is_tied
from squeeze.engine.report import Layer, Report
from squeeze.engine.selection import by_both_names, excluded_outside
from squeeze.packing import folder
from squeeze.system.documents import parse

__all__ = [
    "CheckpointJob",
    "Writer",
    "compressed_values",
    "finish",
    "keep_compressed",
    "outer_part",
    "read_layers",
    "store_block",
    "store_outer",
]

_VALUES = "values"  # in the name of the part with a block's compressed weights


@dataclass(frozen=True)
class Writer:
    """A format as the pipeline uses it: functions that return what is stored.

    Attributes:
        name: of the format.
        tensors: tensors(name, tensor, transposed) returns what the checkpoint stores of a module's weight.
        config: config(left) returns entries for config.json, given the modules that stay dense.
        measured: whether the report's bits are those of what was written, instead of what a matrix says of itself.
        biases: whether biases may change; a format that stores only matrices keeps them.
    """

    name: str
    tensors: Callable[[str, Any, bool], dict[str, torch.Tensor]]
    config: Callable[[list[str]], dict[str, Any]]
    measured: bool = False
    biases: bool = False


@dataclass(frozen=True, kw_only=True)
class CheckpointJob(BlockJob):
    """A job over a whole checkpoint: its writer, its ignored modules, notes by module, methods of matrices outside the
    blocks, and the modules left with reasons."""

    writer: Writer
    ignore: tuple[str, ...]
    remarks: Mapping[str, str]
    outer: Mapping[str, Method] = field(default_factory=dict)
    excluded: dict[str, str] = field(default_factory=dict)


def keep_compressed(job: CheckpointJob, name: str, leaves: list[str]) -> None:
    """Write the values of a block's compressed weights, which the stacks after it see."""
    values: dict[str, torch.Tensor] = {}
    for leaf in leaves:
        weight: torch.Tensor = job.network.module(f"{name}.{leaf}").weight  # type: ignore[assignment]
        matrix = job.matrix(name, leaf)
        values[f"{name}.{leaf}.weight"] = weight.data.to(matrix.dtype)
        if matrix.bias is not None:
            values[f"{name}.{leaf}.bias"] = job.network.module(name).get_parameter(f"{leaf}.bias").data.to(matrix.bias)
    Parts(job.work).put(f"{name}.{_VALUES}", values)


def compressed_values(work: Path, name: str) -> dict[str, torch.Tensor]:
    """Return the values of a block's compressed weights, or nothing if it is not compressed yet."""
    parts = Parts(work)
    return parts.load(f"{name}.{_VALUES}") if parts.done(f"{name}.{_VALUES}") else {}


def store_block(job: CheckpointJob, parts: Parts, name: str, done: Mapping[str, CompressedMatrix]) -> list[Layer]:
    """Write a block's tensors, and return its layers for the report."""
    network = job.network
    full = {f"{name}.{leaf}": compressed for leaf, compressed in done.items()}
    layers, tensors = _written(job, full)
    replaced = {network.sources[f"{module}.weight"] for module in full}
    replaced |= {network.sources[f"{module}.bias"] for module, one in full.items() if one.bias is not None}
    tensors |= network.load_stored(s for s in network.tensors_of(name).values() if s not in replaced)
    tensors |= network.load_stored(_unnamed(network, name))
    network.restore(tensors)
    network.release(name)
    (job.work / f"{name}.json").write_text(json.dumps([layer.as_json() for layer in layers]))
    parts.put(name, tensors)
    return layers


def _written(job: CheckpointJob, done: Mapping[str, CompressedMatrix]) -> tuple[list[Layer], dict[str, torch.Tensor]]:
    """Return the layers of matrices for the report, and their stored tensors; `done` is by the network's name."""
    network = job.network
    tensors: dict[str, torch.Tensor] = {}
    layers = []
    for full, compressed in done.items():
        transposed = not isinstance(network.module(full), nn.Linear | nn.Embedding)
        written = job.writer.tensors(network.stored_name(full), compressed.result.tensor, transposed)
        layer = compressed.layer
        if job.writer.measured:
            layer = replace(layer, bits=8 * sum(tensor.nbytes for tensor in written.values()) / prod(layer.shape))
        if layer.name in job.remarks:
            layer = replace(layer, notes=(*layer.notes, job.remarks[layer.name]))
        layers.append(layer)
        tensors |= written
        if compressed.bias is not None:
            tensors[network.sources[f"{full}.bias"]] = compressed.bias.contiguous()
    return layers, tensors


def outer_part(stored: str) -> str:
    """Return the name of the part of a matrix outside the blocks."""
    return f"outer.{stored}"


def store_outer(job: CheckpointJob, parts: Parts, done: Mapping[str, CompressedMatrix]) -> list[Layer]:
    """Write the tensors of matrices outside the blocks, and return their layers for the report."""
    layers, tensors = _written(job, done)
    for layer in layers:
        (job.work / f"{outer_part(layer.name)}.json").write_text(json.dumps([layer.as_json()]))
        parts.put(outer_part(layer.name), tensors)
    return layers


def _unnamed(network: Network, name: str) -> list[str]:
    """Return tensors of a block that no single parameter corresponds to: old buffers, fused experts that stay fused."""
    known = set(network.sources.values())
    return [source for source in network.checkpoint.files if source.startswith(f"{name}.") and source not in known]


def read_layers(work: Path, name: str) -> list[Layer]:
    return [Layer.from_json(one) for one in parse((work / f"{name}.json").read_bytes(), schema=[{...: object}])]


def finish(job: CheckpointJob, report: Report, source: Path, started: float) -> None:
    """Join the blocks with the other tensors, and write the remaining files."""
    network, parts = job.network, Parts(job.work)
    done = {
        name for block in network.blocks for name in [*network.tensors_of(block).values(), *_unnamed(network, block)]
    }
    outer = [network.stored_name(name) for name in job.outer]
    done |= {f"{network.stored_name(name)}.weight" for name in _outer_modules(job)}
    rest = [name for name in network.checkpoint.files if name not in done]
    for number, name in enumerate(rest):
        if not parts.done(f"rest.{number}"):
            parts.put(f"rest.{number}", network.load_stored([name]))
    job.excluded.update(excluded_outside(network, _outer_modules(job)))
    content = job.work / folder.CONTENT
    shutil.rmtree(content, ignore_errors=True)
    content.mkdir()
    names = [*(f"rest.{i}" for i in range(len(rest))), *map(outer_part, outer), *network.blocks]
    report.stored_bytes = parts.join(names, content, stem=stem_of(source))
    original = Checkpoint.open(source)
    report.raw_bytes = original.bytes_of(original.files)
    counted = network.checkpoint if original.config.get("quantization_config") else original
    report.parameters = sum(prod(counted.info(name).shape) for name in counted.files)
    report.notes += copy_other_files(source, content)
    config = {**network.checkpoint.config, **job.writer.config(by_both_names(network, job.excluded))}
    if described := config.get("quantization_config"):
        config["quantization_config"] = described if is_diffusion(config) else guarded(described)
    (content / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    report.parts = _by_module(Checkpoint.open(content))
    for module in filter(None, (embedding_of(network), head_of(network))):
        if size := report.parts.get(network.stored_name(module)):
            report.outer[network.stored_name(module)] = 8 * size / weight_of(network.module(module)).numel()
    report.seconds = round(time.perf_counter() - started, 3)
    report.write(content)


def _outer_modules(job: CheckpointJob) -> list[str]:
    """Return the compressed matrices outside the blocks by the network's name, the head of a compressed embedding that
    it is tied to included."""
    tied = embedding_of(job.network) in job.outer and is_tied(job.network)
    return [*job.outer, *([head_of(job.network) or ""] if tied else [])]


def _by_module(checkpoint: Checkpoint) -> dict[str, int]:
    """Return the bytes of the tensors of each module."""
    sizes: dict[str, int] = {}
    for name in checkpoint.files:
        module = name.rpartition(".")[0] or name
        sizes[module] = sizes.get(module, 0) + checkpoint.info(name).size
    return sizes
