"""The command that trains a compressed model towards its original: recover."""

from pathlib import Path
from typing import Any

import click

import squeeze
from squeeze.commands import options, values
from squeeze.commands.declared import OperationCommand, options_given
from squeeze.commands.models import Verdict, use
from squeeze.commands.progress import steps
from squeeze.recipes.options import RECOVER_FOLDER

__all__ = ["recover"]


@click.command(cls=OperationCommand, operation=RECOVER_FOLDER)
@click.option("--base", required=True, metavar="PATH", type=values.PATH, help="Folder of the dense original")
@options.compressing
def recover(
    source: Path,
    target: Path,
    base: Path,
    force: bool,
    threads: int,
    quiet: bool,
    as_json: bool,
    **params: Any,
) -> None:
    """Train a quantised or pruned model towards its original.

    \b
    Example: squeeze recover my-model-2bit my-model-2bit-better --base my-model --calibration wiki.txt --minutes 20

    IN is a folder of quantize, prune, GPTQ or compressed-tensors, and OUT has the same format and size. Scales, norms
    and biases are trained, first block by block, then on the logits of BASE. Codes stay, or move to neighbours. The
    report says the divergence from BASE before and after.
    """
    use(threads, params["device"])
    verdict, given_options = Verdict.taken_from(params), options_given(RECOVER_FOLDER, params)
    verdict.check_inputs("recover")
    with steps(target.name, quiet=quiet, as_json=as_json) as progress:
        report = squeeze.recover(
            source, base=base, out=target, overwrite=force, progress=progress, **given_options, **params
        )
    verdict.measure(report, params["device"], quiet, as_json)
    verdict.conclude(report, as_json, quiet)
