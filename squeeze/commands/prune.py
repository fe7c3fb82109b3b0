"""`squeeze prune`."""

from pathlib import Path
from typing import Any

import click

from squeeze.commands import clustered, options
from squeeze.commands.declared import OperationCommand, given
from squeeze.commands.models import Verdict, say_estimate, use
from squeeze.commands.progress import steps
from squeeze.recipes.options import PRUNE


@click.command(cls=OperationCommand, operation=PRUNE)
@clustered.cluster
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
    """Prune the weights of a model's folder, block by block, and report what it cost.

    Stored are the weights kept and their mask, both entropy-coded, which transformers loads with
    squeeze.integrations.transformers; --dense stores zeros too, for every loader.

    Example: squeeze prune my-model my-model-24 --pattern 2:4 --calibration wiki.txt
    """
    from squeeze.recipes import prune as api, run

    use(threads or 1 if cluster else threads, params["device"])
    verdict, asked_for = Verdict.taken_from(params), given(PRUNE, params)
    asked, common = run.read(PRUNE, None, asked_for)
    method = api.made(asked)
    if not quiet:
        say_estimate(source, common, asked.settings.correction, params["device"], method.needs_hessian)
    with (
        clustered.workers(cluster, threads) as workers,
        steps(target.name, quiet=quiet, as_json=as_json) as progress,
    ):
        shared: dict[str, Any] = {"overwrite": force, "progress": progress, "workers": workers}
        report = api.prune(source, out=target, **shared, **asked_for, **params)
    verdict.measure(report, params["device"], quiet, as_json)
    verdict.conclude(report, as_json, quiet)
