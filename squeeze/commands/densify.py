"""`squeeze densify`."""

import json
from pathlib import Path

import click

import squeeze
from squeeze.checkpoint.other_files import left_out
from squeeze.commands import options
from squeeze.commands.echo import echo
from squeeze.system.limits import Limits


@click.command()
@options.converting()
@options.base
@options.limits
@options.saying
def densify(
    source: Path, target: Path, base: Path | None, force: bool, limits: Limits, quiet: bool, as_json: bool
) -> None:
    """Write every weight of a folder dense, so that any other tool reads it.

    IN is what `squeeze prune`, `factorize`, `quantize` or `delta` wrote, packed or not, or a checkpoint of GPTQ or
    compressed-tensors.

    Example: squeeze densify my-model-24 my-model-dense
    """
    size = squeeze.densify(source, target, overwrite=force, base=base, limits=limits)
    notes = left_out(source)
    if as_json:
        files = {"input": str(source), "output": str(target)}
        click.echo(json.dumps({"command": "densify", **files, "bytes": size, "left_out": notes}))
    elif not quiet:
        for line in notes:
            echo(f"{source}: {line}", err=True)
        echo(f"{target}: {size} bytes of weights", err=True)
