"""`squeeze inspect` and `squeeze history`."""

import json
from pathlib import Path
from typing import Any

import click

from squeeze.commands import options, values
from squeeze.commands.declared import base
from squeeze.commands.echo import echo, echo_lines
from squeeze.commands.reporting import checkpoint_bar, write_page
from squeeze.commands.sections import command
from squeeze.errors import PackageError, printable
from squeeze.system import machine


def _show_blocks(source: Path, as_json: bool) -> None:
    """Print the lists of blocks of a model's folder."""
    from squeeze.recipes.measure.blocks import blocks_of

    found = blocks_of(source)
    if as_json:
        click.echo(json.dumps({"command": "inspect", "input": str(source), "lists": [one.as_json() for one in found]}))
        return
    echo(_BLOCKS.format("blocks", "matrices", "weights", "list"))
    for one in found:
        echo(_BLOCKS.format(one.blocks, one.matrices, f"{one.weights:,}", printable(one.name)))


_BLOCKS = "{:>6} {:>8} {:>15}  {}"


@command()
@click.argument("source", metavar="IN", type=values.PLACE)
@click.option(
    "--level",
    type=click.Choice(["runtime", "archive"]),
    default="runtime",
    help="Level to measure a checkpoint at that is not packed; default: runtime",
)
@click.option("--blocks", is_flag=True, help="Show the lists of blocks that quantize, prune and factorize walk instead")
@base
@options.report
@options.coding
def inspect(
    source: Path,
    level: str,
    blocks: bool,
    base: Path | None,
    page: Path | None,
    threads: int,
    quiet: bool,
    as_json: bool,
) -> None:
    """Show entropy and coded size of a checkpoint, by tensor.

    \b
    Example: squeeze inspect model.safetensors
             squeeze inspect my-model --blocks

    The table compares the entropy of each field, the bound that follows, and the coded size. For a quantised checkpoint
    it also shows the bits per weight.
    """
    if blocks:
        if page or base:
            raise click.UsageError("--blocks shows only lists of blocks: leave out --report and --base")
        _show_blocks(source, as_json)
        return
    from squeeze.recipes.measure import inspect as inspecting

    with checkpoint_bar(source, quiet, as_json) as tick:
        threads = threads or machine.available_cores()
        entries = list(inspecting.inspect(source, level=level, base=base, threads=threads, progress=tick))
    quantised = None
    try:
        quantised = inspecting.quantised(source)
    except PackageError as error:
        if not quiet:
            echo(f"Note: {source}: is quantised; the bits per weight are left out: {error}", err=True)
    sections = {"tensors": entries, "totals": inspecting.totals(entries)}
    record: dict[str, Any] = {"command": "inspect", "input": str(source)}
    record |= {key: [entry.as_json() for entry in value] for key, value in sections.items()}
    record |= {"quantised": quantised} if quantised else {}
    write_page(page, [record])
    if as_json:
        click.echo(json.dumps(record))
        return
    echo_lines(inspecting.table(entries))
    if quantised:
        echo(
            f"quantised in the format {quantised['format']}: {quantised['modules']} modules, "
            f"{quantised['bits_per_weight']:.3f} bits per weight"
        )


@command()
@click.argument("source", metavar="IN", type=values.PLACE)
@options.as_json
def history(source: Path, as_json: bool) -> None:
    """Show the chain of bases that a packed checkpoint depends on.

    \b
    Example: squeeze history run/checkpoint-1000

    The chain ends with a checkpoint that is packed whole. Bases are searched for in the folder that holds the
    checkpoint.
    """
    from squeeze.packing import chain as chains

    for number, link in enumerate(chains.history(source)):
        if as_json:
            record: dict[str, Any] = {
                "path": str(link.path) if link.path else None,
                "raw": link.raw,
                "coded": link.coded,
            }
            record |= {"sha256": list(link.sha256), "base": list(link.base)}
            click.echo(json.dumps(record | ({"faults": list(link.faults)} if link.faults else {})))
            continue
        if number == 0:
            click.echo(_ROW.format("raw", "packed", "ratio", "SHA-256", "checkpoint"))
        if link.path is None:
            missing = "; ".join(["no packed checkpoint in this folder has it", *link.faults])
            echo(_ROW.format("", "", "", link.sha256[0][: chains.SHOWN], missing))
        else:
            sizes = f"{link.raw:,}", f"{link.coded:,}", f"{link.coded / link.raw:.3f}"
            echo(_ROW.format(*sizes, link.sha256[0][: chains.SHOWN], printable(str(link.path))))


_ROW = "{:>16} {:>16} {:>7}  {:<16}  {}"
