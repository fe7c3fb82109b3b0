"""`squeeze train`."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from squeeze.commands import options
from squeeze.commands.job import Job
from squeeze.commands.progress import steps
from squeeze.errors import SqueezeError
from squeeze.system import storage


@click.command()
@options.levels
@options.output("this dictionary", learned=True)
@options.force("it")
@click.option("--text-size", type=options.Size(), help="The most bytes of samples that a dictionary holds; 112K.")
@click.option("--learn-size", type=options.Size(), help="The most bytes of samples that it is learned from; 512K.")
@click.option("--adapter", type=options.PATH, metavar="OUT", help="Train an adapter of a language model instead.")
@options.model
@click.option("--minutes", type=click.FloatRange(0, min_open=True), default=30.0, help="How long, for an adapter; 30.")
@options.device
@options.resume
@options.reading
def train(
    output: Path | None,
    force: bool,
    text_size: int | None,
    learn_size: int | None,
    adapter: Path | None,
    model: Path | None,
    minutes: float,
    device: str,
    resume: bool,
    levels: tuple[int, ...] = (),
    **common: Any,
) -> None:
    """Learn from sample FILEs what many small files like them begin with, or an adapter of a language model.

    \b
    Example: squeeze train -5 samples/*.json -o events.sqzp
             squeeze train --adapter letters.safetensors --minutes 60 letters/*.txt
    """
    job = Job(**common, reads_only=True)
    if (output is None) == (adapter is None):
        raise click.UsageError("give either -o for a dictionary, or --adapter")
    paths = [path for path in job.sources(lambda path: True) if path]
    if not paths or job.failed:
        raise SqueezeError("train reads sample files: name some")
    if adapter is not None:
        if any(map(storage.remote, paths)):
            raise click.UsageError("--adapter takes texts on this machine: fetch them first")
        if levels or text_size is not None or learn_size is not None:
            raise click.UsageError("a level, --text-size and --learn-size belong to a dictionary")
        _adapter(job, paths, model, adapter, force, minutes, device, resume)
    elif output is not None:
        if model is not None:
            raise click.UsageError("--model belongs to an adapter")
        _dictionary(job, paths, output, force, text_size, learn_size, levels)


def _dictionary(
    job: Job,
    paths: Sequence[Path],
    output: Path,
    force: bool,
    text_size: int | None,
    learn_size: int | None,
    levels: tuple[int, ...],
) -> None:
    from squeeze.codecs.stream import training

    with job.progress(str(output)) as tick:
        prior = training.train(
            paths,
            output,
            level=levels[-1] if levels else training.LEVEL,
            text_size=training.TEXT_SIZE if text_size is None else text_size,
            learn_size=learn_size or training.LEARN_SIZE,
            overwrite=force,
            progress=tick,
        )
    facts = {"output": str(output), "level": prior.level, "size": output.stat().st_size, "prior": prior.identity}
    if job.as_json:
        click.echo(json.dumps(facts))
    elif job.verbose or sys.stderr.isatty():
        job.say(f"{output}: {facts['size']} bytes, level {prior.level}, of {len(paths)} files")


def _adapter(
    job: Job,
    paths: Sequence[Path],
    model: Path | None,
    out: Path,
    force: bool,
    minutes: float,
    device: str,
    resume: bool,
) -> None:
    # Torch takes seconds to import, and a dictionary is made without it.
    from squeeze.commands.models import use
    from squeeze.recipes.train.adapt import adapt_to
    from squeeze.recipes.train.distil import Training

    use(job.threads)
    with steps(str(out), quiet=job.quiet, as_json=job.as_json) as progress:
        training = Training(minutes=minutes, device=device, batch=4, resume=resume, progress=progress)
        done = adapt_to(paths, model, out, training, overwrite=force)
    before, after = done.before["held out"], done.after["held out"]
    facts = {"output": str(out), "size": out.stat().st_size, "steps": done.steps, "before": before, "after": after}
    if job.as_json:
        click.echo(json.dumps(facts))
    else:
        job.say(
            f"{out}: {facts['size']} bytes; held-out text {before:.3f} -> {after:.3f} bits a byte by the model alone"
        )
