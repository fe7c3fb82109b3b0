"""Options of runs on a Ray cluster, and the connection to one."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from squeeze.commands import options, values
from squeeze.commands.echo import echo, explain
from squeeze.commands.sections import in_section
from squeeze.errors import SqueezeError

if TYPE_CHECKING:
    from squeeze.cluster.engine import Engine
    from squeeze.cluster.operations import FileResult
    from squeeze.engine.sharding import Workers
    from squeeze.packing.pack import Totals

__all__ = ["checkpoint", "cluster", "connected", "with_manifest", "workers"]

_PATIENCE = f"{__name__}.patience"  # in the context's meta


def _keep(ctx: click.Context, param: click.Parameter, value: float) -> None:
    ctx.meta[_PATIENCE] = value


cluster = in_section(
    options.CLUSTER,
    click.option(
        "--cluster",
        metavar="NAME",
        help="Run on a Ray cluster: auto, local or ray://HOST:PORT",
    ),
    click.option(
        "--cluster-wait",
        metavar="S",
        type=values.Time(zero=True),
        default=600.0,
        expose_value=False,
        callback=_keep,
        help="Seconds to wait for a machine that is large enough; default: 600",
    ),
)
with_manifest = in_section(
    options.CLUSTER,
    cluster,
    click.option(
        "--manifest",
        type=values.PATH,
        metavar="FILE",
        help="File that notes finished work; the same command continues from it",
    ),
)


def connected(cluster: str | None) -> "Engine[Any]":
    """Connect to a cluster. Raises UsageError without an address."""
    if cluster is None:
        raise click.UsageError("--manifest belongs to --cluster: give both")
    from squeeze.cluster.engine import connect  # 3 ms, which every compress would wait for

    engine: Engine[Any] = connect(cluster)
    engine.warn = lambda sentence: echo(f"Warning: {sentence}", err=True)
    engine.patience = click.get_current_context().meta[_PATIENCE]
    return engine


@contextmanager
def workers(cluster: str | None, threads: int) -> Iterator["Workers | None"]:
    """Yield the workers of a cluster for the blocks of a checkpoint, or None without a cluster.

    Args:
        cluster: The address of the cluster, or None.
        threads: Threads of a worker; 0 means one.
    """
    if cluster is None:
        yield None
        return
    from squeeze.cluster.calibrating import ClusterWorkers

    with closing(connected(cluster)) as engine:
        yield ClusterWorkers(engine, threads or 1)


def checkpoint(operation: str, cluster: str, manifest: Path | None, **given: Any) -> "Totals":
    """Pack, unpack or verify a checkpoint on a cluster, and print each error while other files go on.

    Args:
        operation: "pack", "unpack" or "verify".
        cluster: The address of the cluster.
        manifest: The file that notes finished work, or None.
        given: Arguments of the operation.
    """
    from squeeze.cluster.checkpoints import run as checkpoints

    def failed(done: "FileResult") -> None:
        echo(f"Error: {explain(SqueezeError(done.error), str(done.file.source))}", err=True)

    if operation != "verify":
        given["manifest"] = manifest
    with closing(connected(cluster)) as engine:
        totals: Totals = getattr(checkpoints, operation)(engine, failed=failed, **given)
    return totals
