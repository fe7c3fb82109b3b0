"""`squeeze train`."""

import json
import sys
from pathlib import Path
from typing import Any

import click

from squeeze.commands import options
from squeeze.commands.job import Job
from squeeze.errors import SqueezeError


@click.command()
@options.levels
@options.output("this dictionary", required=True)
@options.force("it")
@click.option("--text-size", type=options.Size(), help="The most bytes of samples that it holds; 112K.")
@click.option("--learn-size", type=options.Size(), help="The most bytes of samples that are learned from; 512K.")
@options.reading
def train(
    output: Path,
    force: bool,
    text_size: int | None,
    learn_size: int | None,
    levels: tuple[int, ...] = (),
    **common: Any,
) -> None:
    """Learn from sample FILEs what many small files like them begin with.

    Example: squeeze train -5 samples/*.json -o events.sqzp
    """
    from squeeze.codecs.stream import training

    job = Job(**common, reads_only=True)
    paths = [path for path in job.sources(lambda path: True) if path]
    if not paths or job.failed:
        raise SqueezeError("train reads sample files: name some")
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
