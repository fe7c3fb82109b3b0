"""`squeeze import` and `squeeze imatrix`, the commands for GGUF files."""

import json
import time
from pathlib import Path
from typing import Any

import click

from squeeze.commands import options, values
from squeeze.commands.declared import calibrating
from squeeze.commands.echo import echo
from squeeze.commands.models import use
from squeeze.commands.progress import bar, steps
from squeeze.commands.sections import command


@command(name="import")
@click.argument("source", metavar="MODEL.gguf", type=values.PATH)
@click.argument("target", metavar="OUT", type=values.PATH)
@options.force()
@options.saying
def import_(source: Path, target: Path, force: bool, quiet: bool, as_json: bool) -> None:
    """Convert a GGUF file to a Hugging Face folder.

    \b
    Example: squeeze import model.gguf my-model

    OUT holds bf16 weights, the configuration and the tokenizer. Llama, Mistral, Mixtral, Qwen2, Qwen3, Qwen3-MoE,
    Gemma, Gemma 2 and the text part of Gemma 3 are supported. MODEL.gguf can be smollm2, the bundled model.
    """
    from squeeze.integrations.gguf.import_ import import_gguf, named

    path = named(source)
    started = time.perf_counter()
    with bar(path.name, None, quiet=quiet, as_json=as_json) as tick:
        size = import_gguf(path, target, overwrite=force, progress=tick)
    seconds = round(time.perf_counter() - started, 3)
    if as_json:
        record = {"command": "import", "input": str(path), "output": str(target), "bytes": size, "seconds": seconds}
        click.echo(json.dumps(record))
    elif not quiet:
        echo(f"{target}: {size:,} bytes of weights in bf16, {seconds:.1f} s", err=True)


@command()
@click.argument("source", metavar="IN", type=values.PATH)
@click.option("-o", "--output", "target", required=True, metavar="FILE", type=values.PATH, help="Output file")
@calibrating
@options.force("this file")
@options.computing
@options.saying
def imatrix(
    source: Path, target: Path, force: bool, device: str, threads: int, quiet: bool, as_json: bool, **params: Any
) -> None:
    """Compute an importance matrix for llama-quantize.

    \b
    Example: squeeze imatrix my-model -o imatrix.gguf --calibration wiki.txt
    """
    from squeeze.recipes.gguf.imatrix import imatrix as write

    use(threads, device)
    options = {name: value for name, value in params.items() if value is not None}
    started = time.perf_counter()
    with steps(target.name, stopped_note="nothing is written.", quiet=quiet, as_json=as_json) as progress:
        count = write(source, target, overwrite=force, device=device, progress=progress, **options)
    seconds = round(time.perf_counter() - started, 3)
    if as_json:
        record = {"command": "imatrix", "input": str(source), "output": str(target), "tensors": count}
        click.echo(json.dumps({**record, "seconds": seconds}))
    elif not quiet:
        result = f"importance of the inputs of {count} tensors, {seconds:.1f} s"
        echo(f"{target}: {result}; next: llama-quantize --imatrix {target}", err=True)
