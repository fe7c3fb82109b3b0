"""`squeeze unpack`."""

from pathlib import Path
from typing import Any

import click

import squeeze
from squeeze.commands import clustered, options
from squeeze.commands.declared import base
from squeeze.commands.reporting import reporting
from squeeze.system.limits import Limits


@click.command()
@options.converting(options.PLACE)
@base
@options.limits
@clustered.option
@options.report
@options.coding
def unpack(
    source: Path,
    target: Path,
    force: bool,
    base: Path | None,
    limits: Limits,
    cluster: str | None,
    manifest: Path | None,
    **common: Any,
) -> None:
    """Restore a packed checkpoint, byte for byte.

    Example: squeeze unpack my-model-packed my-model
    """
    settings: dict[str, Any] = {"source": source, "target": target, "overwrite": force, "base": base, "limits": limits}
    if manifest and not cluster:
        raise click.UsageError("--manifest belongs to --cluster: give both")
    with reporting(source, target, "unpack", **common) as (shared, done):
        if cluster:
            shared["threads"] = common["threads"] or 1
            done(clustered.checkpoint("unpack", cluster, manifest, **settings, **shared))
        else:
            done(squeeze.unpack(**settings, **shared))
