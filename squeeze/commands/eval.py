"""`squeeze eval`."""

import json
from pathlib import Path

import click

from squeeze.commands import options
from squeeze.commands.models import use
from squeeze.commands.progress import bar
from squeeze.commands.reporting import write_page


@click.command(name="eval")
@click.argument("checkpoint", metavar="CKPT", type=options.PATH)
@click.option("--text", required=True, metavar="FILE", type=options.PATH, help="The text to predict.")
@click.option("--original", metavar="CKPT", type=options.PATH, help="Also measure the distance from this model.")
@click.option("--window", default=1024, metavar="N", type=click.IntRange(2), help="Tokens seen at once (1024).")
@click.option("--stride", metavar="N", type=click.IntRange(1), help="Tokens between windows (default: the window).")
@click.option("--windows", metavar="N", type=click.IntRange(1), help="Stop after so many.")
@options.base
@options.resident
@options.computing
@options.report
@options.saying
def evaluate(
    checkpoint: Path,
    text: Path,
    original: Path | None,
    window: int,
    stride: int | None,
    windows: int | None,
    base: Path | None,
    resident: int | None,
    device: str,
    threads: int,
    page: Path | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """Measure how well a model predicts a text: perplexity, and with --original KL divergence and agreement.

    Example: squeeze eval my-model-4bit --original my-model --text wiki.txt
    """
    from squeeze.recipes import evaluate as evaluating

    use(threads)
    tokens, model, reference = evaluating.opened(checkpoint, text, original, device, resident, base)
    total = len(tokens) if windows is None else min(len(tokens), window + (windows - 1) * (stride or window))
    with bar(checkpoint.name, total, unit="", quiet=quiet, as_json=as_json) as tick:
        quality = evaluating.evaluate(
            model,
            tokens,
            window=window,
            stride=stride,
            windows=windows,
            original=reference,
            progress=tick,
            told=lambda perplexity: tick.say(f"perplexity {perplexity:.4g}"),
        )
    found = quality.as_json()
    record = {"command": "eval", "input": str(checkpoint), "text": str(text), "window": window, **found}
    write_page(page, [record])
    if as_json:
        click.echo(json.dumps(record))
        return
    intervals = found.pop("intervals")
    for name, value in found.items():
        if value is not None:
            low_high = " ({:.6g} to {:.6g})".format(*intervals[name]) if name in intervals else ""
            click.echo(f"{name.replace('_', ' ') + ':':<20}{value:.6g}{low_high}")
