"""`squeeze compress`."""

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click

import squeeze
from squeeze.codecs.stream.resources import Totals
from squeeze.commands import options, values
from squeeze.commands.cluster import with_manifest
from squeeze.commands.job import Job, is_compressed, size_of, transform
from squeeze.commands.progress import Tick
from squeeze.commands.sections import command, in_section
from squeeze.commands.side_by_side import LARGE, for_each
from squeeze.errors import SqueezeError
from squeeze.system import files, storage

if TYPE_CHECKING:
    from squeeze.codecs.shards.plan import Template
    from squeeze.codecs.stream.levels import Level
    from squeeze.codecs.stream.resources import LanguageOptions

_TAR = f".tar{files.SUFFIX}"
_FOLDERS = f"use -o NAME{_TAR} for one archive, or -r for each file in it"

_coding = in_section(
    "Compression",
    click.option("--no-verify", is_flag=True, help="Do not decode the result again to compare it"),
    click.option("--block-size", type=values.Size(), metavar="SIZE", help="Bytes per block; default: 16M"),
    click.option("--no-parse", is_flag=True, help="Do not open wrappers, such as zip, gzip, PDF and PNG"),
    click.option(
        "--long",
        type=values.Size(),
        metavar="WINDOW",
        help="Bytes in which repeats of earlier blocks are found, such as 2G; default: 256M, none for small blocks",
    ),
    click.option("--no-long", is_flag=True, help="Do not look for repeats of earlier blocks"),
)
_backend = in_section(
    options.MODEL,
    click.option(
        "--backend",
        type=click.Choice(["exact", "llamacpp"]),
        help="Engine; files of llamacpp open on similar machines only; default: exact",
    ),
)
_shards = in_section(
    "Shards of a folder (-r only)",
    click.option(
        "--shards",
        type=values.Size(),
        metavar="SIZE",
        help="Raw size of each archive, such as 1G (-o part-{}.tar.sqz only)",
    ),
    click.option(
        "--train-dictionary", is_flag=True, help="Train a dictionary on some of the files first (--shards only)"
    ),
)


@command()
@options.levels
@_coding
@options.dictionary
@options.model
@options.adapter
@options.runs_on
@options.lanes
@_backend
@_shards
@with_manifest
@options.report
@options.writing
def compress(
    no_verify: bool,
    block_size: int | None,
    no_parse: bool,
    long: int | None,
    no_long: bool,
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
    """Compress files, or a folder into one archive.

    \b
    Example: squeeze compress -8 report.txt
             squeeze compress photos -o photos.tar.sqz
             squeeze compress -r photos --output-dir small --exclude '*.tmp'
             squeeze compress -r --shards 1G photos -o out/part-{}.tar.sqz

    FILE becomes FILE.sqz. An archive is a tar with names, modes, times and links: `squeeze list` shows its members, and
    `squeeze decompress -C OUT` extracts them. With --shards the files of a folder go into several archives of one size.
    """
    from squeeze.codecs.stream import estimates, levels as known, resources

    _check_backend(backend, cluster)
    per_call = common["threads"] or 1
    template = _template(shards, train_dictionary, dictionary, common)
    job = Job(**common, archive=not template and _is_archive(common), folders=_FOLDERS)
    verify = not no_verify or backend == "llamacpp"
    learned = resources.as_dictionary(dictionary)
    row = known.level(levels[-1] if levels else learned.level if learned else known.DEFAULT)
    if job.stdout and sys.stdout.isatty():
        raise SqueezeError("compressed data is not written to a terminal: use -o, or redirect standard output")
    language = resources.LanguageOptions(model, lanes, window, backend, adapter, device)
    needed = estimates.memory_to_compress(row, block_size, per_call, replace(language, device="cpu")) if cluster else 0
    repeats = _window(long, no_long, bool(cluster), bool(template))
    coding = {"level": row.number, "verify": verify, "block_size": block_size, "parse": not no_parse, "long": repeats}
    settings: dict[str, Any] = {**vars(language), **coding}
    if page and not cluster and not template:
        raise click.UsageError("--report shows a run on a cluster: give --cluster as well")
    if template and shards:
        from squeeze.commands import sharded

        sharded.run(
            job,
            settings | {"dictionary": learned or dictionary, "threads": per_call},
            template,
            shards,
            levels[-1:] if train_dictionary else None,
            dictionary=dictionary,
            cluster=cluster,
            manifest=manifest,
            page=page,
            memory=needed,
        )
    elif job.archive:
        if cluster or manifest:
            raise click.UsageError("an archive is made on this machine: leave out --cluster, or give --shards")
        from squeeze.commands import archives

        archives.compress(job, settings | {"dictionary": learned or dictionary})
    elif cluster or manifest:
        from squeeze.commands import clustered

        clustered.run(
            job,
            "compress",
            settings | {"dictionary": dictionary, "threads": per_call},
            cluster=cluster,
            manifest=manifest,
            page=page,
            name=files.compressed_name,
            is_input=lambda path: not is_compressed(path),
            passed_over=partial(_passes_over, job),
            memory=needed,
        )
    else:
        _compress_each(job, row, settings | {"dictionary": dictionary}, language, not (no_parse or learned))


def _compress_each(job: Job, row: "Level", settings: dict[str, Any], language: "LanguageOptions", parses: bool) -> None:
    """Compress each file of a job.

    Args:
        job: the files.
        row: of the level.
        settings: options of `compress_stream`.
        language: those of the language model.
        parses: whether wrappers are opened.
    """
    from squeeze.codecs.stream import estimates, levels as known

    sources = job.sources(partial(_is_wanted, job))
    raw = [_size_of(path) for path in sources if path]
    for line in (
        estimates.time_message(
            row, _work(sources, raw, estimates.work_of if parses else None), job.threads, settings["verify"]
        ),
        estimates.memory_message(row, max(raw, default=None), job.threads, language) if job.verbose else None,
    ):
        if line:
            job.say(line)
    small = [size for size in raw if size < LARGE]
    alone = len(small) < 2 or row.needs_language_model  # which would be in memory once for each process
    seconds = 0.0 if alone else known.estimate_seconds(row.number, sum(small), 1, settings["verify"])
    inputs = (path for path in sources if not (path and _passes_over(job, path)))
    for_each(job, job.tasks(inputs, files.compressed_name), _compress, settings, seconds)
    job.finish()


def _check_backend(backend: str | None, cluster: str | None) -> None:
    if cluster and backend == "llamacpp":
        raise click.UsageError("files of llama.cpp open on similar machines only: leave out --cluster")


def _window(long: int | None, no_long: bool, on_cluster: bool, in_shards: bool) -> int | bool | None:
    """Return the window of repeats for `compress_stream`. Without --long, shards and clusters have none."""
    if no_long and long is not None:
        raise click.UsageError("--long and --no-long exclude each other")
    if long is not None and on_cluster:
        raise click.UsageError("workers code the parts of a file alone: leave out --long or --cluster")
    return False if no_long or (long is None and (on_cluster or in_shards)) else long


def _template(
    size: int | None, trains: bool, dictionary: Path | str | None, common: dict[str, Any]
) -> "Template | None":
    """Return the names of shards, from the option -o, which is taken out of `common`; None without --shards."""
    if size is None:
        if trains:
            raise click.UsageError("--train-dictionary belongs to --shards: give both")
        return None
    if common["stdout"] or common["rm"] or common["output_dir"]:
        raise click.UsageError("--shards takes neither -c nor --rm nor --output-dir")
    if trains and dictionary:
        raise click.UsageError("--train-dictionary and -D exclude each other")
    if not common["recursive"] or len(common["files"]) != 1 or common["files"] == ("-",):
        raise click.UsageError("--shards takes one folder, and -r")
    if common["output"] is None or size < 1:
        raise click.UsageError("--shards takes a size, and -o with the name of a shard, such as part-{}.tar.sqz")
    from squeeze.codecs.shards.plan import Template  # which imports numba

    return Template(common.pop("output"))


def _is_archive(common: dict[str, Any]) -> bool:
    """Return whether all files go into one archive: a folder is named without -r, or several files for one .tar.sqz."""
    names, output = common["files"], common["output"]
    if common["recursive"] or not (output or common["stdout"]):
        return False
    several = len(names) > 1 and bool(output) and output.name.endswith(_TAR)
    return several or any(name != "-" and not storage.is_url(name) and Path(name).is_dir() for name in names)


def _compress(job: Job, path: Path | None, target: Path | None, settings: dict[str, Any]) -> None:
    """Compress one file. None: standard input or output."""

    def action(source: BinaryIO, sink: BinaryIO, tick: Tick) -> Totals:
        return squeeze.compress_stream(source, sink, threads=job.threads, progress=tick, **settings)

    with job.attempt(str(path or "-")):
        passes = 2 if settings["verify"] else 1
        transform(job, path, target, action, size_of, passes=passes, level=settings["level"])


def _is_wanted(job: Job, path: Path) -> bool:
    """Return whether a file of a folder is to be compressed, and count those that are compressed already."""
    job.compressed += is_compressed(path)
    return not is_compressed(path)


def _passes_over(job: Job, path: Path) -> bool:
    """Return whether a named file is compressed already, and say so."""
    found = is_compressed(path) and not job.force
    if found:
        job.skip(f"{path}: already ends in {files.SUFFIX}; skipped (use -f to compress it)", by_name=True)
    return found


def _work(sources: list[Path | None], raw: list[int], work_of: Callable[[BinaryIO, int], int] | None) -> int:
    """Return the bytes that are coded of files of `raw` bytes each, with their wrappers opened by `work_of`, if any."""
    paths = (path for path in sources if path)
    return sum(_work_of(path, size, work_of) if work_of else size for path, size in zip(paths, raw, strict=True))


def _work_of(path: Path, size: int, work_of: Callable[[BinaryIO, int], int]) -> int:
    """Return the bytes that are coded of a local file of some bytes with its wrappers opened, or its size."""
    if storage.remote(path):
        return size
    try:
        with path.open("rb") as file:
            return work_of(file, size) if size and file.seekable() else size
    except OSError:
        return size


def _size_of(path: Path) -> int:
    """Return the size of a file without its holes; 0 if it cannot be read, which is reported when it is its turn."""
    try:
        status = path.lstat() if storage.remote(path) else path.stat()
        return status.st_size if status.st_blocks is None else min(status.st_size, 512 * status.st_blocks)
    except (OSError, SqueezeError):
        return 0
