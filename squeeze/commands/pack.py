"""`squeeze pack`, and with --follow the checkpoints of a training run as they appear."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import squeeze
from squeeze.commands import cluster as clusters, options, values
from squeeze.commands.declared import OperationCommand, options_given
from squeeze.commands.echo import echo
from squeeze.commands.reporting import reporting
from squeeze.commands.sections import in_section
from squeeze.errors import escaped
from squeeze.options import values_of
from squeeze.recipes.options import PACK
from squeeze.system import machine, storage

if TYPE_CHECKING:
    from squeeze.commands.progress import Tick
    from squeeze.packing.follow import Event


_FOLLOWING = ("interval", "until_idle", "keep", "remove_source")
_SECONDS = values.Time()
_FOLLOW = in_section(
    "Training runs",
    click.option(
        "--follow",
        is_flag=True,
        help="Pack each new checkpoint of the run in folder IN into folder OUT",
    ),
    click.option("--interval", metavar="S", type=_SECONDS, help="Seconds between two checks of IN; default: 10"),
    click.option(
        "--until-idle",
        metavar="S",
        type=_SECONDS,
        help="Seconds without a new checkpoint after which it ends; default: never",
    ),
    click.option("--keep", metavar="N", type=click.IntRange(1), help="Packed checkpoints to keep; default: all"),
    click.option(
        "--remove-source",
        is_flag=True,
        help="Delete a verified checkpoint after a later one is packed",
    ),
)


@click.command(cls=OperationCommand, operation=PACK)
@_FOLLOW
@options.converting(values.PLACE)
@clusters.with_manifest
@options.report
@options.coding
def pack(source: Path, target: Path, follow: bool, cluster: str | None, manifest: Path | None, **params: Any) -> None:
    """Compress a checkpoint losslessly.

    \b
    Example: squeeze pack my-model my-model-packed
             squeeze pack --base my-model my-tuned my-tuned-packed

    IN is a file of safetensors or torch, or a model's folder. A stopped run continues if the same command runs again.
    """
    settings = values_of(PACK.read(options_given(PACK, params)).settings)
    following = {name: value for name in _FOLLOWING if (value := params.pop(name))}
    if manifest and not cluster:
        raise click.UsageError("--manifest belongs to --cluster: give both")
    if follow:
        if cluster:
            raise click.UsageError("--follow packs on this machine: leave out --cluster")
        if storage.remote(source) or storage.remote(target):
            raise click.UsageError("--follow takes folders on this machine, got a URL")
        if params.pop("page"):
            raise click.UsageError("--report shows one checkpoint: leave out --follow")
        _follow(source, target, settings, following, params)
        return
    if following:
        raise click.UsageError("--interval, --until-idle, --keep and --remove-source go with --follow")
    force, common = params.pop("force"), params
    with reporting(source, target, "pack", **common) as (shared, done):
        if cluster:
            shared |= {"threads": common["threads"] or 1, "source": source, "target": target, "overwrite": force}
            done(clusters.checkpoint("pack", cluster, manifest, **settings, **shared))
            return
        show = _ratio(shared["progress"])
        done(squeeze.pack(source, target, overwrite=force, on_tensor=show, **settings, **shared))


def _ratio(tick: "Tick") -> Callable[[int, int], None]:
    """Return a function that takes the raw and coded bytes of each tensor, and shows the ratio so far."""
    sums = [0, 0]

    def add(raw: int, coded: int) -> None:
        sums[:] = sums[0] + raw, sums[1] + coded
        if sums[0]:
            tick.say(f"{100 * sums[1] / sums[0]:.1f} %")

    return add


_WORDS = {
    "removed": "{name}: deleted; `squeeze unpack` restores it",
    "dropped": "{name}: its packed form is deleted",
    "left": "Warning: {name}: not deleted: {why}",
    "failed": "Error: {name}: {why}",
    "damaged": "Error: {name}: its packed form does not decode; the next checkpoint is packed whole: {why}",
}


def _follow(
    source: Path, target: Path, settings: dict[str, Any], following: dict[str, Any], common: dict[str, Any]
) -> None:
    """Pack the checkpoints that appear in a folder, and print a line for each.

    Args:
        source: The folder of the run.
        target: The folder of the packed checkpoints.
        settings: The options of packing.
        following: The options of following.
        common: The options of every command.
    """
    from squeeze.packing.follow import DAMAGED, FAILED, PACKED, Follow

    if settings.pop("base", None) is not None or common["force"]:
        raise click.UsageError("--follow chooses bases itself and overwrites nothing: leave out --base and --force")
    threads = common["threads"] or machine.available_cores()
    follow = Follow(source=source, target=target, threads=threads, **settings, **following)
    packed, failed = 0, False
    try:
        for event in follow.run():
            packed += event.kind == PACKED
            failed = failed or event.kind in (FAILED, DAMAGED)
            if common["as_json"]:
                click.echo(json.dumps(_record(event)))
            elif not common["quiet"] or event.kind in (FAILED, DAMAGED):
                for line in _lines(event):
                    echo(line, err=True)
    except KeyboardInterrupt:
        echo(f"Stopped: {packed} checkpoints are packed in {target}; the same command continues from there.", err=True)
        raise
    if failed:
        raise click.exceptions.Exit(1)


def _record(event: "Event") -> dict[str, Any]:
    sizes = {"raw_size": event.totals.raw, "coded_size": event.totals.coded} if event.totals else {}
    more = {"left_out": event.totals.left_out, "notes": event.totals.notes} if event.totals else {}
    found = {"event": event.kind, "checkpoint": event.name, **sizes, "base": event.base, "why": event.why, **more}
    return {key: value for key, value in found.items() if value not in ("", ())}


def _lines(event: "Event") -> list[str]:
    name = escaped(event.name)
    if event.totals is None:
        return [_WORDS[event.kind].format(name=name, why=event.why)]
    totals, how = event.totals, f"difference from {escaped(event.base)}" if event.base else "whole"
    percent = f" ({100 * totals.coded / totals.raw:.2f} %)" if totals.raw else ""
    return [
        f"{name}: {totals.raw:,} -> {totals.coded:,} bytes{percent}, {how}",
        *(f"Warning: {line}; left out" for line in totals.left_out),
        *(f"Note: {line}" for line in totals.notes),
    ]
