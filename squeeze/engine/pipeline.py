"""The main path of compressing a checkpoint: block by block, calibrate, compress, write. Read this first.

A block's inputs come from the compressed blocks before it; block.py does what happens inside a block. One block is in
memory. Hidden states and finished blocks are in files, so that a stopped run continues. A method compresses a matrix; a
format stores it.
"""

import json
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
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
from squeeze.engine.block import BlockJob, CompressedMatrix, calibrated_block, plain_block
from squeeze.engine.calibration import spacing
from squeeze.engine.inputs import Inputs
from squeeze.engine.method import Method
from squeeze.engine.network import Call, Network, weight_of
from squeeze.engine.outer import compressed_embedding, compressed_head, embedding_of, head_of, is_tied
from squeeze.engine.report import Layer, Report
from squeeze.engine.selection import by_both_names, excluded_outside, plan
from squeeze.engine.sharding import LocalWorkers, Shard, Workers, shards_of
from squeeze.packing import folder
from squeeze.system.documents import parse
from squeeze.system.unchanged import digest, stamps
from squeeze.system.work import discards, work_folder
from squeeze.version import __version__

__all__ = ["WORK", "Compression", "Progress", "Writer"]

_VALUES = "values"  # in the name of the part with a block's compressed weights
WORK = "compressing"  # in the name of the folder of a run

Progress = Callable[[str, int, int], None]  # block in progress, blocks done, number of blocks


@dataclass(frozen=True)
class Writer:
    """A format as the pipeline uses it: functions that return what is stored.

    Attributes:
        name: of the format.
        tensors: tensors(name, tensor, transposed) returns what the checkpoint stores of a module's weight.
        config: config(left) returns entries for config.json, given the modules that stay dense.
        measured: whether the report's bits are those of what was written, instead of what a matrix says of itself.
    """

    name: str
    tensors: Callable[[str, Any, bool], dict[str, torch.Tensor]]
    config: Callable[[list[str]], dict[str, Any]]
    measured: bool = False


@dataclass(frozen=True, kw_only=True)
class _CheckpointJob(BlockJob):
    """A job over a whole checkpoint: its writer, its ignored modules, notes by module, methods of matrices outside the
    blocks, and the modules left with reasons."""

    writer: Writer
    ignore: tuple[str, ...]
    remarks: Mapping[str, str]
    outer: Mapping[str, Method] = field(default_factory=dict)
    excluded: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Compression:
    """The compression of a checkpoint.

    Attributes:
        source: folder of the checkpoint.
        target: folder to write.
        method: the method of most matrices.
        writer: how results are stored.
        tokens: calibration sequences [N, L], or samples; None if no method needs any.
        methods: other methods, by a module's name in the checkpoint.
        outer: methods of the embedding and the output head, by the network's name; if they are one matrix, of the
            embedding.
        correction: strength of error propagation, 0 to 1: how far a matrix is moved towards the original's outputs,
            given the compressed network's inputs (QEP, Arai and Ichikawa 2025, arXiv 2504.09629).
        ignore: parts of the names of modules that stay dense.
        remarks: notes for the report, or reasons to stay dense, by a module's name in the checkpoint.
        bound: bound of a token's weight; see calibration.InputStatistics.
        settings, notes: for the report.
        resume, overwrite: what to do with an earlier run and with an existing target.
        device: where blocks run.
        checkpoint: read instead of `source`, for example one that is rotated.
        progress: called with progress.
        workers: gather statistics and compress matrices; the resulting bytes do not depend on them.
        check: raises SqueezeError if a written folder would not load; called before it is moved to `target`.
    """

    source: Path
    target: Path
    method: Method
    writer: Writer
    tokens: Inputs | None
    methods: Mapping[str, Method] = field(default_factory=dict)
    outer: Mapping[str, Method] = field(default_factory=dict)
    correction: float = 0.0
    ignore: tuple[str, ...] = ()
    remarks: Mapping[str, str] = field(default_factory=dict)
    bound: float | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    resume: bool = False
    overwrite: bool = False
    device: str = "cpu"
    checkpoint: Checkpoint | None = None
    progress: Progress | None = None
    workers: Workers = field(default_factory=LocalWorkers)
    check: Callable[[Path], None] | None = None

    def run(self) -> Report:
        """Compress every matrix in the checkpoint's blocks, and return the report.

        Raises SqueezeError for everything that a user can fix; then nothing is written.
        """
        started = time.perf_counter()
        folder.check_target(self.source, self.target, self.overwrite)
        network = Network(self.checkpoint or Checkpoint.open(self.source), self.device)
        if self.tokens is not None:
            network.check(self.tokens)
            network.settle(self.tokens)
        with work_folder(self.target, WORK, self._task(), discards(self.resume, self.overwrite)) as work:
            job = self._job(network, work.absolute())  # as other processes know it
            report = Report(str(self.source), str(self.target), self.method.name, self.writer.name, dict(self.settings))
            report.notes += [*self.notes, *network.remarks]
            for layers in _blocks(job, self.tokens, self.progress or (lambda what, done, total: None)):
                report.layers += layers
            report.left = job.excluded
            _finish(job, report, self.source, started)
            if self.check:
                self.check(work / folder.CONTENT)
            folder.move_into_place(work / folder.CONTENT, self.target, self.overwrite)
        return report

    def _task(self) -> dict[str, Any]:
        """Return everything that determines the result: a stopped run continues if it is equal."""
        return {
            "version": __version__,
            "source": stamps(self.source),
            "settings": dict(self.settings),
            "method": repr(self.method),
            "methods": {name: repr(value) for name, value in sorted(self.methods.items())},
            "outer": {name: repr(value) for name, value in sorted(self.outer.items())},
            "writer": self.writer.name,
            "correction": self.correction,
            "ignore": list(self.ignore),
            "bound": self.bound,
            "tokens": digest(self.tokens),
        }

    def _job(self, network: Network, work: Path) -> "_CheckpointJob":
        return _CheckpointJob(
            network=network,
            method=self.method,
            methods=self.methods,
            writer=self.writer,
            work=work,
            correction=self.correction,
            every=1 if self.tokens is None else spacing(_rows(network, self.tokens), _widest(network, self.ignore)),
            ignore=self.ignore,
            remarks=self.remarks,
            outer=self.outer,
            bound=self.bound,
            workers=self.workers,
        )


def _blocks(job: _CheckpointJob, tokens: Inputs | None, progress: Progress) -> Iterator[list[Layer]]:
    """Compress the embedding, each block that is not done yet, stack by stack, and the head, and yield layers for the
    report."""
    network, parts, total, done = job.network, Parts(job.work), len(job.network.blocks), 0
    network.compressed = partial(_compressed, job.work)
    if tokens is not None and not any(parts.done(name) for name in network.blocks):
        _write_originals(job, tokens, 0)
    yield _store_outer(job, parts, compressed_embedding(job, job.outer, tokens))
    for number in range(len(network.stacks)):
        yield from _stack(job, tokens, number, partial(_tell, progress, done, total))
        done += len(network.stacks[number])
    progress("", total, total)
    head = next((name for name in job.outer if name == head_of(network)), None)
    if head and parts.done(outer_part(network.stored_name(head))):
        yield _read_layers(job.work, outer_part(network.stored_name(head)))
    else:
        last = len(network.stacks) - 1
        shards = [] if tokens is None else _shards(job, tokens, last, len(network.stacks[last]))
        yield _store_outer(job, parts, compressed_head(job, job.outer, tokens, shards))


def _tell(progress: Progress, before: int, total: int, name: str, number: int) -> None:
    progress(name, before + number, total)


def _stack(
    job: _CheckpointJob, tokens: Inputs | None, stack: int, progress: Callable[[str, int], None]
) -> Iterator[list[Layer]]:
    """Compress the blocks of a stack."""
    network, parts = job.network, Parts(job.work)
    names, calls = network.stacks[stack], list[Call]()
    if tokens is not None:
        calls = network.calls(tokens, stack)
        if not any(parts.done(name) for name in names):
            if stack > 0:
                _write_originals(job, tokens, stack)
            _write_first(job, tokens, stack)
    for number, name in enumerate(names):
        selected, reasons = plan(network, name, job.ignore)
        job.excluded.update({module: job.remarks.get(module, reason) for module, reason in reasons.items()})
        if parts.done(name):
            yield _read_layers(job.work, name)
            continue
        progress(name, number)
        if tokens is not None:
            shards = _shards(job, tokens, stack, number)
            compressed = calibrated_block(job, name, selected, shards, calls[number])
        else:
            shards, compressed = [], plain_block(job, name, selected)
        if tokens is not None and stack + 1 < len(network.stacks):
            _keep_compressed(job, name, selected)
        layers = _store(job, parts, name, compressed)
        for shard in shards:
            for old in [shard.inputs, *([shard.original[0]] if shard.original else [])]:
                old.path.unlink(missing_ok=True)
        yield layers


def _keep_compressed(job: _CheckpointJob, name: str, leaves: list[str]) -> None:
    """Write the values of a block's compressed weights, which the stacks after it see."""
    values: dict[str, torch.Tensor] = {}
    for leaf in leaves:
        weight: torch.Tensor = job.network.module(f"{name}.{leaf}").weight  # type: ignore[assignment]
        values[f"{name}.{leaf}.weight"] = weight.data.to(job.matrix(name, leaf).dtype)
    Parts(job.work).put(f"{name}.{_VALUES}", values)


def _compressed(work: Path, name: str) -> dict[str, torch.Tensor]:
    """Return the values of a block's compressed weights, or nothing if it is not compressed yet."""
    parts = Parts(work)
    return parts.load(f"{name}.{_VALUES}") if parts.done(f"{name}.{_VALUES}") else {}


def _rows(network: Network, tokens: Inputs) -> int:
    """Return the rows that the calibration gives to most matrices of the smallest stack."""
    return len(tokens) * min(network.length(tokens, stack) for stack in range(len(network.stacks)))


def _widest(network: Network, ignore: Iterable[str]) -> int:
    """Return the most inputs of a matrix that is compressed."""
    names = [f"{block}.{leaf}" for block in network.blocks for leaf in plan(network, block, ignore)[0]]
    return max((weight_of(network.module(name)).shape[1] for name in names), default=1)


def _shards(job: _CheckpointJob, tokens: Inputs, stack: int, number: int) -> list[Shard]:
    """Return the shards of the calibration at a block of a stack."""
    before = sum(len(names) + 1 for names in job.network.stacks[:stack])
    shape = job.network.length(tokens, stack), job.network.width(tokens, stack)
    return shards_of(job.work, len(tokens), shape, before + number, job.correction > 0, job.every)


def _write_originals(job: _CheckpointJob, tokens: Inputs, stack: int) -> None:
    """Write the inputs of a stack's first block in the original network."""
    network, shards = job.network, _shards(job, tokens, stack, 0)
    if not job.correction:
        return
    with network.original(), closing(network.first_inputs(tokens[:: job.every], stack)) as sequences:
        for shard in shards:
            if shard.original:
                shard.original[0].write(islice(sequences, shard.original[0].count))


def _write_first(job: _CheckpointJob, tokens: Inputs, stack: int) -> None:
    """Write the inputs of a stack's first block, after what runs before it was compressed."""
    with closing(job.network.first_inputs(tokens, stack)) as sequences:
        for shard in _shards(job, tokens, stack, 0):
            shard.inputs.write(islice(sequences, shard.inputs.count))


def _store(job: _CheckpointJob, parts: Parts, name: str, done: Mapping[str, CompressedMatrix]) -> list[Layer]:
    """Write a block's tensors, and return its layers for the report."""
    network = job.network
    full = {f"{name}.{leaf}": compressed for leaf, compressed in done.items()}
    layers, tensors = _written(job, full)
    replaced = {network.sources[f"{module}.weight"] for module in full}
    tensors |= network.load_stored(s for s in network.tensors_of(name).values() if s not in replaced)
    tensors |= network.load_stored(_unnamed(network, name))
    network.restore(tensors)
    network.release(name)
    (job.work / f"{name}.json").write_text(json.dumps([layer.as_json() for layer in layers]))
    parts.put(name, tensors)
    return layers


def _written(job: _CheckpointJob, done: Mapping[str, CompressedMatrix]) -> tuple[list[Layer], dict[str, torch.Tensor]]:
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
    return layers, tensors


def outer_part(stored: str) -> str:
    """Return the name of the part of a matrix outside the blocks."""
    return f"outer.{stored}"


def _store_outer(job: _CheckpointJob, parts: Parts, done: Mapping[str, CompressedMatrix]) -> list[Layer]:
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


def _read_layers(work: Path, name: str) -> list[Layer]:
    return [Layer.from_json(one) for one in parse((work / f"{name}.json").read_bytes(), schema=[{...: object}])]


def _finish(job: _CheckpointJob, report: Report, source: Path, started: float) -> None:
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


def _outer_modules(job: _CheckpointJob) -> list[str]:
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
