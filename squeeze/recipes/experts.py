"""`squeeze.experts`: a mixture of experts with fewer experts, or fewer of them for each token, as a plain checkpoint.

One block is done after the other. The inputs of a block come from the blocks before it that are reduced already. In
memory are a block with all its experts, and the same block with those that stay.
"""

import json
import time
from math import prod
from pathlib import Path
from typing import Any

from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.checkpoint.other_files import copy_other_files
from squeeze.checkpoint.parts import Parts
from squeeze.engine.network import Network
from squeeze.engine.pipeline import Progress
from squeeze.engine.report import Report
from squeeze.errors import printable
from squeeze.integrations.opening import check_opens
from squeeze.options import values_of
from squeeze.packing import folder
from squeeze.prune.experts.choosing import ExpertMethod
from squeeze.prune.experts.counts import cut_config
from squeeze.prune.experts.cutting import Layers
from squeeze.prune.experts.walk import Plan, Walk
from squeeze.quant.sources import floats
from squeeze.recipes.options import EXPERTS, Reducing
from squeeze.recipes.run import Run, Source, read, takes_models
from squeeze.system.storage import local_path
from squeeze.system.work import scratch_folder

__all__ = ["experts"]


@takes_models
def experts(
    source: Source,
    method: ExpertMethod | str = EXPERTS.default,
    *,
    out: Path | str,
    overwrite: bool = False,
    device: str = "cpu",
    progress: Progress | None = None,
    **options: Any,
) -> Report:
    """Reduce the experts of a mixture of experts, and write a plain checkpoint.

    Args:
        source: Hugging Face folder, or a transformers model, which is saved first.
        method: A method, or the name of one: reap, merge or norm.
        out: Folder to write.
        overwrite: Whether to replace an existing folder.
        device: Torch device.
        progress: Called with the block in progress, the blocks done, and the number of blocks.
        options: Fields of options.Reducing and options.Common, and of the method.

    Raises:
        SqueezeError: If an input or an option is invalid.
        ModelError: If the model has no experts, or its architecture cannot be reduced.
    """
    started = time.perf_counter()
    request, common = read(EXPERTS, method, options)
    settings: Reducing = request.settings
    chosen: ExpertMethod = request.create_method()
    run = Run(source=local_path(str(source)), out=local_path(out), common=common, correction=0.0, device=device)
    folder.check_target(run.source, run.out, overwrite)
    network = Network(floats(Checkpoint.open(run.source)), device)
    plan = Plan.of(network, settings.keep, settings.active)
    calibrated = chosen.needs_tokens or settings.active is not None
    described = {**values_of(settings), **(values_of(chosen) | run.described() if calibrated else {})}
    tokens = run.tokens() if calibrated else None
    report = Report(str(run.source), str(run.out), chosen.name, "dense", described)
    with scratch_folder(run.out) as work:
        content = work / folder.CONTENT
        content.mkdir()
        report.notes += [*copy_other_files(run.source, content), *_ignored(network)]
        report.notes += [] if calibrated else run.unused(chosen.name)
        config = cut_config(network.checkpoint.config, plan.counts, plan.kept, plan.active)
        (content / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        layers = Layers(network, plan.kept, content)
        reducing = Walk(network, layers, chosen, plan, tokens, report)
        _write(reducing, Parts(work), content, progress or (lambda what, done, total: None))
        original = Checkpoint.open(run.source)
        report.raw_bytes, report.parameters = original.bytes_of(original.files), _parameters(network.checkpoint)
        report.stored_bytes = Checkpoint.open(content).bytes_of(Checkpoint.open(content).files)
        report.seconds = round(time.perf_counter() - started, 3)
        check_opens(content, network.checkpoint, run.out)
        report.write(content)
        folder.move_into_place(content, run.out, overwrite)
    return report


def _ignored(network: Network) -> list[str]:
    """Return a line on tensors that are left out because transformers ignores them."""
    names = network.unclaimed
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return [f"left out: {printable(names[0])}{more}: transformers ignores them"] if names else []


def _parameters(checkpoint: Checkpoint) -> int:
    return sum(prod(checkpoint.info(name).shape) for name in checkpoint.files)


def _write(reducing: Walk, parts: Parts, content: Path, progress: Progress) -> None:
    """Write the tensors of all blocks as they are reduced, and then the others."""
    written: list[str] = []
    done: set[str] = set()
    for name in reducing.blocks(content, progress):
        small = reducing.small
        prefix = [*small.tensors_of(name).values(), *_stored_in(small, name)]
        names = list(dict.fromkeys(one for one in prefix if one not in done))
        tensors = small.checkpoint.load(names, strict=False)
        small.restore(tensors)
        done |= set(names)
        parts.put(name, tensors)
        written.append(name)
        mixture = reducing.layers.in_block(name)
        if mixture:
            mixture.parts = {}
    small = reducing.small
    for number, name in enumerate(one for one in small.checkpoint.files if one not in done):
        parts.put(f"rest.{number}", small.checkpoint.load([name], strict=False))
        written.append(f"rest.{number}")
    parts.join(written, content)


def _stored_in(network: Network, name: str) -> list[str]:
    """Return tensors of a block that no parameter corresponds to."""
    known = set(network.sources.values())
    return [one for one in network.checkpoint.files if one.startswith(f"{name}.") and one not in known]
