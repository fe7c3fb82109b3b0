"""`squeeze pack --follow`: what is said of a training run's checkpoints as they are packed."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from squeeze.commands.echo import echo
from squeeze.errors import escaped
from squeeze.system import machine

if TYPE_CHECKING:
    from squeeze.packing.follow import Event

_WORDS = {
    "removed": "{name}: deleted; its packed form restores it",
    "dropped": "{name}: its packed form is deleted",
    "left": "Warning: {name}: left as it is: {why}",
    "failed": "Error: {name}: {why}",
    "damaged": "Error: {name}: its packed form does not decode, and the next one is packed whole: {why}",
}


def run(
    source: Path, target: Path, settings: dict[str, Any], following: dict[str, Any], common: dict[str, Any]
) -> None:
    """Pack what appears in `source`, and say so. settings, following, common: the options of packing, of following, and
    of every command."""
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
        echo(f"Stopped: {packed} packed into {target}, and kept; the same command goes on from here.", err=True)
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
    totals, how = event.totals, f"the difference from {escaped(event.base)}" if event.base else "whole"
    percent = f" ({100 * totals.coded / totals.raw:.2f} %)" if totals.raw else ""
    return [
        f"{name}: {totals.raw} bytes, packed {totals.coded}{percent}, {how}",
        *(f"Warning: {line}; left out" for line in totals.left_out),
        *(f"Note: {line}" for line in totals.notes),
    ]
