"""`squeeze pack`."""

from pathlib import Path
from typing import Any

import click

import squeeze
from squeeze.commands import options
from squeeze.commands.declared import OperationCommand, given
from squeeze.commands.reporting import reporting
from squeeze.options import values_of
from squeeze.recipes.options import PACK


@click.command(cls=OperationCommand, operation=PACK)
@options.converting
@options.coding
def pack(source: Path, target: Path, force: bool, threads: int, quiet: bool, as_json: bool, **params: Any) -> None:
    """Pack a checkpoint without loss: a safetensors file, or a model's folder.

    A run that was stopped goes on from there when it is started again.

    Example: squeeze pack my-model my-model-packed
    """
    try:
        asked = PACK.read(given(PACK, params))
        with reporting(source, target, "pack", threads=threads, quiet=quiet, as_json=as_json) as (shared, done):
            done(squeeze.pack(source, target, overwrite=force, **values_of(asked.settings), **shared))
    except KeyboardInterrupt:
        click.echo("Stopped; the same command goes on from here.", err=True)
        raise
