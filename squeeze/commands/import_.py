"""`squeeze import`."""

import json
import time
from pathlib import Path

import click

from squeeze.commands import options
from squeeze.commands.echo import echo
from squeeze.commands.progress import bar


@click.command(name="import")
@click.argument("source", metavar="MODEL.gguf", type=options.PATH)
@click.argument("target", metavar="OUT", type=options.PATH)
@options.force()
@options.saying
def import_(source: Path, target: Path, force: bool, quiet: bool, as_json: bool) -> None:
    """Write a GGUF file as a Hugging Face folder in bf16, with config and tokenizer.

    Of Llama, Mistral, Mixtral, Qwen2, Qwen3, Qwen3-MoE, Gemma, Gemma 2, and what of Gemma 3 handles text. MODEL.gguf
    may be smollm2, the bundled model.

    Example: squeeze import model.gguf my-model
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
        echo(f"{target}: {size} bytes of weights in bf16, {seconds:.1f} s", err=True)
