"""Commands that change or judge the weights of a model's folder: quantize, prune, factorize, delta, densify, advise."""

import json
from pathlib import Path
from typing import Any

import click

import squeeze
from squeeze.checkpoint.other_files import left_out
from squeeze.commands import cluster as clusters, options, values
from squeeze.commands.declared import OperationCommand, options_given
from squeeze.commands.echo import echo, echo_lines
from squeeze.commands.models import Verdict, estimate_of, use
from squeeze.commands.progress import steps
from squeeze.commands.reporting import checkpoint_bar
from squeeze.commands.sections import command
from squeeze.recipes.options import DELTA, FACTORIZE, GGUF, PRUNE, QUANTIZE, SAME
from squeeze.system import machine
from squeeze.system.limits import Limits


@click.command(cls=OperationCommand, operation=QUANTIZE)
@click.option("--pack", "packed", is_flag=True, help="Pack OUT losslessly as well; `squeeze unpack` restores it")
@clusters.cluster
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
    """Quantise a model's weights to 2 to 8 bits, and report the loss.

    \b
    Example: squeeze quantize my-model my-model-4bit --bits 4 --calibration wiki.txt
             squeeze quantize my-model model.gguf --format gguf --type q4_k

    IN and OUT are Hugging Face folders; with --format gguf OUT is a file. vLLM and transformers load the formats
    compressed-tensors and gptq. Only squeeze loads the format squeeze, which holds every grid. The format dense is bf16
    again. A --scheme also says how vLLM rounds the activations.
    """
    from squeeze.packing import folder
    from squeeze.recipes import quantize as api, run
    from squeeze.recipes.gguf import quantize as quantize_gguf

    use(threads or 1 if cluster else threads, params["device"])
    verdict, given_options = Verdict.taken_from(params), options_given(QUANTIZE, params)
    request, common = run.read(QUANTIZE, None, given_options)
    if cluster and request.settings.type == SAME:
        raise click.UsageError("--type same computes nothing that a cluster could share: leave out --cluster")
    calibrated = request.settings.type != SAME and request.create_method().needs_hessian
    say = estimate_of(source, common, request.settings.correction, params["device"], calibrated, quiet)
    if request.settings.format == GGUF:
        if packed:
            raise click.UsageError("--pack takes formats that are folders, got gguf: leave out --pack")
        quantize_gguf.check_file(target, force)
    else:
        folder.check_target(source, target, force)
    out = target.with_name(f".{target.name[:60]}.quantised") if packed else target
    with (
        clusters.workers(cluster, threads) as workers,
        steps(target.name, before=say, quiet=quiet, as_json=as_json) as progress,
    ):
        if packed:  # OUT is made of a folder that is always written over
            params["resume"] = params["resume"] or not force
        shared: dict[str, Any] = {"overwrite": force or packed, "progress": progress, "workers": workers}
        report = api.quantize(source, out=out, **shared, **given_options, **params)
    verdict.measure(report, params["device"], quiet, as_json)
    if packed:
        with checkpoint_bar(out, quiet, as_json) as tick:
            api.pack_result(report, target, force, threads or machine.available_cores(), tick)
    verdict.conclude(report, as_json, quiet)


@click.command(cls=OperationCommand, operation=PRUNE)
@clusters.cluster
@options.compressing
def prune(
    source: Path,
    target: Path,
    cluster: str | None,
    force: bool,
    threads: int,
    quiet: bool,
    as_json: bool,
    **params: Any,
) -> None:
    """Set weights of a model to zero, and report the loss.

    \b
    Example: squeeze prune my-model my-model-24 --pattern 2:4 --calibration wiki.txt

    OUT holds the remaining weights and their mask, both entropy-coded. transformers loads it after
    `import squeeze.integrations.transformers`. With --dense OUT holds the zeros as well, and any loader reads it.
    """
    from squeeze.recipes import prune as api, run

    use(threads or 1 if cluster else threads, params["device"])
    verdict, given_options = Verdict.taken_from(params), options_given(PRUNE, params)
    request, common = run.read(PRUNE, None, given_options)
    calibrated = api.requested_method(request).needs_hessian
    say = estimate_of(source, common, request.settings.correction, params["device"], calibrated, quiet)
    with (
        clusters.workers(cluster, threads) as workers,
        steps(target.name, before=say, quiet=quiet, as_json=as_json) as progress,
    ):
        shared: dict[str, Any] = {"overwrite": force, "progress": progress, "workers": workers}
        report = api.prune(source, out=target, **shared, **given_options, **params)
    verdict.measure(report, params["device"], quiet, as_json)
    verdict.conclude(report, as_json, quiet)


@click.command(cls=OperationCommand, operation=FACTORIZE)
@options.compressing
def factorize(source: Path, target: Path, force: bool, threads: int, quiet: bool, as_json: bool, **params: Any) -> None:
    """Factorise matrices into smaller ones, and report the loss.

    \b
    Example: squeeze factorize my-model my-model-90 --keep 0.9 --calibration wiki.txt

    The default method, plan, chooses a rank for each matrix, and removes channels. Other methods treat every matrix
    alike: low rank, tensor networks and block structures.
    """
    use(threads, params["device"])
    verdict, given_options = Verdict.taken_from(params), options_given(FACTORIZE, params)
    with steps(target.name, quiet=quiet, as_json=as_json) as progress:
        report = squeeze.factorize(source, out=target, overwrite=force, progress=progress, **given_options, **params)
    verdict.measure(report, params["device"], quiet, as_json)
    verdict.conclude(report, as_json, quiet)


@click.command(cls=OperationCommand, operation=DELTA)
@click.argument("base", metavar="BASE", type=values.PATH)
@options.compressing
def delta(
    base: Path,
    source: Path,
    target: Path,
    force: bool,
    threads: int,
    quiet: bool,
    as_json: bool,
    **params: Any,
) -> None:
    """Store a fine-tune as a small lossy difference from its base.

    \b
    Example: squeeze delta my-model my-tuned my-delta --bits 2 --pattern 2:4 --calibration chats.txt

    BASE and IN are folders; IN is the fine-tune. The differences of its matrices are rounded to --bits, pruned to
    --pattern, or both. Embeddings and heads are rounded, and every other tensor is exact. transformers loads OUT
    together with BASE, and models with the same base share its weights in memory.
    """
    use(threads, params["device"])
    verdict, given_options = Verdict.taken_from(params), options_given(DELTA, params)
    verdict.check_inputs("delta")
    if verdict.tasks is not None:
        raise click.UsageError("delta measures no tasks: run squeeze eval OUT --base BASE --tasks NAMES afterwards")
    settings = DELTA.read(given_options).settings
    say = estimate_of(source, settings, settings.correction, params["device"], True, quiet)
    shared = {
        "text": verdict.text,
        "windows": verdict.windows,
        "threads": threads or machine.available_cores(),
        **params,
    }
    with steps(target.name, before=say, quiet=quiet, as_json=as_json) as progress:
        report = squeeze.delta(base, source, out=target, overwrite=force, progress=progress, **given_options, **shared)
    verdict.conclude(report, as_json, quiet)


@command()
@options.converting()
@options.base
@options.limits
@options.saying
def densify(
    source: Path, target: Path, base: Path | None, force: bool, limits: Limits, quiet: bool, as_json: bool
) -> None:
    """Write a compressed model's weights dense, for any other tool.

    \b
    Example: squeeze densify my-model-24 my-model-dense

    IN is a folder that prune, factorize, quantize or delta wrote, packed or not. It can also be a checkpoint of GPTQ or
    compressed-tensors, or a LoRA adapter, which is merged with its --base.
    """
    size = squeeze.densify(source, target, overwrite=force, base=base, limits=limits)
    notes = left_out(source)
    if as_json:
        files = {"input": str(source), "output": str(target)}
        click.echo(json.dumps({"command": "densify", **files, "bytes": size, "left_out": notes}))
    elif not quiet:
        for line in notes:
            echo(f"{source}: {line}", err=True)
        echo(f"{target}: {size:,} bytes of weights", err=True)


@command()
@click.argument("checkpoint", metavar="CKPT", type=values.PATH)
@click.option(
    "--device",
    default="cpu",
    metavar="NAME",
    help="Device: cpu, cuda, a100, h100, h200, l4, l40s, rtx 4090 or rtx 5090; default: cpu",
)
@click.option("--batch", default=1, metavar="N", type=click.IntRange(1), help="Tokens per product; default: 1")
@click.option("--bits", default="16", type=click.Choice(["16", "4"]), help="Bits per kept value; default: 16")
@options.as_json
def advise(checkpoint: Path, device: str, batch: int, bits: str, as_json: bool) -> None:
    """Predict which layers run faster with 2:4 sparsity on a device.

    \b
    Example: squeeze advise my-model --device h200 --batch 8
    """
    from squeeze.recipes.measure.advise import advise as predict

    prediction = predict(checkpoint, device, batch, int(bits))
    echo_lines(json.dumps(prediction.as_json()) if as_json else prediction.table())
