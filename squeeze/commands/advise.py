"""`squeeze advise`."""

import json
from pathlib import Path

import click

from squeeze.commands import options
from squeeze.commands.echo import echo


@click.command()
@click.argument("checkpoint", metavar="CKPT", type=options.PATH)
@click.option(
    "--device",
    default="cpu",
    metavar="NAME",
    help="cpu (default), cuda, a100, h100, h200, l4, l40s, rtx 4090, rtx 5090.",
)
@click.option("--batch", default=1, metavar="N", type=click.IntRange(1), help="Tokens at a time (1).")
@click.option("--bits", default="16", type=click.Choice(["16", "4"]), help="Of the values kept (16).")
@options.as_json
def advise(checkpoint: Path, device: str, batch: int, bits: str, as_json: bool) -> None:
    """Predict layer by layer whether 2:4 is faster than dense weights on a device, before anything is pruned.

    Example: squeeze advise my-model --device h200 --batch 8
    """
    from squeeze.recipes.measure.advise import advise as predict

    prediction = predict(checkpoint, device, batch, int(bits))
    echo(json.dumps(prediction.as_json()) if as_json else prediction.table())
