"""`squeeze decompress` and `squeeze test`."""

from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO

import click

import squeeze
from squeeze.codecs.stream import levels
from squeeze.codecs.stream.resources import Totals
from squeeze.commands import options, values
from squeeze.commands.cluster import with_manifest
from squeeze.commands.job import Job, is_compressed, raw_size_of, refuse_terminal, transform
from squeeze.commands.progress import Tick
from squeeze.commands.sections import command, in_section, several
from squeeze.commands.side_by_side import LARGE, for_each
from squeeze.errors import SqueezeError
from squeeze.system import files, storage
from squeeze.system.binary import write_all
from squeeze.system.limits import Limits

_PIECE = 1 << 20
_decoding = several(
    options.model, options.adapter, options.runs_on, options.dictionary, options.limits, with_manifest, options.report
)
_parts = in_section(
    "Archives and parts of files",
    click.option(
        "-C", "--directory", type=values.PATH, metavar="DIR", help="Folder to extract an archive to; made if missing"
    ),
    click.option("--member", metavar="NAME", help="File of an archive or shard to restore"),
    click.option("--range", "span", type=values.Range(), metavar="A:B", help="Bytes of the content, such as 0:100"),
)
_damaged = in_section(
    "Damaged files",
    click.option("--salvage", is_flag=True, help="Restore what is undamaged, and say what is missing"),
    click.option(
        "--missing",
        type=click.Choice(["zeros", "skip"]),
        help="Replacement for lost bytes: zeros or nothing; default: zeros (--salvage only)",
    ),
)


@command()
@_parts
@_damaged
@_decoding
@options.writing
def decompress(
    directory: Path | None,
    span: tuple[int, int | None] | None,
    member: str | None,
    salvage: bool,
    missing: str | None,
    model: Path | None,
    adapter: Path | None,
    device: str,
    dictionary: Path | str | None,
    limits: Limits,
    cluster: str | None,
    manifest: Path | None,
    page: Path | None,
    **common: Any,
) -> None:
    """Restore files and folders, or a part of a file.

    \b
    Example: squeeze decompress report.txt.sqz
             squeeze decompress photos.tar.sqz -C .
             squeeze decompress --member photos/7.jpg -o 7.jpg photos.tar.sqz
             squeeze decompress --range 0:100 report.txt.sqz

    FILE.sqz becomes FILE. With -C an archive is extracted: all of it, or nothing if a member would be outside the
    folder, is a device, or is there already (-f overwrites).
    """
    if part := _part(span, member, directory):
        common["stdout"] = common["stdout"] or (common["output"] is None and directory is None)
        if salvage or (directory is None and (common["rm"] or "-" in (common["files"] or ("-",)))):
            raise click.UsageError(f"{part} takes files, and neither --salvage nor --rm")
    if directory and (common["output"] or common["stdout"] or common["output_dir"]):
        raise click.UsageError("-C extracts to a folder: leave out -o, -c and --output-dir")
    if missing and not salvage:
        raise click.UsageError("--missing says what --salvage writes: give both")
    per_call = common["threads"] or 1
    job = Job(**common, restores=True)
    refuse_terminal(job)
    settings = _settings(model, adapter, device, dictionary, limits)
    if cluster or manifest or page:
        if part or salvage:
            raise click.UsageError(f"--cluster restores whole files: leave out {part or '--salvage'}")
        _require_cluster(cluster, page)
        _clustered().run(
            job,
            "decompress",
            settings | {"threads": per_call},
            cluster=cluster,
            manifest=manifest,
            page=page,
            name=files.restored_name,
            is_input=is_compressed,
        )
    elif directory:
        from squeeze.commands import archives

        archives.extract(job, directory, settings | {"threads": job.threads})
    else:
        sources = job.sources(is_compressed)
        work = partial(_copy_part, span, member) if part else partial(_restore, salvage, missing or "zeros")
        seconds = 0.0 if part or salvage else _seconds(sources)
        for_each(job, job.tasks(sources, files.restored_name), work, settings, seconds)
        job.finish()


@command()
@_decoding
@options.reading
def test(
    model: Path | None,
    adapter: Path | None,
    device: str,
    dictionary: Path | str | None,
    limits: Limits,
    cluster: str | None,
    manifest: Path | None,
    page: Path | None,
    **common: Any,
) -> None:
    """Check that compressed files decode to their checksums.

    \b
    Example: squeeze test *.sqz

    Prints OK for each file, and writes nothing. With --manifest it tests every output of a run, in the manifest's
    folder and in the folders or URLs that are named.
    """
    per_call = common["threads"] or 1
    job = Job(**common, reads_only=True, restores=True)
    refuse_terminal(job)
    settings = _settings(model, adapter, device, dictionary, limits)
    if cluster or manifest or page:
        if not manifest:
            _require_cluster(cluster, page)
        _clustered().test(job, settings | {"threads": per_call}, cluster=cluster, manifest=manifest, page=page)
    else:
        sources = job.sources(is_compressed)
        for_each(job, ((path, None) for path in sources), _test, settings, _seconds(sources))
        job.finish()


def _settings(
    model: Path | None, adapter: Path | None, device: str, dictionary: Path | str | None, limits: Limits
) -> dict[str, Any]:
    """Return the arguments of `decompress_stream` without threads."""
    return {"model": model, "adapter": adapter, "dictionary": dictionary, "limits": limits, "device": device}


def _clustered() -> ModuleType:
    """Return the commands on a cluster, which other runs do not wait for."""
    from squeeze.commands import clustered

    return clustered


def _require_cluster(cluster: str | None, page: Path | None) -> None:
    if page and not cluster:
        raise click.UsageError("--report shows a run on a cluster: give --cluster as well")


def _part(span: tuple[int, int | None] | None, member: str | None, directory: Path | None) -> str:
    """Return the option that asks for a part of a file, or for an archive's members, if there is one."""
    given = [("--range", span is not None), ("--member", member is not None), ("-C", directory is not None)]
    names = [name for name, is_given in given if is_given]
    if len(names) > 1:
        raise click.UsageError(f"{names[0]} and {names[1]} exclude each other")
    return names[0] if names else ""


def _restore(
    salvage: bool, missing: str, job: Job, path: Path | None, target: Path | None, settings: dict[str, Any]
) -> None:
    """Restore one file. None: standard input or output."""

    def action(source: BinaryIO, sink: BinaryIO, tick: Tick) -> Totals:
        how: dict[str, Any] = {"salvage": salvage, "missing": missing, "threads": job.threads}
        return squeeze.decompress_stream(source, sink, progress=tick, **how, **settings)

    with job.attempt(str(path or "-")):
        transform(job, path, target, action, raw_size_of)


def _test(job: Job, path: Path | None, target: Path | None, settings: dict[str, Any]) -> None:
    """Decode one file, and write nothing."""

    def action(source: BinaryIO, sink: BinaryIO, tick: Tick) -> Totals:
        return squeeze.decompress_stream(source, None, progress=tick, threads=job.threads, **settings)

    with job.attempt(str(path or "-")):
        transform(job, path, None, action, raw_size_of)


def _copy_part(
    span: tuple[int, int | None] | None,
    member: str | None,
    job: Job,
    path: Path | None,
    target: Path | None,
    settings: dict[str, Any],
) -> None:
    """Write the bytes of a range, or a member."""
    start, end = span or (0, None)
    assert path

    def action(source: BinaryIO, sink: BinaryIO, tick: Tick) -> Totals:
        with squeeze.open(path, threads=job.threads, **settings) as opened:
            file = opened if member is None else opened.member(member)
            file.seek(start)
            written = 0
            while piece := file.read(_PIECE if end is None else min(_PIECE, end - start - written)):
                settings["limits"].need_output(written + len(piece))
                written += write_all(sink, piece)
            return Totals(written, files.status(source).st_size)

    with job.attempt(str(path)):
        transform(job, path, target, action, raw_size_of)


def _seconds(sources: list[Path | None]) -> float:
    """Estimate how long one thread takes to decode all files that are small, from their indexes."""
    from squeeze.codecs.stream.index import read_index

    seconds = 0.0
    for path in sources if len(sources) > 1 else ():
        if path is None or storage.remote(path):
            return 0.0
        try:
            with path.open("rb") as file:
                if files.status(file).st_size < LARGE:
                    for stream in read_index(file):
                        level = stream.header.get("level")
                        if isinstance(level, int) and level in levels.LEVELS:
                            if levels.level(level).needs_language_model:  # which each process would load
                                return 0.0
                            seconds += levels.estimate_seconds(level, stream.raw_size, 1, False)
        except (OSError, SqueezeError):  # which is reported when it is its turn
            continue
    return seconds
