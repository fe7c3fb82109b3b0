"""`squeeze apply`."""

import json
from pathlib import Path
from typing import Any

import click

from squeeze.commands import options
from squeeze.commands.echo import echo
from squeeze.commands.models import Verdict, use
from squeeze.commands.progress import steps
from squeeze.commands.reporting import write_page


@click.command()
@click.argument("recipe", metavar="RECIPE.yaml", type=options.PATH)
@options.measuring
@options.resume
@options.converting()
@options.computing
@options.report
@options.saying
def apply(
    recipe: Path,
    source: Path,
    target: Path,
    threads: int,
    quiet: bool,
    as_json: bool,
    **params: Any,
) -> None:
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
    verdict = Verdict.taken_from(params)
    params |= {"text": verdict.text, "windows": verdict.windows, "tasks": verdict.tasks}
    with steps(target.name, quiet=quiet, as_json=as_json) as progress:
        reports = run(recipe, source, target, overwrite=params.pop("force"), progress=progress, **params)
    write_page(verdict.page, [report.as_json() for report in reports])
    if as_json:
        click.echo(json.dumps([report.as_json() for report in reports]))
    else:
        echo("\n\n".join(report.table() for report in reports))
    verdict.judge(reports[-1])
