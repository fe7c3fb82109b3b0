"""`squeeze train`."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import squeeze
from squeeze.commands import options, values
from squeeze.commands.job import Job
from squeeze.commands.models import use
from squeeze.commands.progress import steps
from squeeze.commands.sections import command, in_section
from squeeze.errors import SqueezeError
from squeeze.system import storage

if TYPE_CHECKING:
    from squeeze.recipes.train.distil import Training

_MINUTES = 30.0  # training time of an adapter
_BATCH, _BATCH_OF_GPU = 4, 64  # sequences of 512 bytes

_sizes = in_section(
    "Compression",
    click.option(
        "--text-size", type=values.Size(), metavar="SIZE", help="Size of the samples in the dictionary; default: 112K"
    ),
    click.option(
        "--learn-size", type=values.Size(), metavar="SIZE", help="Size of the samples to learn from; default: 512K"
    ),
)
_training = in_section(
    "Training",
    click.option(
        "--adapter", type=values.PATH, metavar="OUT", help="Adapter of the language model, in place of a dictionary"
    ),
    click.option(
        "--minutes",
        type=values.Time(minutes=True),
        metavar="M",
        help="Training time of an adapter, or of the network of -5 and -6; default: 30 (adapter)",
    ),
    options.device,
    options.resume,
)


@command()
@options.levels
@options.output(learned=True)
@options.force("the file")
@_sizes
@_training
@options.model
@options.reading
def train(
    output: Path | None,
    force: bool,
    text_size: int | None,
    learn_size: int | None,
    adapter: Path | None,
    model: Path | None,
    minutes: float | None,
    device: str,
    resume: bool,
    levels: tuple[int, ...] = (),
    **common: Any,
) -> None:
    """Train a dictionary for small files, or a language model adapter.

    \b
    Example: squeeze train -5 samples/*.json -o events.sqzp
             squeeze train -5 --minutes 20 samples/*.json -o events.sqzp
             squeeze train --adapter letters.safetensors --minutes 60 letters/*.txt

    FILEs are samples of what will be compressed with -D or --adapter later.
    """
    job = Job(**common, reads_only=True)
    if (output is None) == (adapter is None):
        raise click.UsageError("give either -o for a dictionary, or --adapter")
    paths = [path for path in job.sources(lambda path: True) if path]
    if not paths or job.failed:
        raise SqueezeError("train needs sample files, got none: name some, or a folder with -r")
    if adapter is not None:
        if any(map(storage.remote, paths)):
            raise click.UsageError("--adapter takes texts on this machine, got a URL: download them first")
        if levels or text_size is not None or learn_size is not None:
            raise click.UsageError("a level, --text-size and --learn-size belong to a dictionary")
        _adapter(job, paths, model, adapter, force, minutes or _MINUTES, device, resume)
    elif output is not None:
        if model is not None:
            raise click.UsageError("--model belongs to --adapter: give both")
        if minutes is not None:
            if any(map(storage.remote, paths)):
                raise click.UsageError("--minutes takes samples on this machine, got a URL: download them first")
            _network(job, paths, output, force, text_size, learn_size, levels, minutes, device, resume)
            return
        if resume:
            raise click.UsageError("--resume needs --minutes or --adapter")
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
    sizes = _chosen(levels, text_size, learn_size)
    with job.progress(str(output)) as tick:
        dictionary = squeeze.train(paths, output, overwrite=force, progress=tick, **sizes)
    facts = {
        "output": str(output),
        "level": dictionary.level,
        "size": output.stat().st_size,
        "dictionary": dictionary.identity,
    }
    if job.as_json:
        click.echo(json.dumps(facts))
    elif job.verbose or sys.stderr.isatty():
        result = f"{facts['size']:,} bytes, level {dictionary.level}, from {len(paths):,} files"
        job.say(f"{output}: {result}; next: squeeze compress -D {output} FILES")


def _chosen(levels: tuple[int, ...], text_size: int | None, learn_size: int | None) -> dict[str, int]:
    """Return the options of a dictionary that were given, by name."""
    given = {"level": levels[-1] if levels else None, "text_size": text_size, "learn_size": learn_size}
    return {name: value for name, value in given.items() if value is not None}


def _training_of(**settings: Any) -> "Training":
    from squeeze.recipes.train.distil import Training  # which imports torch

    return Training(**settings)


def _network(
    job: Job,
    paths: Sequence[Path],
    output: Path,
    force: bool,
    text_size: int | None,
    learn_size: int | None,
    levels: tuple[int, ...],
    minutes: float,
    device: str,
    resume: bool,
) -> None:
    from squeeze.recipes.train.tune import tune  # torch takes seconds to import, and other dictionaries need none

    use(job.threads, device)
    with steps(str(output), quiet=job.quiet, as_json=job.as_json) as progress:
        batch = _BATCH if device == "cpu" else _BATCH_OF_GPU
        training = _training_of(minutes=minutes, device=device, batch=batch, resume=resume, progress=progress)
        tuning = tune(paths, output, training, overwrite=force, **_chosen(levels, text_size, learn_size))
    size, level, sizes = output.stat().st_size, tuning.dictionary.level, tuning.sizes
    if job.as_json:
        facts = {"output": str(output), "level": level, "size": size, "dictionary": tuning.dictionary.identity}
        facts |= {"steps": tuning.steps, "kept": tuning.changes_network, "held_out": asdict(sizes)}
        click.echo(json.dumps(facts))
        return
    zstd = "" if sizes.zstd is None else f"zstd's best dictionary {sizes.zstd:,}, "
    job.say(f"{output}: {size:,} bytes, level {level}, from {len(paths):,} files")
    job.say(
        f"held out, {sizes.raw:,} bytes: {zstd}level {level} alone {sizes.alone:,}, with a dictionary {sizes.plain:,}, "
        f"and with the network trained {sizes.tuned:,}"
    )
    if not tuning.changes_network:
        job.say("The trained network made them no smaller: the dictionary does not contain it.")
    if sizes.alone <= min(sizes.plain, sizes.tuned):
        job.say("They are no smaller than without a dictionary: such files do not need one.")


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
    from squeeze.recipes.train.adapt import adapt_to  # torch takes seconds to import, and a dictionary needs none

    use(job.threads, device)
    with steps(str(out), quiet=job.quiet, as_json=job.as_json) as progress:
        training = _training_of(minutes=minutes, device=device, batch=4, resume=resume, progress=progress)
        adaptation = adapt_to(paths, model, out, training, overwrite=force)
    before, after = adaptation.before["held out"], adaptation.after["held out"]
    facts = {
        "output": str(out),
        "size": out.stat().st_size,
        "steps": adaptation.steps,
        "before": before,
        "after": after,
    }
    if job.as_json:
        click.echo(json.dumps(facts))
    else:
        job.say(
            f"{out}: {facts['size']:,} bytes; held-out text {before:.3f} -> {after:.3f} bits a byte by the model alone"
        )
