"""`squeeze unpack`."""

from pathlib import Path
from typing import Any

import click

import squeeze
from squeeze.commands import options
from squeeze.commands.declared import base
from squeeze.commands.reporting import reporting
from squeeze.system.limits import Limits


@click.command()
@options.converting(options.PLACE)
@base
@options.limits
@options.coding
def unpack(source: Path, target: Path, force: bool, base: Path | None, limits: Limits, **common: Any) -> None:
    """Restore a packed checkpoint, byte for byte.

    Example: squeeze unpack my-model-packed my-model
    """
    with reporting(source, target, "unpack", **common) as (shared, done):
        done(squeeze.unpack(source, target, overwrite=force, base=base, limits=limits, **shared))
