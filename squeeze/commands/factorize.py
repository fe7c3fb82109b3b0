"""`squeeze factorize`."""

from pathlib import Path
from typing import Any

import click

from squeeze.commands import options
from squeeze.commands.declared import OperationCommand, given
from squeeze.commands.models import Verdict, use
from squeeze.commands.progress import steps
from squeeze.recipes.options import FACTORIZE


@click.command(cls=OperationCommand, operation=FACTORIZE)
@options.compressing
def factorize(source: Path, target: Path, force: bool, threads: int, quiet: bool, as_json: bool, **params: Any) -> None:
    """Factorise the weights of a model's folder: low rank, fewer channels, tensor networks; and report what it cost.

    Example: squeeze factorize my-model my-model-90 --keep 0.9 --calibration wiki.txt
    """
    from squeeze.recipes import factorize as api

    use(threads, params["device"])
    verdict, asked_for = Verdict.taken_from(params), given(FACTORIZE, params)
    with steps(target.name, quiet=quiet, as_json=as_json) as progress:
        report = api.factorize(source, out=target, overwrite=force, progress=progress, **asked_for, **params)
    verdict.measure(report, params["device"], quiet, as_json)
    verdict.conclude(report, as_json, quiet)
