"""`squeeze store` and its commands."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from squeeze.commands import options, values
from squeeze.commands.echo import echo
from squeeze.commands.reporting import checkpoint_bar
from squeeze.commands.sections import command
from squeeze.errors import printable
from squeeze.system import machine
from squeeze.system.limits import Limits

if TYPE_CHECKING:
    from squeeze.packing.store import Store

_ROW = "{:>16} {:>16} {:>7}  {}"
_folder = click.argument("folder", metavar="STORE", type=values.PATH)
_name = click.argument("name", metavar="NAME")


@click.group()
def store() -> None:
    """Keep models in a store, each tensor once.

    \b
    Example: squeeze store add my-store my-model
             squeeze store add my-store my-model-tuned --base my-model
             squeeze store list my-store
             squeeze store get my-store my-model-tuned restored

    A tensor that the store has already is not stored again. Another one is stored as the difference from that of the
    base, if that is smaller. A killed command leaves the store whole.
    """


@command()
@_folder
@click.argument("source", metavar="IN", type=values.PATH)
@click.option("--name", help="Name of the model in the store; default: that of IN")
@click.option("--base", metavar="NAME", help="Model of the store to store differences from; default: the most similar")
@click.option(
    "--level",
    type=click.Choice(("fast", "runtime", "archive")),
    default="runtime",
    help="Level of packing; default: runtime",
)
@options.threads
@options.quiet
@options.as_json
def add(folder: Path, source: Path, name: str | None, base: str | None, level: str, **common: Any) -> None:
    """Add a model, a folder or a file of tensors."""
    with checkpoint_bar(source, common["quiet"], common["as_json"]) as tick:
        threads = common["threads"] or machine.available_cores()
        totals = _store(folder).add(source, name, base=base, level=level, threads=threads, progress=tick)
    record = {"command": "store add", "input": str(source), "raw_size": totals.raw, "added": totals.coded}
    if common["as_json"]:
        click.echo(json.dumps(record))
    elif not common["quiet"]:
        for line in totals.left_out:
            echo(f"Warning: {line}; left out", err=True)
        echo(f"{printable(str(source))}: {totals.raw:,} bytes, added {totals.coded:,}")


@command(name="list")
@_folder
@options.as_json
def list_models(folder: Path, as_json: bool) -> None:
    """Show models with their bytes, and those of no other.

    The second number counts the bytes that no other model of the store needs.
    """
    opened = _store(folder)
    listed = opened.list()
    if as_json:
        models = [{"name": one.name, "raw": one.size, "alone": one.alone} for one in listed]
        click.echo(json.dumps({"command": "store list", "input": str(folder), "size": opened.size(), "models": models}))
        return
    click.echo(_ROW.format("raw", "alone", "ratio", "model"))
    for one in listed:
        ratio = f"{one.alone / one.size:.3f}" if one.size else ""
        echo(_ROW.format(f"{one.size:,}", f"{one.alone:,}", ratio, printable(one.name)))
    raw, size = sum(one.size for one in listed), opened.size()
    echo(_ROW.format(f"{raw:,}", f"{size:,}", f"{size / raw:.3f}" if raw else "", "all"))


@command()
@_folder
@_name
@click.argument("target", metavar="OUT", type=values.PATH)
@options.force("an existing OUT")
@click.option("--without-weights", is_flag=True, help="Only the other files, such as config.json and the tokenizer")
@options.limits
@options.threads
def get(
    folder: Path, name: str, target: Path, force: bool, without_weights: bool, limits: Limits, threads: int
) -> None:
    """Restore a model, byte for byte."""
    threads = threads or machine.available_cores()
    _store(folder, limits).get(name, target, overwrite=force, threads=threads, weights=not without_weights)


@command()
@_folder
@_name
def remove(folder: Path, name: str) -> None:
    """Remove a model; `gc` then frees its space."""
    _store(folder).remove(name)


@command()
@_folder
def gc(folder: Path) -> None:
    """Delete what no model needs."""
    count, freed = _store(folder).gc()
    echo(f"{printable(str(folder))}: deleted {count:,} objects of {freed:,} bytes")


@command()
@_folder
@options.threads
def verify(folder: Path, threads: int) -> None:
    """Check every object against the hash in its name."""
    count = _store(folder).verify(threads or machine.available_cores())
    echo(f"{printable(str(folder))}: {count:,} objects; OK")


for one in (add, list_models, get, remove, gc, verify):
    store.add_command(one)


def _store(folder: Path, limits: Limits | None = None) -> "Store":
    from squeeze.packing.store import Store

    return Store(folder, limits)
