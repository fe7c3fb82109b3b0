"""`squeeze pack`."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import squeeze
from squeeze.commands import clustered, options
from squeeze.commands.declared import OperationCommand, given
from squeeze.commands.following import run
from squeeze.commands.reporting import reporting
from squeeze.options import values_of
from squeeze.recipes.options import PACK
from squeeze.system import storage

if TYPE_CHECKING:
    from squeeze.commands.progress import Tick

_FOLLOWING = ("interval", "until_idle", "keep", "remove_source")
_SECONDS = options.Time()


@click.command(cls=OperationCommand, operation=PACK)
@click.option(
    "--follow",
    is_flag=True,
    help="Pack each checkpoint of the run in folder IN into folder OUT, as soon as it is whole.",
)
@click.option("--interval", metavar="S", type=_SECONDS, help="--follow: seconds between two looks (10).")
@click.option("--until-idle", metavar="S", type=_SECONDS, help="--follow: end when nothing came for so many seconds.")
@click.option("--keep", metavar="N", type=click.IntRange(1), help="--follow: packed checkpoints that stay (all).")
@click.option(
    "--remove-source",
    is_flag=True,
    help="--follow: delete a verified checkpoint once a later one is packed.",
)
@options.converting(options.PLACE)
@clustered.option
@options.report
@options.coding
def pack(source: Path, target: Path, follow: bool, cluster: str | None, manifest: Path | None, **params: Any) -> None:
    """Pack a checkpoint without loss: a file of safetensors or of torch, or a model's folder.

    A run that was stopped goes on from there when it is started again.

    Example: squeeze pack my-model my-model-packed
    """
    settings = values_of(PACK.read(given(PACK, params)).settings)
    following = {name: value for name in _FOLLOWING if (value := params.pop(name))}
    if manifest and not cluster:
        raise click.UsageError("--manifest belongs to --cluster: give both")
    if follow:
        if cluster:
            raise click.UsageError("--follow packs on this machine: leave out --cluster")
        if storage.remote(source) or storage.remote(target):
            raise click.UsageError("--follow takes folders on this machine, and this is a URL")
        if params.pop("page"):
            raise click.UsageError("--report is of one checkpoint: leave out --follow")
        run(source, target, settings, following, params)
        return
    if following:
        raise click.UsageError("--interval, --until-idle, --keep and --remove-source go with --follow")
    force, common = params.pop("force"), params
    with reporting(source, target, "pack", **common) as (shared, done):
        if cluster:
            shared |= {"threads": common["threads"] or 1, "source": source, "target": target, "overwrite": force}
            done(clustered.checkpoint("pack", cluster, manifest, **settings, **shared))
            return
        told = _ratio(shared["progress"])
        done(squeeze.pack(source, target, overwrite=force, told=told, **settings, **shared))


def _ratio(tick: "Tick") -> Callable[[int, int], None]:
    """A function to call with the raw and coded bytes of each tensor: `tick` says what share those so far take."""
    sums = [0, 0]

    def add(raw: int, coded: int) -> None:
        sums[:] = sums[0] + raw, sums[1] + coded
        if sums[0]:
            tick.say(f"{100 * sums[1] / sums[0]:.1f} %")

    return add
