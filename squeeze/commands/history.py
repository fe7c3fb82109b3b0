"""`squeeze history`."""

import json
from pathlib import Path
from typing import Any

import click

from squeeze.commands import options
from squeeze.commands.echo import echo
from squeeze.errors import printable


@click.command()
@click.argument("source", metavar="IN", type=options.PLACE)
@options.as_json
def history(source: Path, as_json: bool) -> None:
    """Show what a packed checkpoint is a difference from, and what that is.

    It ends with the checkpoint that is packed whole. Bases are looked for beside what differs from them.

    Example: squeeze history run/checkpoint-1000
    """
    from squeeze.packing import chain as chains
    from squeeze.packing.chain import SHOWN

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
            missing = "; ".join(["no packed checkpoint beside has it", *link.faults])
            echo(_ROW.format("", "", "", link.sha256[0][:SHOWN], missing))
        else:
            sizes = f"{link.raw:,}", f"{link.coded:,}", f"{link.coded / link.raw:.3f}"
            echo(_ROW.format(*sizes, link.sha256[0][:SHOWN], printable(str(link.path))))


_ROW = "{:>16} {:>16} {:>7}  {:<16}  {}"
