"""`squeeze experts`: a mixture of experts with fewer experts, or with fewer of them for each token.

The work is in recipes/experts.py.
"""

from pathlib import Path
from typing import Any

import click

import squeeze
from squeeze.commands import options
from squeeze.commands.declared import OperationCommand, options_given
from squeeze.commands.models import Verdict, use
from squeeze.commands.progress import steps
from squeeze.recipes.options import EXPERTS


@click.command(cls=OperationCommand, operation=EXPERTS)
@options.measuring
@options.converting()
@options.computing
@options.report
@options.saying
def experts(source: Path, target: Path, force: bool, threads: int, quiet: bool, as_json: bool, **params: Any) -> None:
    """Reduce the experts of a mixture of experts, and report the loss.

    \b
    Example: squeeze experts my-mixture my-mixture-half --keep 0.5 --calibration wiki.txt
             squeeze experts my-mixture my-mixture-fast --active 4 --calibration wiki.txt

    Every layer keeps the same share of its experts, chosen on the calibration text. The others are left out, or merged
    into these. The kept experts are then fitted to what the layer computed before. OUT is a plain checkpoint that any
    loader reads. With --active a token uses fewer experts.
    """
    use(threads, params["device"])
    verdict, given_options = Verdict.taken_from(params), options_given(EXPERTS, params)
    with steps(target.name, quiet=quiet, as_json=as_json) as progress:
        report = squeeze.experts(source, out=target, overwrite=force, progress=progress, **given_options, **params)
    verdict.measure(report, params["device"], quiet, as_json)
    verdict.conclude(report, as_json, quiet)
