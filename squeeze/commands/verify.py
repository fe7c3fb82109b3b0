"""`squeeze verify`."""

from pathlib import Path
from typing import Any

import click

import squeeze
from squeeze.commands import clustered, options
from squeeze.commands.declared import base
from squeeze.commands.reporting import reporting
from squeeze.system.limits import Limits


@click.command()
@click.argument("source", metavar="IN", type=options.PLACE)
@base
@options.limits
@clustered.cluster
@options.report
@options.coding
def verify(source: Path, base: Path | None, limits: Limits, cluster: str | None, **common: Any) -> None:
    """Decode a packed checkpoint, compare every checksum, and write nothing.

    Example: squeeze verify my-model-packed
    """
    with reporting(source, None, "verify", **common) as (shared, done):
        if cluster:
            shared["threads"] = common["threads"] or 1
            done(clustered.checkpoint("verify", cluster, None, source=source, base=base, limits=limits, **shared))
        else:
            done(squeeze.verify(source, base=base, limits=limits, **shared))
