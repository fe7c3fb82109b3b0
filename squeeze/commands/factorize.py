"""The command factorize. Only click and the standard library are imported."""

from pathlib import Path
from typing import Any

import click

from squeeze.commands.model_options import Verdict, compressing, steps, use
from squeeze.commands.options import Size

_METHODS = (
    "plan",
    "modegpt",
    "slicegpt",
    "svd",
    "asvd",
    "whitened",
    "shared",
    "tt",
    "tucker",
    "ring",
    "monarch",
    "blast",
)


@click.command()
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
@click.option(
    "--outliers", default=0, metavar="N", type=click.IntRange(0), help="Entries of each matrix kept as they are."
)
@click.option("--bits", type=click.Choice(["2", "3", "4", "8"]), help="Quantise the factors, too, with GPTQ.")
@click.option("--group-size", default=64, metavar="N", help="--bits: inputs that share a scale (64).")
@click.option("--correction", default=0.5, metavar="X", type=click.FloatRange(0, 1), help="For earlier errors (0.5).")
@click.option("--heal", default=0.0, metavar="MINUTES", type=click.FloatRange(0), help="Fine-tune factors so long (0).")
@compressing
def factorize(source: Path, target: Path, threads: int, quiet: bool, as_json: bool, **options: Any) -> None:
    """Factorise the weights of a model's folder: low rank, fewer channels, tensor networks; and report what it cost.

    Example: squeeze factorize my-model my-model-90 --keep 0.9 --calibration wiki.txt
    """
    from squeeze.recipes import factorize as api

    use(threads)
    verdict = Verdict.taken_from(options)
    options["bits"] = int(options["bits"]) if options["bits"] else None
    options["families"] = tuple(name for name in options["families"].split(",") if name)
    with steps(target.name, quiet) as progress:
        report = api.factorize(source, out=target, overwrite=options.pop("force"), progress=progress, **options)
    verdict.measure(report, options["device"])
    verdict.conclude(report, as_json, quiet)
