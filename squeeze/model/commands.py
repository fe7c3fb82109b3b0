"""The commands on models: import, eval and quantize. Only click and the standard library are imported."""

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from squeeze import cores, files
from squeeze.errors import QualityError
from squeeze.options import Size

if TYPE_CHECKING:
    from squeeze.quant.method import GridMethod

Command = Callable[..., None]
_PATH = click.Path(path_type=Path)


def _saying(command: Command) -> Command:
    command = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")(command)
    return click.option("-q", "--quiet", is_flag=True, help="Say nothing but errors.")(command)


def _computing(command: Command) -> Command:
    help_text = "Threads; 0, the default, for one a core."
    command = click.option("-T", "--threads", metavar="N", type=click.IntRange(0), default=0, help=help_text)(command)
    return click.option("--device", default="cpu", metavar="NAME", help="cpu (default), cuda, ...")(command)


def use(threads: int) -> None:
    """Let torch compute on so many threads."""
    import torch

    torch.set_num_threads(threads or cores.available())


@click.command(name="import")
@click.argument("source", metavar="MODEL.gguf", type=_PATH)
@click.argument("target", metavar="OUT", type=_PATH)
@click.option("-f", "--force", is_flag=True, help="Overwrite OUT.")
@_saying
def import_(source: Path, target: Path, force: bool, quiet: bool, as_json: bool) -> None:
    """Write a GGUF file of the Llama family as a Hugging Face folder in bf16, with config and tokenizer.

    MODEL.gguf may be smollm2, the bundled model.

    Example: squeeze import model.gguf my-model
    """
    from squeeze.errors import ModelError
    from squeeze.lm import models
    from squeeze.model.gguf import import_gguf

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
@click.argument("checkpoint", metavar="CKPT", type=_PATH)
@click.option("--text", required=True, metavar="FILE", type=_PATH, help="The text to predict.")
@click.option("--original", metavar="CKPT", type=_PATH, help="Also measure the distance from this model.")
@click.option("--window", default=1024, metavar="N", type=click.IntRange(2), help="Tokens seen at once (1024).")
@click.option("--stride", metavar="N", type=click.IntRange(1), help="Tokens between windows (default: the window).")
@click.option("--windows", metavar="N", type=click.IntRange(1), help="Stop after so many.")
@_computing
@_saying
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
    from squeeze.model import evaluate as evaluating

    use(threads)
    tokens = evaluating.read_tokens(text, original or checkpoint)
    model = evaluating.load_model(checkpoint, device=device)
    reference = evaluating.load_model(original, device=device) if original else None
    total = len(tokens) if windows is None else min(len(tokens), window + (windows - 1) * (stride or window))
    with bar(total, checkpoint.name, quiet) as tick:
        found = evaluating.evaluate(
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
@click.argument("source", metavar="IN", type=_PATH)
@click.argument("target", metavar="OUT", type=_PATH)
@click.option("--method", type=click.Choice(["gptq", "rtn"]), default="gptq", help="How codes are chosen (gptq).")
@click.option("--bits", type=click.Choice(["2", "3", "4", "8"]), default="4", help="Of a code (4).")
@click.option("--group-size", default=64, metavar="N", help="Inputs that share a scale (64); -1 for all of a row.")
@click.option("--asymmetric/--symmetric", default=False, help="With or without zero points (without).")
@click.option("--grid", default="integer", metavar="NAME", help="integer, nf4, mxfp4, nvfp4, ternary, ternary-planes.")
@click.option("--clip/--no-clip", default=True, help="Search each group's range for the least error (yes).")
@click.option("--act-order/--no-act-order", default=True, help="GPTQ: largest inputs first (yes).")
@click.option("--dynamic", is_flag=True, help="GPTQ: choose a group's scale when it is reached.")
@click.option("--damping", default=0.01, metavar="X", help="GPTQ: share of the mean diagonal added to it (0.01).")
@click.option("--refine", default=1, metavar="N", type=click.IntRange(0), help="GPTQ: rounds of refinement (1).")
@click.option("--outliers", default=0, metavar="N", type=click.IntRange(0), help="GPTQ: inputs kept as they are.")
@click.option("--rotate", is_flag=True, help="Rotate a Llama-type network first (QuaRot's R1 and R2).")
@click.option("--rotation-block", metavar="N", type=click.IntRange(2), help="Rotate in blocks of N.")
@click.option("--target-bits", metavar="X", type=float, help="Choose bits by matrix: X stored bits a weight in all.")
@click.option("--target-size", "target_bytes", metavar="SIZE", type=Size(), help="Or a whole checkpoint of SIZE.")
@click.option("--correction", default=0.5, metavar="X", type=click.FloatRange(0, 1), help="For earlier errors (0.5).")
@click.option("--format", "format_", default="compressed-tensors", metavar="NAME", help="How it is stored, see below.")
@click.option("--calibration", metavar="FILE", help="Text, .jsonl, a data set's name, or self (default).")
@click.option("--samples", default=128, metavar="N", type=click.IntRange(1), help="Calibration sequences (128).")
@click.option("--sequence-length", default=512, metavar="L", type=click.IntRange(2), help="Tokens of each (512).")
@click.option("--seed", default=0, metavar="N", help="Of what is chosen at random (0).")
@click.option("--ignore", multiple=True, metavar="PART", help="Leave modules with this in their names; repeatable.")
@click.option("--text", metavar="FILE", type=_PATH, help="Measure the quality on this text, before and after.")
@click.option("--windows", metavar="N", type=click.IntRange(1), help="Measure on so many windows of 1,024 tokens only.")
@click.option("--max-ppl-increase", metavar="PERCENT", type=float, help="Exit with 3 where perplexity rises by more.")
@click.option("--max-kl", metavar="NATS", type=float, help="Exit with 3 where the mean KL divergence is above.")
@click.option("--pack", "packed", is_flag=True, help="Code OUT without loss too: `squeeze unpack` restores it.")
@click.option("--resume", is_flag=True, help="Go on with a run that was stopped.")
@click.option("-f", "--force", is_flag=True, help="Overwrite OUT.")
@_computing
@_saying
def quantize(source: Path, target: Path, threads: int, quiet: bool, as_json: bool, **options: Any) -> None:
    """Quantise the weights of a model's folder, block by block, and report what it cost.

    Formats: compressed-tensors and gptq (which vLLM and transformers load), gptq_v2, squeeze (which holds every grid)
    and dense (bf16 again).

    Example: squeeze quantize my-model my-model-4bit --bits 4 --calibration wiki.txt
    """
    from squeeze.model.estimate import estimate
    from squeeze.packing import folder
    from squeeze.quant import api

    use(threads)
    allowed = {name: options.pop(name) for name in ("max_ppl_increase", "max_kl")}
    text, windows = options.pop("text"), options.pop("windows")
    if text is None and any(value is not None for value in allowed.values()):
        raise click.UsageError("--max-ppl-increase and --max-kl need --text")
    method = _method(options)
    if not quiet:
        calibrated = options["samples"] * options["sequence_length"] if method.needs_hessian else 0
        click.echo(str(estimate(source, calibrated, options["correction"] > 0, options["device"])), err=True)
    packed, force = options.pop("packed"), options.pop("force")
    folder.check_target(source, target, force)
    out = target.with_name(f".{target.name[:60]}.quantised") if packed else target
    with _steps(target.name, quiet) as progress:
        report = api.quantize(
            source,
            method,
            out=out,
            format=options.pop("format_"),
            overwrite=force or packed,
            progress=progress,
            **options,
        )
    if text is not None:
        api.measure(report, text, windows, options["device"])
    if packed:
        api.pack_result(report, target, force, threads or cores.available())
    click.echo(json.dumps(report.as_json()) if as_json else report.table())
    try:
        report.check(**allowed)
    except QualityError as error:
        raise _Worse(str(error)) from error


class _Worse(click.ClickException):
    """The result is there, but is not good enough."""

    exit_code = 3


def _method(options: dict[str, Any]) -> "GridMethod":
    """The method that options name, which are taken out of them."""
    from dataclasses import fields

    from squeeze.quant.api import METHODS

    chosen = METHODS[options.pop("method")]
    options["bits"], options["symmetric"] = int(options["bits"]), not options.pop("asymmetric")
    known = {entry.name for entry in fields(chosen)}
    given = {name: options.pop(name) for name in _OF_METHODS}
    return chosen(**{name: value for name, value in given.items() if name in known})


_OF_METHODS = (
    *("bits", "group_size", "symmetric", "grid", "clip"),
    *("act_order", "dynamic", "damping", "refine", "outliers"),
)


@contextmanager
def _steps(name: str, quiet: bool) -> Iterator[Callable[[str, int, int], None]]:
    """A bar on the terminal, if there is one, that names the block at work."""
    from tqdm import tqdm

    def step(what: str, done: int, total: int) -> None:
        if files.interrupted.is_set():
            raise KeyboardInterrupt
        shown.total = total
        shown.set_postfix_str(what, refresh=False)
        shown.update(done - shown.n)

    hidden = quiet or not sys.stderr.isatty()
    with tqdm(total=0, desc=name, unit=" blocks", leave=False, disable=hidden) as shown:
        yield step


@contextmanager
def bar(total: int | None, name: str, quiet: bool, unit: str = "") -> Iterator[Callable[[int], None]]:
    """A bar on the terminal, if there is one."""
    from tqdm import tqdm

    def tick(count: int) -> None:
        if files.interrupted.is_set():
            raise KeyboardInterrupt
        shown.update(count)

    hidden = quiet or not sys.stderr.isatty()
    with tqdm(total=total, desc=name, unit=unit, unit_scale=True, leave=False, disable=hidden) as shown:
        yield tick
