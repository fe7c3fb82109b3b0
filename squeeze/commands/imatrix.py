"""`squeeze imatrix`."""

import json
import time
from pathlib import Path
from typing import Any

import click

from squeeze.commands import options
from squeeze.commands.declared import calibrating
from squeeze.commands.echo import echo
from squeeze.commands.models import use
from squeeze.commands.progress import steps


@click.command()
@click.argument("source", metavar="IN", type=options.PATH)
@click.option("-o", "--output", "target", required=True, metavar="FILE", type=options.PATH, help="Write to this file.")
@calibrating
@options.force("this file")
@options.computing
@options.saying
def imatrix(
    source: Path, target: Path, force: bool, device: str, threads: int, quiet: bool, as_json: bool, **params: Any
) -> None:
    """Write llama.cpp's importance matrix of a model's folder, for llama-quantize --imatrix.

    Example: squeeze imatrix my-model -o imatrix.gguf --calibration wiki.txt
    """
    from squeeze.recipes.gguf.imatrix import imatrix as write

    use(threads, device)
    asked = {name: value for name, value in params.items() if value is not None}
    started = time.perf_counter()
    with steps(target.name, kept="nothing is kept.", quiet=quiet, as_json=as_json) as progress:
        count = write(source, target, overwrite=force, device=device, progress=progress, **asked)
    seconds = round(time.perf_counter() - started, 3)
    if as_json:
        record = {"command": "imatrix", "input": str(source), "output": str(target), "tensors": count}
        click.echo(json.dumps({**record, "seconds": seconds}))
    elif not quiet:
        echo(f"{target}: importance of the inputs of {count} tensors, {seconds:.1f} s", err=True)
