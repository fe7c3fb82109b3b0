"""`squeeze apply`."""

import json
from collections.abc import Sequence
from contextlib import closing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from squeeze.commands import cluster as clusters, options, values
from squeeze.commands.echo import echo_lines, explain
from squeeze.commands.models import Verdict, use
from squeeze.commands.progress import bar, steps
from squeeze.commands.reporting import write_page
from squeeze.commands.sections import command
from squeeze.errors import SqueezeError
from squeeze.system import machine

if TYPE_CHECKING:
    from squeeze.engine.report import Report


@command()
@click.argument("paths", metavar="RECIPE.yaml... [IN OUT]", nargs=-1, required=True, type=values.PATH)
@click.option(
    "--models",
    metavar="DIR",
    multiple=True,
    type=values.PATH,
    help="Model to apply every recipe to; repeatable; a table compares the results",
)
@click.option("-o", "--output", metavar="DIR", type=values.PATH, help="Folder for the results (--models only)")
@click.option("--calibration", metavar="FILE", type=values.PATH, help="Calibration text, instead of the recipe's")
@clusters.cluster
@options.measuring
@options.resume
@options.force()
@options.computing
@options.report
@options.saying
def apply(
    paths: tuple[Path, ...],
    models: tuple[Path, ...],
    output: Path | None,
    cluster: str | None,
    threads: int,
    quiet: bool,
    as_json: bool,
    **params: Any,
) -> None:
    """Run a recipe of steps, such as prune, quantize and pack.

    \b
    Example: squeeze apply recipe.yaml my-model my-model-small
             squeeze apply a.yaml b.yaml --models my-model --text wiki.txt -o small

    \b
    A recipe is YAML:
      calibration: wiki.txt
      steps:
        - prune: {pattern: "2:4", permute: true}
        - quantize: {bits: 4, group_size: 128}
        - pack
    """
    verdict = Verdict.taken_from(params)
    verdict.check_inputs("apply")
    if models:
        if output is None:
            raise click.UsageError("--models needs -o DIR, where the folders go")
        if params.pop("resume"):
            raise click.UsageError("with --models what is done is left out by itself: leave out --resume")
        _sweep(paths, models, output, cluster, verdict, threads, quiet, as_json, **params)
        return
    if output is not None or cluster is not None:
        raise click.UsageError("-o and --cluster go with --models")
    if len(paths) != 3:
        raise click.UsageError("give RECIPE.yaml, IN and OUT; or recipes, --models and -o")
    from squeeze.recipes.apply import apply as run

    recipe, source, target = paths
    use(threads, params["device"])
    params |= {"text": verdict.text, "windows": verdict.windows, "tasks": verdict.tasks}
    with steps(target.name, quiet=quiet, as_json=as_json) as progress:
        reports = run(recipe, source, target, overwrite=params.pop("force"), progress=progress, **params)
    write_page(verdict.page, [report.as_json() for report in reports])
    if as_json:
        click.echo(json.dumps([report.as_json() for report in reports]))
    else:
        echo_lines("\n\n".join(report.table() for report in reports))
    verdict.judge(reports[-1])


def _sweep(
    recipes: Sequence[Path],
    models: Sequence[Path],
    folder: Path,
    cluster: str | None,
    verdict: Verdict,
    threads: int,
    quiet: bool,
    as_json: bool,
    *,
    calibration: Path | None,
    force: bool,
    device: str,
) -> None:
    """Apply every recipe to every model, print a table, and write a page. After an error the other pairs follow."""
    from squeeze.recipes import sweep

    per_call = threads or (1 if cluster else machine.available_cores())
    use(per_call, "cpu" if cluster else device)  # a worker's device is its own
    pairs = sweep.pairs(recipes, models, folder)
    folder.mkdir(exist_ok=True)
    settings = sweep.Settings(calibration, verdict.text, verdict.windows, verdict.tasks, force, device, per_call)
    finished: list[tuple[sweep.Pair, Report]] = []
    with (
        closing(clusters.connected(cluster)) if cluster else nullcontext() as engine,
        bar("apply", len(pairs), unit="", quiet=quiet, as_json=as_json) as tick,
    ):
        for pair, report, error in sweep.sweep(pairs, settings, engine):
            tick(1)
            if report is None:
                click.echo(f"Error: {explain(SqueezeError(error), str(pair.target))}", err=True)
                continue
            finished.append((pair, report))
            if as_json:
                click.echo(json.dumps({"recipe": str(pair.recipe), **report.as_json()}))
    if finished:
        write_page(verdict.page, [report.as_json() for _, report in finished])
        if not as_json and not quiet:
            echo_lines(sweep.table(finished))
    if len(finished) < len(pairs):
        raise click.exceptions.Exit(1)
    for _, report in finished:
        verdict.judge(report)
