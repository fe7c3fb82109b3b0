"""`squeeze quantize`."""

from pathlib import Path
from typing import Any

import click

from squeeze.commands import clustered, options
from squeeze.commands.declared import OperationCommand, given
from squeeze.commands.models import Verdict, say_estimate, use
from squeeze.commands.progress import steps
from squeeze.commands.reporting import checkpoint_bar
from squeeze.recipes.options import QUANTIZE
from squeeze.system import machine


@click.command(cls=OperationCommand, operation=QUANTIZE)
@click.option("--pack", "packed", is_flag=True, help="Code OUT without loss too: `squeeze unpack` restores it.")
@clustered.cluster
@options.compressing
def quantize(
    source: Path,
    target: Path,
    packed: bool,
    cluster: str | None,
    force: bool,
    threads: int,
    quiet: bool,
    as_json: bool,
    **params: Any,
) -> None:
    """Quantise the weights of a model's folder, block by block, and report what it cost.

    Formats: compressed-tensors and gptq (which vLLM and transformers load), gptq_v2, squeeze (which holds every grid),
    dense (bf16 again) and gguf (a file for llama.cpp, whose blocks are of --type). A --scheme says how weights and
    activations are rounded where vLLM runs the model.

    Example: squeeze quantize my-model my-model-4bit --bits 4 --calibration wiki.txt
    """
    from squeeze.packing import folder
    from squeeze.recipes import quantize as api, run
    from squeeze.recipes.gguf import quantize as quantize_gguf
    from squeeze.recipes.options import GGUF

    use(threads or 1 if cluster else threads, params["device"])
    verdict, asked_for = Verdict.taken_from(params), given(QUANTIZE, params)
    asked, common = run.read(QUANTIZE, None, asked_for)
    if not quiet:
        say_estimate(source, common, asked.settings.correction, params["device"], asked.create_method().needs_hessian)
    if asked.settings.format == GGUF:
        if packed:
            raise click.UsageError("--pack is for formats that are folders, not for gguf")
        quantize_gguf.check_file(target, force)
    else:
        folder.check_target(source, target, force)
    out = target.with_name(f".{target.name[:60]}.quantised") if packed else target
    with (
        clustered.workers(cluster, threads) as workers,
        steps(target.name, quiet=quiet, as_json=as_json) as progress,
    ):
        if packed:  # OUT is made of a folder that is always written over
            params["resume"] = params["resume"] or not force
        shared: dict[str, Any] = {"overwrite": force or packed, "progress": progress, "workers": workers}
        report = api.quantize(source, out=out, **shared, **asked_for, **params)
    verdict.measure(report, params["device"], quiet, as_json)
    if packed:
        with checkpoint_bar(out, quiet, as_json) as tick:
            api.pack_result(report, target, force, threads or machine.available_cores(), tick)
    verdict.conclude(report, as_json, quiet)
