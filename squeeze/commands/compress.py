"""`squeeze compress`."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from squeeze.commands import options
from squeeze.commands.job import Job, size_of, transform
from squeeze.commands.progress import Tick
from squeeze.errors import SqueezeError
from squeeze.system import files

if TYPE_CHECKING:
    from squeeze.codecs.stream.levels import Level
    from squeeze.codecs.stream.resources import LanguageOptions
    from squeeze.codecs.stream.totals import Totals

_SLOW = 60  # seconds of estimated work above which a run begins with a word about it


@click.command()
@options.levels
@click.option("--no-verify", is_flag=True, help="Do not decode the result again to prove it.")
@click.option("--block-size", type=options.Size(), help="Bytes coded on their own, such as 4M.")
@options.model
@click.option("--lanes", type=click.IntRange(1), metavar="N", help="Parts of a text that -7 to -9 read side by side.")
@click.option("--window", type=click.IntRange(16), metavar="N", help="Tokens that -7 to -9 look back.")
@click.option(
    "--backend",
    type=click.Choice(["exact", "llamacpp"]),
    help="What runs the model: llamacpp takes any GGUF, but its files open on machines like this one only.",
)
@options.dictionary
@options.writing
def compress(
    no_verify: bool,
    block_size: int | None,
    model: Path | None,
    lanes: int | None,
    window: int | None,
    backend: str | None,
    prior: Path | None,
    levels: tuple[int, ...] = (),
    **common: Any,
) -> None:
    """Compress each FILE to FILE.sqz.

    Example: squeeze compress -8 report.txt
    """
    from squeeze.codecs.stream import levels as known
    from squeeze.codecs.stream.compressor import compress_stream
    from squeeze.codecs.stream.resources import LanguageOptions, as_dictionary

    job = Job(**common)
    verify = not no_verify or backend == "llamacpp"
    learned = as_dictionary(prior)
    row = known.level(levels[-1] if levels else learned.level if learned else known.DEFAULT)
    if job.stdout and sys.stdout.isatty():
        raise SqueezeError("compressed data is not written to a terminal; use -o or redirect it")
    sources = job.sources(lambda path: True)
    language = LanguageOptions(model, lanes, window, backend)
    _forewarn(job, row, [path for path in sources if path and path.exists()], verify, language)
    settings: dict[str, Any] = {"model": model, "lanes": lanes, "window": window, "backend": backend}
    settings |= {"level": row.number, "verify": verify, "block_size": block_size, "dictionary": learned}

    def action(source: BinaryIO, sink: BinaryIO, tick: Tick) -> "Totals":
        return compress_stream(source, sink, threads=job.threads, progress=tick, **settings)

    for path in sources:
        if path and path.suffix == files.SUFFIX and not job.force:
            job.say(f"Warning: {path}: already ends in {files.SUFFIX}; skipped (use -f to compress it)")
            continue
        with job.attempt(str(path or "-")):
            target = job.target(path, files.compressed_name)
            transform(job, path, target, action, size_of, passes=2 if verify else 1, level=row.number)
    job.finish()


def _forewarn(job: Job, row: "Level", paths: list[Path], verify: bool, asked: "LanguageOptions") -> None:
    """Say how long a run takes, and how much memory, where that is worth a word."""
    from squeeze.codecs.stream.levels import DEFAULT_BLOCK
    from squeeze.codecs.stream.settings import choose
    from squeeze.numerics.jit import is_compiled

    _warn_if_slow(job, row.number, sum(path.stat().st_size for path in paths), verify)
    if row.needs_language_model and sys.stderr.isatty() and not is_compiled("code_steps"):
        job.say("The first run at this level compiles it for this processor, which takes about a minute.")
    if job.verbose and row.needs_language_model:
        size = max((path.stat().st_size for path in paths), default=DEFAULT_BLOCK)
        language = choose(row, job.threads, None, asked).language
        if language:
            job.say(f"Level {row.number} will take about {language.memory(size) >> 20} MiB of memory.")


def _warn_if_slow(job: Job, level: int, size: int, verify: bool) -> None:
    from squeeze.codecs.stream.levels import LEVELS, estimate_seconds

    seconds = estimate_seconds(level, size, job.threads, verify)
    if seconds > _SLOW:
        first = min(LEVELS)
        fastest = estimate_seconds(first, size, job.threads, verify)
        other = f"; -{first} would take about {fastest:.0f} s" if level != first else ""
        job.say(f"Level {level} will take about {seconds:.0f} s{other}.")
