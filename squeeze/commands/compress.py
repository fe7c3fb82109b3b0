"""`squeeze compress`."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import click

import squeeze
from squeeze.codecs.stream.resources import Totals
from squeeze.commands import clustered, options, sharded
from squeeze.commands.job import Job, is_compressed, size_of, transform
from squeeze.commands.progress import Tick
from squeeze.errors import SqueezeError
from squeeze.system import files
from squeeze.system.storage import remote


@click.command()
@options.levels
@click.option("--no-verify", is_flag=True, help="Do not decode the result again to prove it.")
@click.option("--block-size", type=options.Size(), help="Bytes coded on their own, such as 4M.")
@options.model
@options.adapter
@options.runs_on
@click.option("--lanes", type=click.IntRange(1), metavar="N", help="Parts of a text that -7 to -9 read side by side.")
@click.option("--window", type=click.IntRange(16), metavar="N", help="Tokens that -7 to -9 look back.")
@click.option(
    "--backend",
    type=click.Choice(["exact", "llamacpp"]),
    help="What runs the model: llamacpp takes any GGUF, but its files open on machines like this one only.",
)
@options.dictionary
@clustered.option
@options.report
@sharded.option
@options.writing
def compress(
    no_verify: bool,
    block_size: int | None,
    model: Path | None,
    adapter: Path | None,
    device: str,
    lanes: int | None,
    window: int | None,
    backend: str | None,
    dictionary: Path | str | None,
    cluster: str | None,
    manifest: Path | None,
    page: Path | None,
    shards: int | None,
    train_dictionary: bool,
    levels: tuple[int, ...] = (),
    **common: Any,
) -> None:
    """Compress each FILE to FILE.sqz, or with --shards all files of a folder to few files.

    \b
    Example: squeeze compress -8 report.txt
             squeeze compress -3 -r --shards 1G pictures -o out/part-{}.tar.sqz
             squeeze compress -3 -r --shards 64M --cluster auto s3://b/pictures -o s3://b/out/part-{}.tar.sqz
    """
    from squeeze.codecs.stream import estimates, levels as known, resources

    if cluster and backend == "llamacpp":
        raise click.UsageError("llama.cpp's files open on machines like this one only: leave out --cluster")
    per_call = common["threads"] or 1
    template = sharded.template(shards, train_dictionary, dictionary, common)
    job = Job(**common)
    verify = not no_verify or backend == "llamacpp"
    learned = resources.as_dictionary(dictionary)
    row = known.level(levels[-1] if levels else learned.level if learned else known.DEFAULT)
    if job.stdout and sys.stdout.isatty():
        raise SqueezeError("compressed data is not written to a terminal; use -o or redirect it")
    language = resources.LanguageOptions(model, lanes, window, backend, adapter, device)
    needed = estimates.memory_to_compress(row, block_size, per_call, replace(language, device="cpu")) if cluster else 0
    settings: dict[str, Any] = {
        **vars(language),
        "level": row.number,
        "verify": verify,
        "block_size": block_size,
        "dictionary": learned or dictionary,
    }
    if template and shards:
        sharded.run(
            job,
            settings | {"threads": per_call},
            template,
            shards,
            levels[-1:] if train_dictionary else None,
            dictionary=dictionary,
            cluster=cluster,
            manifest=manifest,
            page=page,
            memory=needed,
        )
        return
    if page and not cluster:
        raise click.UsageError("--report is of a run on a cluster: give --cluster")
    if cluster or manifest:
        clustered.run(
            job,
            "compress",
            settings | {"dictionary": dictionary, "threads": per_call},
            cluster=cluster,
            manifest=manifest,
            page=page,
            name=files.compressed_name,
            wanted=lambda path: not is_compressed(path),
            passed_over=partial(_passes_over, job),
            memory=needed,
        )
        return
    sources = job.sources(partial(_is_wanted, job))
    sizes = [_size_of(path) for path in sources if path]
    for word in (
        estimates.time_message(row, sum(sizes), job.threads, verify),
        estimates.memory_message(row, max(sizes, default=None), job.threads, language) if job.verbose else None,
    ):
        if word:
            job.say(word)
    _compress_each(job, sources, settings)


def _compress_each(job: Job, sources: Sequence[Path | None], settings: dict[str, Any]) -> None:
    """Compress files on this machine, one after the other. None: standard input."""

    def action(source: BinaryIO, sink: BinaryIO, tick: Tick) -> Totals:
        return squeeze.compress_stream(source, sink, threads=job.threads, progress=tick, **settings)

    for path in sources:
        if path and _passes_over(job, path):
            continue
        with job.attempt(str(path or "-")):
            target = job.target(path, files.compressed_name)
            if job.passes_over(path, target):
                continue
            passes = 2 if settings["verify"] else 1
            transform(job, path, target, action, size_of, passes=passes, level=settings["level"])
    job.finish()


def _is_wanted(job: Job, path: Path) -> bool:
    """Whether a file of a folder is to be compressed; those that are already are counted."""
    job.compressed += is_compressed(path)
    return not is_compressed(path)


def _passes_over(job: Job, path: Path) -> bool:
    """Return whether a file that is named is compressed already, which is said."""
    found = is_compressed(path) and not job.force
    if found:
        job.skip(f"{path}: already ends in {files.SUFFIX}; skipped (use -f to compress it)", named=True)
    return found


def _size_of(path: Path) -> int:
    """As it was listed, without holes; 0 of what cannot be looked at, of which more is said when it is its turn."""
    try:
        status = path.lstat() if remote(path) else path.stat()
        return status.st_size if status.st_blocks is None else min(status.st_size, 512 * status.st_blocks)
    except (OSError, SqueezeError):
        return 0
