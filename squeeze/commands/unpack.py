"""`squeeze unpack` and `squeeze verify`."""

from pathlib import Path
from typing import Any

import click

import squeeze
from squeeze.commands import cluster as clusters, options, values
from squeeze.commands.declared import base
from squeeze.commands.reporting import reporting
from squeeze.commands.sections import command
from squeeze.system.limits import Limits


@command()
@options.converting(values.PLACE)
@base
@options.limits
@clusters.with_manifest
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

    \b
    Example: squeeze unpack my-model-packed my-model
    """
    settings: dict[str, Any] = {"source": source, "target": target, "overwrite": force, "base": base, "limits": limits}
    if manifest and not cluster:
        raise click.UsageError("--manifest belongs to --cluster: give both")
    with reporting(source, target, "unpack", **common) as (shared, done):
        if cluster:
            shared["threads"] = common["threads"] or 1
            done(clusters.checkpoint("unpack", cluster, manifest, **settings, **shared))
        else:
            done(squeeze.unpack(**settings, **shared))


@command()
@click.argument("source", metavar="IN", type=values.PLACE)
@base
@options.limits
@clusters.cluster
@options.report
@options.coding
def verify(source: Path, base: Path | None, limits: Limits, cluster: str | None, **common: Any) -> None:
    """Check that a packed checkpoint decodes to its checksums.

    \b
    Example: squeeze verify my-model-packed

    Nothing is written.
    """
    with reporting(source, None, "verify", **common) as (shared, done):
        if cluster:
            shared["threads"] = common["threads"] or 1
            done(clusters.checkpoint("verify", cluster, None, source=source, base=base, limits=limits, **shared))
        else:
            done(squeeze.verify(source, base=base, limits=limits, **shared))
