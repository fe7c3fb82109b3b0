"""The commands on factorised models: factorize and densify. Only click and the standard library are imported."""

import json
from pathlib import Path
from typing import Any

import click

from squeeze.errors import QualityError
from squeeze.model.commands import Worse, computing, saying, steps, use
from squeeze.options import Size

_PATH = click.Path(path_type=Path)
_METHODS = ("plan", "svd", "asvd", "whitened", "tt", "tucker", "ring", "monarch", "blast")


@click.command()
@click.argument("source", metavar="IN", type=_PATH)
@click.argument("target", metavar="OUT", type=_PATH)
@click.option(
    "--keep",
    default=0.9,
    metavar="X",
    type=click.FloatRange(0, 1, min_open=True),
    help="Share of the blocks' stored weights (0.9).",
)
@click.option(
    "--target-size", "target_bytes", metavar="SIZE", type=Size(), help="Or a whole checkpoint of SIZE (plan)."
)
@click.option(
    "--method", type=click.Choice(_METHODS), default="plan", help="One for all, or plan (default): chosen by matrix."
)
@click.option("--families", default="", metavar="LIST", help="Others that plan tries, such as tt,monarch; slow.")
@click.option("--pairs/--no-pairs", default=True, help="plan: also fewer channels between matrices (yes).")
@click.option("--outliers", default=0, metavar="N", type=click.IntRange(0), help="Entries of each matrix kept exactly.")
@click.option("--bits", type=click.Choice(["2", "3", "4", "8"]), help="Quantise the factors, too, with GPTQ.")
@click.option("--group-size", default=64, metavar="N", help="--bits: inputs that share a scale (64).")
@click.option("--correction", default=0.5, metavar="X", type=click.FloatRange(0, 1), help="For earlier errors (0.5).")
@click.option("--calibration", metavar="FILE", help="Text, .jsonl, a data set's name, or self (default).")
@click.option("--samples", default=128, metavar="N", type=click.IntRange(1), help="Calibration sequences (128).")
@click.option("--sequence-length", default=512, metavar="L", type=click.IntRange(2), help="Tokens of each (512).")
@click.option("--heal", default=0.0, metavar="MINUTES", type=click.FloatRange(0), help="Fine-tune factors so long (0).")
@click.option("--seed", default=0, metavar="N", help="Of what is chosen at random (0).")
@click.option("--ignore", multiple=True, metavar="PART", help="Leave modules with this in their names; repeatable.")
@click.option("--text", metavar="FILE", type=_PATH, help="Measure the quality on this text, before and after.")
@click.option("--windows", metavar="N", type=click.IntRange(1), help="Measure on so many windows of 1,024 tokens only.")
@click.option("--max-ppl-increase", metavar="PERCENT", type=float, help="Exit with 3 where perplexity rises by more.")
@click.option("--max-kl", metavar="NATS", type=float, help="Exit with 3 where the mean KL divergence is above.")
@click.option("--resume", is_flag=True, help="Go on with a run that was stopped.")
@click.option("-f", "--force", is_flag=True, help="Overwrite OUT.")
@computing
@saying
def factorize(source: Path, target: Path, threads: int, quiet: bool, as_json: bool, **options: Any) -> None:
    """Factorise the weights of a model's folder: low rank, fewer channels, tensor networks; and report what it cost.

    Example: squeeze factorize my-model my-model-90 --keep 0.9 --calibration wiki.txt
    """
    from squeeze.factor import api
    from squeeze.quant.api import measure

    use(threads)
    allowed = {name: options.pop(name) for name in ("max_ppl_increase", "max_kl")}
    text, windows = options.pop("text"), options.pop("windows")
    if text is None and any(value is not None for value in allowed.values()):
        raise click.UsageError("--max-ppl-increase and --max-kl need --text")
    options["bits"] = int(options["bits"]) if options["bits"] else None
    options["families"] = tuple(name for name in options["families"].split(",") if name)
    with steps(target.name, quiet) as progress:
        report = api.factorize(source, out=target, overwrite=options.pop("force"), progress=progress, **options)
    if text is not None:
        measure(report, text, windows, options["device"])
    click.echo(json.dumps(report.as_json()) if as_json else report.table())
    try:
        report.check(**allowed)
    except QualityError as error:
        raise Worse(str(error)) from error


@click.command()
@click.argument("source", metavar="IN", type=_PATH)
@click.argument("target", metavar="OUT", type=_PATH)
@click.option("-f", "--force", is_flag=True, help="Overwrite OUT.")
@saying
def densify(source: Path, target: Path, force: bool, quiet: bool, as_json: bool) -> None:
    """Multiply the factors of a factorised folder out, so that any other tool reads it.

    Example: squeeze densify my-model-90 my-model-90-dense
    """
    from squeeze.factor.api import densify as run

    size = run(source, target, overwrite=force)
    if as_json:
        click.echo(json.dumps({"command": "densify", "input": str(source), "output": str(target), "bytes": size}))
    elif not quiet:
        click.echo(f"{target}: {size} bytes of weights", err=True)
