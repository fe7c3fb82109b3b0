"""The commands on models: import, eval and quantize. Only click and the standard library are imported."""

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from squeeze import cores, files

Command = Callable[..., None]
_PATH = click.Path(path_type=Path)


def _saying(command: Command) -> Command:
    command = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")(command)
    return click.option("-q", "--quiet", is_flag=True, help="Say nothing but errors.")(command)


def _computing(command: Command) -> Command:
    help_text = "Threads; 0, the default, for one a core."
    command = click.option("-T", "--threads", metavar="N", type=click.IntRange(0), default=0, help=help_text)(command)
    return click.option("--device", default="cpu", metavar="NAME", help="cpu (default), cuda, ...")(command)


def use(threads: int) -> None:
    """Let torch compute on so many threads."""
    import torch

    torch.set_num_threads(threads or cores.available())


@click.command(name="import")
@click.argument("source", metavar="MODEL.gguf", type=_PATH)
@click.argument("target", metavar="OUT", type=_PATH)
@click.option("-f", "--force", is_flag=True, help="Overwrite OUT.")
@_saying
def import_(source: Path, target: Path, force: bool, quiet: bool, as_json: bool) -> None:
    """Write a GGUF file of the Llama family as a Hugging Face folder in bf16, with config and tokenizer.

    MODEL.gguf may be smollm2, the bundled model.

    Example: squeeze import model.gguf my-model
    """
    from squeeze.errors import ModelError
    from squeeze.lm import models
    from squeeze.model.gguf import import_gguf

    path: Path | None = source
    if str(source) == models.BUNDLED and not source.exists():
        path = models.bundled_path()
    if path is None:
        raise ModelError(f"the language model {models.BUNDLED} is not installed: {models.HELP}")
    started = time.perf_counter()
    with bar(None, path.name, quiet) as tick:
        size = import_gguf(path, target, overwrite=force, progress=tick)
    seconds = round(time.perf_counter() - started, 3)
    if as_json:
        record = {"command": "import", "input": str(path), "output": str(target), "bytes": size, "seconds": seconds}
        click.echo(json.dumps(record))
    elif not quiet:
        click.echo(f"{target}: {size} bytes of weights in bf16, {seconds:.1f} s", err=True)


@click.command(name="eval")
@click.argument("checkpoint", metavar="CKPT", type=_PATH)
@click.option("--text", required=True, metavar="FILE", type=_PATH, help="The text to predict.")
@click.option("--original", metavar="CKPT", type=_PATH, help="Also measure the distance from this model.")
@click.option("--window", default=1024, metavar="N", type=click.IntRange(2), help="Tokens seen at once (1024).")
@click.option("--stride", metavar="N", type=click.IntRange(1), help="Tokens between windows (default: the window).")
@click.option("--windows", metavar="N", type=click.IntRange(1), help="Stop after so many.")
@_computing
@_saying
def evaluate(
    checkpoint: Path,
    text: Path,
    original: Path | None,
    window: int,
    stride: int | None,
    windows: int | None,
    device: str,
    threads: int,
    quiet: bool,
    as_json: bool,
) -> None:
    """Measure how well a model predicts a text: perplexity, and with --original KL divergence and agreement.

    Example: squeeze eval my-model-4bit --original my-model --text wiki.txt
    """
    from squeeze.model import evaluate as evaluating

    use(threads)
    tokens = evaluating.read_tokens(text, original or checkpoint)
    model = evaluating.load_model(checkpoint, device=device)
    reference = evaluating.load_model(original, device=device) if original else None
    total = len(tokens) if windows is None else min(len(tokens), window + (windows - 1) * (stride or window))
    with bar(total, checkpoint.name, quiet) as tick:
        found = evaluating.evaluate(
            model, tokens, window=window, stride=stride, windows=windows, original=reference, progress=tick
        )
    if as_json:
        record = {"command": "eval", "input": str(checkpoint), "text": str(text), "window": window}
        click.echo(json.dumps({**record, **found.as_json()}))
        return
    for name, value in found.as_json().items():
        if value is not None:
            click.echo(f"{name.replace('_', ' ') + ':':<20}{value:.6g}")


@contextmanager
def bar(total: int | None, name: str, quiet: bool, unit: str = "") -> Iterator[Callable[[int], None]]:
    """A bar on the terminal, if there is one."""
    from tqdm import tqdm

    def tick(count: int) -> None:
        if files.interrupted.is_set():
            raise KeyboardInterrupt
        shown.update(count)

    hidden = quiet or not sys.stderr.isatty()
    with tqdm(total=total, desc=name, unit=unit, unit_scale=True, leave=False, disable=hidden) as shown:
        yield tick
