"""`squeeze decompress`."""

from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import click

import squeeze
from squeeze.codecs.stream.resources import Totals
from squeeze.commands import clustered, options
from squeeze.commands.job import Job, is_compressed, raw_size_of, refuse_terminal, transform
from squeeze.commands.progress import Tick
from squeeze.system import files
from squeeze.system.binary import write_all
from squeeze.system.limits import Limits

_PIECE = 1 << 20


@click.command()
@click.option("--range", "span", type=options.Range(), metavar="A:B", help="Only these bytes of the content.")
@click.option("--member", metavar="NAME", help="Only this file of a shard that compress --shards wrote.")
@click.option("--salvage", is_flag=True, help="Restore what is undamaged, and say what is missing.")
@click.option(
    "--missing", type=click.Choice(["zeros", "skip"]), help="What --salvage writes for what is lost: zeros, or nothing."
)
@options.model
@options.adapter
@options.runs_on
@options.dictionary
@options.limits
@clustered.option
@options.report
@options.writing
def decompress(
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
    """Restore each FILE.sqz to FILE.

    \b
    Example: squeeze decompress --range 0:100 report.txt.sqz
             squeeze decompress --member pictures/7.jpg -o 7.jpg part-0.tar.sqz
    """
    if part := _part(span, member):
        common["stdout"] = common["stdout"] or common["output"] is None
        if salvage or common["rm"] or "-" in (common["files"] or ("-",)):
            raise click.UsageError(f"{part} takes files, and neither --salvage nor --rm")
    if missing and not salvage:
        raise click.UsageError("--missing says what --salvage writes: give both")
    per_call = common["threads"] or 1
    job = Job(**common)
    refuse_terminal(job)
    settings: dict[str, Any] = {"threads": job.threads, "model": model, "adapter": adapter, "dictionary": dictionary}
    settings |= {"limits": limits, "device": device}
    if page and not cluster:
        raise click.UsageError("--report is of a run on a cluster: give --cluster")
    if cluster or manifest:
        if part or salvage:
            raise click.UsageError(f"--cluster restores whole files: leave out {part or '--salvage'}")
        clustered.run(
            job,
            "decompress",
            settings | {"threads": per_call},
            cluster=cluster,
            manifest=manifest,
            page=page,
            name=files.restored_name,
            wanted=is_compressed,
        )
        return

    def whole(source: BinaryIO, sink: BinaryIO, tick: Tick) -> Totals:
        fill = missing or "zeros"
        return squeeze.decompress_stream(source, sink, progress=tick, salvage=salvage, missing=fill, **settings)

    for path in job.sources(is_compressed):
        with job.attempt(str(path or "-")):
            action = partial(_copy_part, path, span, member, settings) if part and path else whole
            target = job.target(path, files.restored_name)
            if not job.passes_over(path, target):
                transform(job, path, target, action, raw_size_of)
    job.finish()


def _part(span: tuple[int, int | None] | None, member: str | None) -> str:
    """Return the option that asks for a part of a file, if one does."""
    if span and member is not None:
        raise click.UsageError("--range and --member exclude each other")
    return "--range" if span else "--member" if member is not None else ""


def _copy_part(
    path: Path,
    span: tuple[int, int | None] | None,
    member: str | None,
    settings: dict[str, Any],
    source: BinaryIO,
    sink: BinaryIO,
    tick: Tick,
) -> Totals:
    """Write what lies in a range, or a member."""
    start, end = span or (0, None)
    with squeeze.open(path, **settings) as opened:
        file = opened if member is None else opened.member(member)
        file.seek(start)
        written = 0
        while piece := file.read(_PIECE if end is None else min(_PIECE, end - start - written)):
            settings["limits"].need_output(written + len(piece))
            written += write_all(sink, piece)
        return Totals(written, files.status(source).st_size)
