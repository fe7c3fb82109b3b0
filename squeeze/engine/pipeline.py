"""The main path of compressing a checkpoint: block by block, calibrate, compress, write. Read this first.

A block's inputs come from the compressed blocks before it; block.py does what happens inside a block. One block is in
memory. Hidden states and finished blocks are in files, so that a stopped run continues. A method compresses a matrix; a
format stores it.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.checkpoint.parts import Parts
from squeeze.engine.block import calibrated_block, plain_block
from squeeze.engine.calibration import spacing
from squeeze.engine.inputs import Inputs
from squeeze.engine.method import Method
from squeeze.engine.network import Call, Network, weight_of
from squeeze.engine.outer import compressed_embedding, compressed_head, head_of
from squeeze.engine.report import Layer, Report
from squeeze.engine.selection import plan
from squeeze.engine.sharding import LocalWorkers, Shard, Workers, shards_of
from squeeze.engine.writing import (
    CheckpointJob,
    Writer,
    compressed_values,
    finish,
    keep_compressed,
    outer_part,
    read_layers,
    store_block,
    store_outer,
)
from squeeze.packing import folder
from squeeze.system.unchanged import digest, stamps
from squeeze.system.work import discards, work_folder
from squeeze.version import __version__

__all__ = ["WORK", "Compression", "Progress"]

WORK = "compressing"  # in the name of the folder of a run
Progress = Callable[[str, int, int], None]  # block in progress, blocks done, number of blocks


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
            finish(job, report, self.source, started)
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

    def _job(self, network: Network, work: Path) -> CheckpointJob:
        return CheckpointJob(
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
            biases=self.writer.biases,
            workers=self.workers,
        )


def _blocks(job: CheckpointJob, tokens: Inputs | None, progress: Progress) -> Iterator[list[Layer]]:
    """Compress the embedding, each block that is not done yet, stack by stack, and the head, and yield layers for the
    report."""
    network, parts, total, done = job.network, Parts(job.work), len(job.network.blocks), 0
    network.compressed = partial(compressed_values, job.work)
    if tokens is not None and not any(parts.done(name) for name in network.blocks):
        _write_originals(job, tokens, 0)
    yield store_outer(job, parts, compressed_embedding(job, job.outer, tokens))
    for number in range(len(network.stacks)):
        yield from _stack(job, tokens, number, partial(_tell, progress, done, total))
        done += len(network.stacks[number])
    progress("", total, total)
    head = next((name for name in job.outer if name == head_of(network)), None)
    if head and parts.done(outer_part(network.stored_name(head))):
        yield read_layers(job.work, outer_part(network.stored_name(head)))
    else:
        last = len(network.stacks) - 1
        shards = [] if tokens is None else _shards(job, tokens, last, len(network.stacks[last]))
        yield store_outer(job, parts, compressed_head(job, job.outer, tokens, shards))


def _tell(progress: Progress, before: int, total: int, name: str, number: int) -> None:
    progress(name, before + number, total)


def _stack(
    job: CheckpointJob, tokens: Inputs | None, stack: int, progress: Callable[[str, int], None]
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
            yield read_layers(job.work, name)
            continue
        progress(name, number)
        if tokens is not None:
            shards = _shards(job, tokens, stack, number)
            compressed = calibrated_block(job, name, selected, shards, calls[number])
        else:
            shards, compressed = [], plain_block(job, name, selected)
        if tokens is not None and stack + 1 < len(network.stacks):
            keep_compressed(job, name, selected)
        layers = store_block(job, parts, name, compressed)
        for shard in shards:
            for old in [shard.inputs, *([shard.original[0]] if shard.original else [])]:
                old.path.unlink(missing_ok=True)
        yield layers


def _rows(network: Network, tokens: Inputs) -> int:
    """Return the rows that the calibration gives to most matrices of the smallest stack."""
    return len(tokens) * min(network.length(tokens, stack) for stack in range(len(network.stacks)))


def _widest(network: Network, ignore: Iterable[str]) -> int:
    """Return the most inputs of a matrix that is compressed."""
    names = [f"{block}.{leaf}" for block in network.blocks for leaf in plan(network, block, ignore)[0]]
    return max((weight_of(network.module(name)).shape[1] for name in names), default=1)


def _shards(job: CheckpointJob, tokens: Inputs, stack: int, number: int) -> list[Shard]:
    """Return the shards of the calibration at a block of a stack."""
    before = sum(len(names) + 1 for names in job.network.stacks[:stack])
    shape = job.network.length(tokens, stack), job.network.width(tokens, stack)
    return shards_of(job.work, len(tokens), shape, before + number, job.correction > 0, job.every)


def _write_originals(job: CheckpointJob, tokens: Inputs, stack: int) -> None:
    """Write the inputs of a stack's first block in the original network."""
    network, shards = job.network, _shards(job, tokens, stack, 0)
    if not job.correction:
        return
    with network.original(), closing(network.first_inputs(tokens[:: job.every], stack)) as sequences:
        for shard in shards:
            if shard.original:
                shard.original[0].write(islice(sequences, shard.original[0].count))


def _write_first(job: CheckpointJob, tokens: Inputs, stack: int) -> None:
    """Write the inputs of a stack's first block, after what runs before it was compressed."""
    with closing(job.network.first_inputs(tokens, stack)) as sequences:
        for shard in _shards(job, tokens, stack, 0):
            shard.inputs.write(islice(sequences, shard.inputs.count))
