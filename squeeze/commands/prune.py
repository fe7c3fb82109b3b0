"""The commands on pruned models: prune, apply and advise. Only click and the standard library are imported."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from squeeze.commands.model_options import (
    PATH,
    Verdict,
    compressing,
    computing,
    converting,
    measuring,
    say_estimate,
    saying,
    steps,
    use,
)

if TYPE_CHECKING:
    from squeeze.prune.method import PruningMethod


@click.command()
@click.option("--pattern", default="2:4", metavar="P", help="N:M (2:4), a share such as 50%, or units such as 16x50%.")
@click.option(
    "--method", type=click.Choice(["sparsegpt", "wanda", "magnitude"]), default="sparsegpt", help="(sparsegpt)"
)
@click.option("--damping", default=0.01, metavar="X", help="SparseGPT: share of the mean diagonal added to it (0.01).")
@click.option("--refine", default=4, metavar="N", type=click.IntRange(0), help="SparseGPT: rounds over masks (4).")
@click.option("--reconstruct", default=8, metavar="N", type=click.IntRange(0), help="SparseGPT: steps at the end (8).")
@click.option("--permute/--no-permute", default=False, help="Reorder channels first, which keeps the function.")
@click.option(
    "--bits", type=click.Choice(["2", "3", "4", "8"]), help="Also quantise the weights kept, in the same pass."
)
@click.option("--group-size", default=128, metavar="N", help="Inputs that share a scale (128); -1 for all of a row.")
@click.option("--keep-zeros", is_flag=True, help="IN is pruned already, and dense; quantise what is left of it.")
@click.option("--slim", is_flag=True, help="Add low-rank adapters, quantised too (SLiM).")
@click.option("--rank", default=0.1, metavar="X", help="SLiM: rank of the adapters as a share of the inputs (0.1).")
@click.option("--dense", is_flag=True, help="Store zeros like all else, for any loader.")
@click.option("--correction", default=0.3, metavar="X", type=click.FloatRange(0, 1), help="For earlier errors (0.3).")
@click.option("--recover", default=0.0, metavar="MINUTES", type=click.FloatRange(0), help="Retrain so long (0).")
@compressing
def prune(source: Path, target: Path, threads: int, quiet: bool, as_json: bool, **options: Any) -> None:
    """Prune the weights of a model's folder, block by block, and report what it cost.

    Stored are the weights kept and their mask, both entropy-coded, which transformers loads with
    squeeze.integrations.transformers; --dense stores zeros too, for every loader.

    Example: squeeze prune my-model my-model-24 --pattern 2:4 --calibration wiki.txt
    """
    from squeeze.recipes import prune as api

    use(threads)
    verdict, method = Verdict.taken_from(options), _method(options)
    if not quiet:
        say_estimate(source, options, method.needs_hessian)
    with steps(target.name, quiet) as progress:
        report = api.prune(source, method, out=target, overwrite=options.pop("force"), progress=progress, **options)
    verdict.measure(report, options["device"])
    verdict.conclude(report, as_json, quiet)


@click.command()
@click.argument("recipe", metavar="RECIPE.yaml", type=PATH)
@measuring
@click.option("--resume", is_flag=True, help="Go on with a run that was stopped.")
@converting
@computing
@saying
def apply(recipe: Path, source: Path, target: Path, threads: int, quiet: bool, as_json: bool, **options: Any) -> None:
    """Do what a recipe says to a model's folder: prune, quantize, factorize, recover and pack, in few passes.

    \b
    A recipe is YAML:
      calibration: wiki.txt
      steps:
        - prune: {pattern: "2:4", permute: true}
        - quantize: {bits: 4, group_size: 128}
        - pack

    Example: squeeze apply recipe.yaml my-model my-model-small
    """
    from squeeze.recipes.apply import apply as run

    use(threads)
    with steps(target.name, quiet) as progress:
        reports = run(recipe, source, target, overwrite=options.pop("force"), progress=progress, **options)
    if as_json:
        click.echo(json.dumps([report.as_json() for report in reports]))
    else:
        click.echo("\n\n".join(report.table() for report in reports))


@click.command()
@click.argument("checkpoint", metavar="CKPT", type=PATH)
@click.option(
    "--device", default="cpu", metavar="NAME", help="cpu (default), cuda, h200, h100, a100, l40s, rtx 4090, l4."
)
@click.option("--batch", default=1, metavar="N", type=click.IntRange(1), help="Tokens at a time (1).")
@click.option("--bits", default="16", type=click.Choice(["16", "4"]), help="Of the values kept (16).")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def advise(checkpoint: Path, device: str, batch: int, bits: str, as_json: bool) -> None:
    """Predict layer by layer whether 2:4 is faster than dense weights on a device, before anything is pruned.

    Example: squeeze advise my-model --device h200 --batch 8
    """
    from squeeze.recipes.advise import advise as predict

    found = predict(checkpoint, device, batch, int(bits))
    click.echo(json.dumps(found.as_json()) if as_json else found.table())


def _method(options: dict[str, Any]) -> "PruningMethod":
    """The method that options name, which are taken out of them."""
    from squeeze.recipes import prune as api

    given = {name: options.pop(name) for name in _OF_METHODS}
    given["bits"] = None if given["bits"] is None else int(given["bits"])
    return api.make_method(given.pop("method"), **given)


_OF_METHODS = (
    *("method", "pattern", "damping", "refine", "reconstruct", "bits", "group_size"),
    *("keep_zeros", "slim", "rank"),
)
