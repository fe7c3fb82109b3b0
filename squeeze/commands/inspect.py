"""`squeeze inspect`."""

import json
from pathlib import Path
from typing import Any

import click

from squeeze.commands import options
from squeeze.commands.declared import base
from squeeze.commands.echo import echo
from squeeze.commands.reporting import checkpoint_bar, write_page
from squeeze.errors import PackageError
from squeeze.system import machine


@click.command()
@click.argument("source", metavar="IN", type=options.PLACE)
@click.option(
    "--level",
    type=click.Choice(["runtime", "archive"]),
    default="runtime",
    help="How a checkpoint that is not packed is coded to learn its size.",
)
@base
@options.report
@options.coding
def inspect(
    source: Path, level: str, base: Path | None, page: Path | None, threads: int, quiet: bool, as_json: bool
) -> None:
    """Show the entropy of each field, the bound, the coded size and the gap between, by tensor and dtype.

    Of a quantised checkpoint also the bits that a weight takes.

    Example: squeeze inspect model.safetensors
    """
    from squeeze.recipes.measure import inspect as inspecting

    with checkpoint_bar(source, quiet, as_json) as tick:
        threads = threads or machine.available_cores()
        entries = list(inspecting.inspect(source, level=level, base=base, threads=threads, progress=tick))
    quantised = None
    try:
        quantised = inspecting.quantised(source)
    except PackageError as error:
        if not quiet:
            echo(f"Note: {source}: is quantised; the bits that a weight takes are left out: {error}", err=True)
    sections = {"tensors": entries, "totals": inspecting.totals(entries)}
    record: dict[str, Any] = {"command": "inspect", "input": str(source)}
    record |= {key: [entry.as_json() for entry in value] for key, value in sections.items()}
    record |= {"quantised": quantised} if quantised else {}
    write_page(page, [record])
    if as_json:
        click.echo(json.dumps(record))
        return
    echo(inspecting.table(entries))
    if quantised:
        echo(
            f"quantised in the format {quantised['format']}: {quantised['modules']} modules, "
            f"{quantised['bits_per_weight']:.3f} bits a weight"
        )
