"""The commands on models: import, eval, quantize and densify. Only click and the standard library are imported."""

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from squeeze.commands.model_options import (
    PATH,
    Verdict,
    bar,
    compressing,
    computing,
    converting,
    say_estimate,
    saying,
    steps,
    use,
)
from squeeze.commands.options import Size
from squeeze.system import cores

if TYPE_CHECKING:
    from squeeze.quant.method import GridMethod


@click.command(name="import")
@click.argument("source", metavar="MODEL.gguf", type=PATH)
@click.argument("target", metavar="OUT", type=PATH)
@click.option("-f", "--force", is_flag=True, help="Overwrite OUT.")
@saying
def import_(source: Path, target: Path, force: bool, quiet: bool, as_json: bool) -> None:
    """Write a GGUF file of the Llama family as a Hugging Face folder in bf16, with config and tokenizer.

    MODEL.gguf may be smollm2, the bundled model.

    Example: squeeze import model.gguf my-model
    """
    from squeeze.errors import ModelError
    from squeeze.lm import models
    from squeeze.recipes.import_gguf import import_gguf

    path: Path | None = source
    if str(source) == models.BUNDLED and not source.exists():
        path = models.bundled_path()
    if path is None:
        raise ModelError(f"the language model {models.BUNDLED} is not installed: {models.HELP}")
    started = time.perf_counter()
    with bar(None, path.name, quiet) as tick:
        size = import_gguf(path, target, overwrite=force, progress=tick)
    seconds = round(time.perf_counter() - started, 3)
    if as_json:
        record = {"command": "import", "input": str(path), "output": str(target), "bytes": size, "seconds": seconds}
        click.echo(json.dumps(record))
    elif not quiet:
        click.echo(f"{target}: {size} bytes of weights in bf16, {seconds:.1f} s", err=True)


@click.command(name="eval")
@click.argument("checkpoint", metavar="CKPT", type=PATH)
@click.option("--text", required=True, metavar="FILE", type=PATH, help="The text to predict.")
@click.option("--original", metavar="CKPT", type=PATH, help="Also measure the distance from this model.")
@click.option("--window", default=1024, metavar="N", type=click.IntRange(2), help="Tokens seen at once (1024).")
@click.option("--stride", metavar="N", type=click.IntRange(1), help="Tokens between windows (default: the window).")
@click.option("--windows", metavar="N", type=click.IntRange(1), help="Stop after so many.")
@computing
@saying
def evaluate(
    checkpoint: Path,
    text: Path,
    original: Path | None,
    window: int,
    stride: int | None,
    windows: int | None,
    device: str,
    threads: int,
    quiet: bool,
    as_json: bool,
) -> None:
    """Measure how well a model predicts a text: perplexity, and with --original KL divergence and agreement.

    Example: squeeze eval my-model-4bit --original my-model --text wiki.txt
    """
    from squeeze.checkpoint.text import read_tokens
    from squeeze.engine import quality
    from squeeze.integrations.load_model import load_model

    use(threads)
    tokens = read_tokens(text, original or checkpoint)
    model = load_model(checkpoint, device=device)
    reference = load_model(original, device=device) if original else None
    total = len(tokens) if windows is None else min(len(tokens), window + (windows - 1) * (stride or window))
    with bar(total, checkpoint.name, quiet) as tick:
        found = quality.evaluate(
            model, tokens, window=window, stride=stride, windows=windows, original=reference, progress=tick
        )
    if as_json:
        record = {"command": "eval", "input": str(checkpoint), "text": str(text), "window": window}
        click.echo(json.dumps({**record, **found.as_json()}))
        return
    for name, value in found.as_json().items():
        if value is not None:
            click.echo(f"{name.replace('_', ' ') + ':':<20}{value:.6g}")


@click.command()
@click.option("--method", type=click.Choice(["gptq", "rtn"]), default="gptq", help="How codes are chosen (gptq).")
@click.option("--bits", type=click.Choice(["2", "3", "4", "8"]), default="4", help="Of a code (4).")
@click.option("--group-size", default=64, metavar="N", help="Inputs that share a scale (64); -1 for all of a row.")
@click.option("--asymmetric/--symmetric", default=False, help="With or without zero points (without).")
@click.option("--grid", default="integer", metavar="NAME", help="integer, whole, nf4, mxfp4, nvfp4, ternary(-planes).")
@click.option("--clip/--no-clip", default=True, help="Search each group's range for the least error (yes).")
@click.option("--act-order/--no-act-order", default=True, help="GPTQ: largest inputs first (yes).")
@click.option("--dynamic", is_flag=True, help="GPTQ: choose a group's scale when it is reached.")
@click.option("--damping", default=0.01, metavar="X", help="GPTQ: share of the mean diagonal added to it (0.01).")
@click.option("--refine", default=1, metavar="N", type=click.IntRange(0), help="GPTQ: rounds of refinement (1).")
@click.option("--outliers", default=0, metavar="N", type=click.IntRange(0), help="GPTQ: inputs kept as they are.")
@click.option("--rotate", is_flag=True, help="Rotate a Llama-type network first (QuaRot's R1 and R2).")
@click.option("--rotation-block", metavar="N", type=click.IntRange(2), help="Rotate in blocks of N.")
@click.option("--smooth", default=0.0, metavar="X", type=click.FloatRange(0, 1), help="Scale inputs; 0.2 is good (0).")
@click.option("--target-bits", metavar="X", type=float, help="Choose bits by matrix: X stored bits a weight in all.")
@click.option("--target-size", "target_bytes", metavar="SIZE", type=Size(), help="Or a whole checkpoint of SIZE.")
@click.option("--correction", default=0.3, metavar="X", type=click.FloatRange(0, 1), help="For earlier errors (0.3).")
@click.option("--format", "format_", default="compressed-tensors", metavar="NAME", help="How it is stored, see below.")
@click.option("--pack", "packed", is_flag=True, help="Code OUT without loss too: `squeeze unpack` restores it.")
@compressing
def quantize(source: Path, target: Path, threads: int, quiet: bool, as_json: bool, **options: Any) -> None:
    """Quantise the weights of a model's folder, block by block, and report what it cost.

    Formats: compressed-tensors and gptq (which vLLM and transformers load), gptq_v2, squeeze (which holds every grid)
    and dense (bf16 again).

    Example: squeeze quantize my-model my-model-4bit --bits 4 --calibration wiki.txt
    """
    from squeeze.packing import folder
    from squeeze.recipes import quantize as api

    use(threads)
    verdict, method = Verdict.taken_from(options), _method(options)
    if not quiet:
        say_estimate(source, options, method.needs_hessian)
    packed, force = options.pop("packed"), options.pop("force")
    folder.check_target(source, target, force)
    out = target.with_name(f".{target.name[:60]}.quantised") if packed else target
    with steps(target.name, quiet) as progress:
        report = api.quantize(
            source,
            method,
            out=out,
            format=options.pop("format_"),
            overwrite=force or packed,
            progress=progress,
            **options,
        )
    verdict.measure(report, options["device"])
    if packed:
        api.pack_result(report, target, force, threads or cores.available())
    verdict.conclude(report, as_json, quiet)


@click.command()
@converting
@saying
def densify(source: Path, target: Path, force: bool, quiet: bool, as_json: bool) -> None:
    """Write every weight of a folder dense, so that any other tool reads it.

    IN is what `squeeze prune`, `factorize` or `quantize` wrote, a checkpoint of GPTQ or compressed-tensors, or one of
    its formats sparse-24-bitmask and marlin-24, which it no longer reads.

    Example: squeeze densify my-model-24 my-model-dense
    """
    from squeeze.recipes.densify import densify as run

    size = run(source, target, overwrite=force)
    if as_json:
        click.echo(json.dumps({"command": "densify", "input": str(source), "output": str(target), "bytes": size}))
    elif not quiet:
        click.echo(f"{target}: {size} bytes of weights", err=True)


def _method(options: dict[str, Any]) -> "GridMethod":
    """The method that options name, which are taken out of them."""
    from dataclasses import fields

    from squeeze.recipes.quantize import METHODS

    chosen = METHODS[options.pop("method")]
    options["bits"], options["symmetric"] = int(options["bits"]), not options.pop("asymmetric")
    known = {entry.name for entry in fields(chosen)}
    given = {name: options.pop(name) for name in _OF_METHODS}
    return chosen(**{name: value for name, value in given.items() if name in known})


_OF_METHODS = (
    *("bits", "group_size", "symmetric", "grid", "clip"),
    *("act_order", "dynamic", "damping", "refine", "outliers"),
)
