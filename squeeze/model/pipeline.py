"""The main path of compressing a checkpoint: block by block, calibrate, compress, write. Read this first.

A block's inputs come from the blocks before it as they were compressed. Inside a block the linear modules are taken
in the order in which they run, those that share an input together, and each sees what the ones before it have become.
One block is in memory; hidden states are in files, and every finished block is, so a stopped run goes on from there.
What is done to a matrix is a method's, how it is stored a format's.
"""

import json
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import nn

from squeeze import __version__
from squeeze.errors import SqueezeError
from squeeze.model import calibration
from squeeze.model.calibration import Activations, Recorder, Stage, Statistics
from squeeze.model.checkpoint import Checkpoint, Parts, copy_other_files
from squeeze.model.method import HessianError, JointMethod, Method, Result, layer_error
from squeeze.model.network import Call, Network, is_linear, run_block, weight_of
from squeeze.model.report import Layer, Report
from squeeze.model.work import digest, stamps
from squeeze.packing import folder
from squeeze.work import work_folder

__all__ = ["Writer", "compress", "plan"]

Progress = Callable[[str, int, int], None]  # what is at work, blocks done, blocks
_LEAST_ROWS = 32  # matrices with fewer, such as gates, are left


@dataclass(frozen=True)
class Writer:
    """How results are stored. tensors(name, tensor, transposed) gives what stands for a module's weight in the
    checkpoint; config() what config.json gets besides what it had. measured: whether the report's bits are those of
    what was written, and not what a matrix says of itself."""

    name: str
    tensors: Callable[[str, Any, bool], dict[str, torch.Tensor]]
    config: Callable[[list[str]], dict[str, Any]]
    measured: bool = False


@dataclass
class Job:
    """One run over a checkpoint: what to do to which module, and how far it is."""

    network: Network
    method: Method
    methods: Mapping[str, Method]
    writer: Writer
    work: Path
    correction: float
    ignore: tuple[str, ...]
    left: dict[str, str] = field(default_factory=dict)

    def method_of(self, name: str) -> Method:
        return self.methods.get(self.network.stored_name(name), self.method)


def plan(network: Network, block: str, ignore: Iterable[str] = ()) -> tuple[list[str], dict[str, str]]:
    """The linear modules below a block that are compressed, by their names in it; and why others are left, by the
    checkpoint's names."""
    chosen, left = [], {}
    for name, module in network.module(block).named_modules():
        full = f"{block}.{name}"
        if is_linear(module):
            reason = _reason(full, weight_of(module).shape[0], ignore)
            if reason:
                left[network.stored_name(full)] = reason
            else:
                chosen.append(name)
        elif fused := [key for key, value in module.named_parameters(recurse=False) if value.ndim > 2]:
            left |= dict.fromkeys((f"{full}.{key}" for key in fused), "a tensor of three dimensions")
    return chosen, left


def _reason(name: str, rows: int, ignore: Iterable[str]) -> str | None:
    """Why a linear module is left as it is, if it is."""
    if any(part in name for part in ignore):
        return "as asked for"
    if name.rpartition(".")[2] in ("router", "gate", "shared_expert_gate"):
        return "decides which experts run"
    return f"has only {rows} rows" if rows < _LEAST_ROWS else None


def compress(
    source: Path | str,
    target: Path | str,
    method: Method,
    writer: Writer,
    *,
    tokens: torch.Tensor | None,
    methods: Mapping[str, Method] | None = None,
    correction: float = 0.0,
    ignore: Iterable[str] = (),
    settings: Mapping[str, Any] | None = None,
    resume: bool = False,
    overwrite: bool = False,
    device: str = "cpu",
    checkpoint: Checkpoint | None = None,
    progress: Progress | None = None,
) -> Report:
    """Compress every matrix in a checkpoint's blocks and write the folder `target`.

    tokens: calibration sequences [N, L], None where no method needs any. methods: others than `method`, by the
    checkpoint's name of a module. correction: 0 to 1, how far a matrix is moved towards what gives the original's
    outputs from the compressed network's inputs (QEP, Arai and Ichikawa 2025, arXiv 2504.09629). ignore: modules whose
    names contain one of these are left. checkpoint: what to read in place of `source`, such as one that is rotated.
    Raises SqueezeError for all that a user can mend; then nothing is written.
    """
    started = time.perf_counter()
    source, target, ignore = Path(source), Path(target), tuple(ignore)
    checkpoint = checkpoint or Checkpoint.open(source)
    folder.check_target(source, target, overwrite)
    network = Network(checkpoint, device)
    if tokens is not None:
        network.check(tokens)
    asked = dict(settings or {})
    task: dict[str, Any] = {"version": __version__, "source": stamps(source), "settings": asked, "method": repr(method)}
    task |= {"methods": {name: repr(value) for name, value in sorted((methods or {}).items())}, "writer": writer.name}
    task |= {"correction": correction, "ignore": list(ignore), "tokens": digest(tokens)}
    with work_folder(target, "compressing", task, resume) as work:
        job = Job(network, method, methods or {}, writer, work, correction, ignore)
        report = Report(str(source), str(target), method.name, writer.name, asked)
        for layers in _blocks(job, tokens, progress or (lambda what, done, total: None)):
            report.layers += layers
        report.left = job.left
        _finish(job, report, source, started)
        folder.move_into_place(work / folder.CONTENT, target, overwrite)
    return report


def _blocks(job: Job, tokens: torch.Tensor | None, progress: Progress) -> Iterator[list[Layer]]:
    """Compress each block that is not done yet."""
    network, parts = job.network, Parts(job.work)
    calls: list[Call] = []
    total = len(network.blocks)
    if tokens is not None:
        calls = network.calls(tokens)
        streams = [_activations(job, stream, 0, tokens, network) for stream in _streams(job)]
        if not any(parts.done(name) for name in network.blocks):
            _write_all(streams, network.first_inputs(tokens))
    for number, name in enumerate(network.blocks):
        chosen, left = plan(network, name, job.ignore)
        job.left |= left
        if parts.done(name):
            yield _read_layers(job.work, name)
            continue
        progress(name, number, total)
        if tokens is not None:
            inputs = [_activations(job, stream, number, tokens, network) for stream in _streams(job)]
            outputs = [_activations(job, stream, number + 1, tokens, network) for stream in _streams(job)]
            done = _calibrated_block(job, name, chosen, inputs, outputs, calls[number])
        else:
            inputs, done = [], _plain_block(job, name, chosen)
        layers = _store(job, parts, name, done)
        for old in inputs:
            old.path.unlink(missing_ok=True)
        yield layers
    progress("", total, total)


def _streams(job: Job) -> tuple[str, ...]:
    return ("compressed", "original") if job.correction else ("compressed",)


def _activations(job: Job, stream: str, number: int, tokens: torch.Tensor, network: Network) -> Activations:
    width = network.model.config.get_text_config().hidden_size
    return Activations(job.work / f"{stream}.{number}.hidden", len(tokens), tokens.shape[1], width)


def _write_all(streams: list[Activations], sequences: Iterator[torch.Tensor]) -> None:
    streams[0].write(sequences)
    for other in streams[1:]:
        shutil.copyfile(streams[0].path, other.path)


@dataclass(frozen=True)
class Done:
    """A compressed matrix and what the report says of it."""

    result: Result[Any]
    layer: Layer


def _plain_block(job: Job, name: str, chosen: list[str]) -> dict[str, Done]:
    """Without statistics."""
    block = job.network.load(name)
    return {leaf: _compressed(job, f"{name}.{leaf}", block.get_submodule(leaf), Statistics()) for leaf in chosen}


def _calibrated_block(
    job: Job, name: str, chosen: list[str], inputs: list[Activations], outputs: list[Activations], call: Call
) -> dict[str, Done]:
    """Compress the modules of a block stage by stage, then write what comes out of it."""
    block, device = job.network.load(name), job.network.device
    done: dict[str, Done] = {}
    with torch.inference_mode():
        trials = (lambda hidden=hidden: run_block(block, hidden, call) for hidden in inputs[0].read(device))
        planned = calibration.stages(block, chosen, trials)
        theirs = _original(job, block, planned, inputs[1], outputs[1], call) if job.correction else {}
        for stage in planned:
            found = _statistics(block, stage, inputs[0], theirs, call, device)
            for group in stage.groups:
                done |= _compressed_group(job, name, block, group, found.pop(group[0]))
        for leaf in chosen:
            if leaf not in done:
                done[leaf] = _compressed(job, f"{name}.{leaf}", block.get_submodule(leaf), Statistics())
        outputs[0].write(run_block(block, hidden, call) for hidden in inputs[0].read(device))
    for recorded in theirs.values():
        recorded.path.unlink()
    return done


def _original(
    job: Job, block: nn.Module, planned: list[Stage], before: Activations, after: Activations, call: Call
) -> dict[str, Activations]:
    """Run a block that is not compressed yet: what comes out of it goes to a file, and so do the inputs of each group,
    by the name of its first module; not those of experts, where the compressed block may send other tokens."""
    firsts = [group[0] for stage in planned for group in stage.groups if ".experts." not in f".{group[0]}"]
    widths = {name: weight_of(block.get_submodule(name)).shape[1] for name in firsts}
    files = {
        name: Activations(job.work / f"{name}.inputs", before.count, before.length, widths[name]) for name in firsts
    }
    with ExitStack() as stack:
        sinks = {name: stack.enter_context(file.path.open("wb")) for name, file in files.items()}

        def outputs() -> Iterator[torch.Tensor]:
            for hidden in before.read(job.network.device):
                seen: dict[str, torch.Tensor] = {}
                with Recorder(block, firsts, seen.__setitem__):
                    yield run_block(block, hidden, call)
                for name, x in seen.items():
                    sinks[name].write(files[name].as_bytes(x))

        after.write(outputs())
    return files


def _statistics(
    block: nn.Module,
    stage: Stage,
    inputs: Activations,
    originals: Mapping[str, Activations],
    call: Call,
    device: torch.device,
) -> dict[str, Statistics]:
    """Of each group's inputs, by the name of its first module."""
    found = {group[0]: Statistics() for group in stage.groups}
    theirs = {name: originals[name].read(device) for name in found if name in originals}
    for hidden in inputs.read(device):
        seen = calibration.record(block, stage.groups, lambda: run_block(block, hidden, call))  # noqa: B023
        for name, x in seen.items():
            found[name].add(x, next(theirs[name]) if name in theirs else None)
    for statistics in found.values():
        statistics.finish()
    return found


def _compressed_group(
    job: Job, name: str, block: nn.Module, group: tuple[str, ...], statistics: Statistics
) -> dict[str, Done]:
    """Compress the matrices that share an input: those that one method is for together, where it is of that kind."""
    modules = {leaf: block.get_submodule(leaf) for leaf in group}
    joint: dict[int, list[str]] = {}
    for leaf in group:
        if isinstance(method := job.method_of(f"{name}.{leaf}"), JointMethod) and ".experts." not in leaf:
            joint.setdefault(id(method), []).append(leaf)
    together: dict[str, Result[Any]] = {}
    for leaves in joint.values():
        if len(leaves) > 1:
            together |= _joint(job, name, {leaf: modules[leaf] for leaf in leaves}, statistics)
    done = {}
    for leaf, module in modules.items():
        full = f"{name}.{leaf}"
        if leaf in together:
            done[leaf] = _placed(job, full, module, statistics, together[leaf], job.method_of(full).name)
        else:
            done[leaf] = _compressed(job, full, module, statistics)
    return done


def _joint(job: Job, name: str, modules: Mapping[str, nn.Module], statistics: Statistics) -> dict[str, Result[Any]]:
    """Several matrices at once; nothing where the statistics do not serve."""
    weights = {leaf: _wanted(job, f"{name}.{leaf}", module, statistics) for leaf, module in modules.items()}
    method = job.method_of(f"{name}.{next(iter(modules))}")
    assert isinstance(method, JointMethod)
    if statistics.hessian is None or statistics.count < len(statistics.hessian):
        return {}
    try:
        return method.compress_together(weights, statistics.hessian)
    except HessianError:
        return {}


def _wanted(job: Job, name: str, module: nn.Module, statistics: Statistics) -> torch.Tensor:
    """The matrix [O, I] that is to be compressed, in its stored type."""
    weight = weight_of(module)
    moved = weight if statistics.cross is None else calibration.corrected(weight, statistics, job.correction)
    return moved.to(_dtype(job, name))


def _compressed(job: Job, name: str, module: nn.Module, statistics: Statistics) -> Done:
    """Compress one matrix and put what became of it in its place."""
    result, method = _result(job.method_of(name), _wanted(job, name, module, statistics), statistics)
    return _placed(job, name, module, statistics, result, method)


def _placed(job: Job, name: str, module: nn.Module, statistics: Statistics, result: Result[Any], method: str) -> Done:
    """Put what became of a matrix in its place."""
    weight, dtype = weight_of(module), _dtype(job, name)
    values = result.tensor.dequantize(torch.float32)
    if not torch.isfinite(values).all():
        raise SqueezeError(f"{name}: became infinite; its weights are too large for the type of its scales")
    layer = Layer(
        name=job.network.stored_name(name),
        shape=(weight.shape[0], weight.shape[1]),
        method=method,
        bits=result.tensor.stored_bits / weight.numel(),
        error=layer_error(weight, values, statistics.hessian),
        tokens=statistics.count,
        notes=result.notes,
        **_sparsity(name, result.tensor, values.to(dtype)),
    )
    weight.copy_(values.to(dtype))
    return Done(result, layer)


def _sparsity(name: str, tensor: Any, values: torch.Tensor) -> dict[str, Any]:
    """What the report says of zeros: of the matrix itself, without what is added to it in another form."""
    pattern = getattr(tensor, "pattern", None)
    if pattern is None:
        return {"sparsity": float((values == 0).float().mean())}
    sparse = tensor.sparse().to(values.dtype)
    wrong = pattern.violations(sparse)
    assert not wrong, f"{name}: {wrong} groups do not hold to {pattern}"
    return {"sparsity": float((sparse == 0).float().mean()), "pattern": str(pattern)}


def _result(method: Method, weight: torch.Tensor, statistics: Statistics) -> tuple[Result[Any], str]:
    """What a method makes of a matrix, or its fallback where the statistics do not serve; and the name of which."""
    if not method.needs_hessian:
        return method.compress(weight), method.name
    inputs = weight.shape[1]
    if statistics.hessian is None:
        reason = "no calibration token reached it"
    elif statistics.count < inputs:
        reason = f"only {statistics.count} calibration tokens reached its {inputs} inputs"
    else:
        try:
            return method.compress(weight, statistics.hessian), method.name
        except HessianError as error:
            reason = str(error)
    other = method.fallback()
    result = other.compress(weight)
    return replace(result, notes=(*result.notes, f"{reason}: {other.name} instead")), other.name


def _dtype(job: Job, name: str) -> torch.dtype:
    stored = job.network.checkpoint.info(job.network.sources[f"{name}.weight"]).dtype
    return {"BF16": torch.bfloat16, "F16": torch.float16}.get(stored, torch.float32)


def _store(job: Job, parts: Parts, name: str, done: Mapping[str, Done]) -> list[Layer]:
    """Write a block's tensors and what the report says of it."""
    network = job.network
    tensors: dict[str, torch.Tensor] = {}
    layers, taken = [], set()
    for leaf, one in done.items():
        full = f"{name}.{leaf}"
        transposed = not isinstance(network.module(full), nn.Linear)
        written = job.writer.tensors(network.stored_name(full), one.result.tensor, transposed)
        bits = 8 * sum(tensor.nbytes for tensor in written.values()) / prod(one.layer.shape)
        layers.append(replace(one.layer, bits=bits) if job.writer.measured else one.layer)
        tensors |= written
        taken.add(network.sources[f"{full}.weight"])
    tensors |= network.checkpoint.load(s for s in network.tensors_of(name).values() if s not in taken)
    tensors |= network.checkpoint.load(_unnamed(network, name), strict=False)
    network.release(name)
    (job.work / f"{name}.json").write_text(json.dumps([asdict(layer) for layer in layers]))
    parts.put(name, tensors)
    return layers


def _unnamed(network: Network, name: str) -> list[str]:
    """Tensors of a block that stand for none of its parameters one by one: old buffers, fused experts left fused."""
    known = set(network.sources.values())
    return [source for source in network.checkpoint.files if source.startswith(f"{name}.") and source not in known]


def _read_layers(work: Path, name: str) -> list[Layer]:
    return [Layer.from_json(one) for one in json.loads((work / f"{name}.json").read_text())]


def _finish(job: Job, report: Report, source: Path, started: float) -> None:
    """Join the blocks with what surrounds them, and write the files beside them."""
    network, parts = job.network, Parts(job.work)
    done = {
        name for block in network.blocks for name in [*network.tensors_of(block).values(), *_unnamed(network, block)]
    }
    known = set(network.sources.values())
    rest = [name for name in network.checkpoint.files if name not in done]
    for number, name in enumerate(rest):
        if not parts.done(f"rest.{number}"):
            parts.put(f"rest.{number}", network.checkpoint.load([name], strict=name in known))
    for name, module in network.model.named_modules():
        if is_linear(module) and not any(name.startswith(f"{block}.") for block in network.blocks):
            job.left[name] = "outside the blocks"
    made = job.work / folder.CONTENT
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir()
    report.stored_bytes = parts.join([*(f"rest.{i}" for i in range(len(rest))), *network.blocks], made)
    original = Checkpoint.open(source)
    report.raw_bytes = original.bytes_of(original.files)
    report.parameters = sum(prod(original.info(name).shape) for name in original.files)
    copy_other_files(source, made)
    config = {**network.checkpoint.config, **job.writer.config(sorted(job.left))}
    (made / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    report.seconds = round(time.perf_counter() - started, 3)
    report.write(made)
