"""`squeeze decompress`."""

from pathlib import Path
from typing import Any, BinaryIO

import click

import squeeze
from squeeze.codecs.stream.totals import Totals
from squeeze.commands import clustered, options
from squeeze.commands.job import Job, is_compressed, raw_size_of, refuse_terminal, transform
from squeeze.commands.progress import Tick
from squeeze.system import files
from squeeze.system.limits import Limits

_PIECE = 1 << 20


@click.command()
@click.option("--range", "span", type=options.Range(), metavar="A:B", help="Only these bytes of the content.")
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
@options.writing
def decompress(
    span: tuple[int, int | None] | None,
    salvage: bool,
    missing: str | None,
    model: Path | None,
    adapter: Path | None,
    device: str,
    prior: Path | None,
    limits: Limits,
    cluster: str | None,
    manifest: Path | None,
    **common: Any,
) -> None:
    """Restore each FILE.sqz to FILE.

    Example: squeeze decompress --range 0:100 report.txt.sqz
    """
    if span:
        common["stdout"] = common["stdout"] or common["output"] is None
        if salvage or common["rm"] or "-" in (common["files"] or ("-",)):
            raise click.UsageError("--range takes files, and neither --salvage nor --rm")
    if missing and not salvage:
        raise click.UsageError("--missing says what --salvage writes: give both")
    per_call = common["threads"] or 1
    job = Job(**common)
    refuse_terminal(job)
    settings: dict[str, Any] = {"threads": job.threads, "model": model, "adapter": adapter, "dictionary": prior}
    settings |= {"limits": limits, "device": device}
    if cluster or manifest:
        if span or salvage:
            raise click.UsageError("--cluster restores whole files: leave out --range and --salvage")
        clustered.run(
            job,
            "decompress",
            settings | {"threads": per_call},
            cluster=cluster,
            manifest=manifest,
            name=files.restored_name,
            wanted=is_compressed,
        )
        return

    def action(source: BinaryIO, sink: BinaryIO, tick: Tick) -> Totals:
        if span:
            return _copy_range(source, sink, *span, **settings)
        fill = missing or "zeros"
        return squeeze.decompress_stream(source, sink, progress=tick, salvage=salvage, missing=fill, **settings)

    for path in job.sources(is_compressed):
        with job.attempt(str(path or "-")):
            transform(job, path, job.target(path, files.restored_name), action, raw_size_of)
    job.finish()


def _copy_range(
    source: BinaryIO, sink: BinaryIO, start: int, end: int | None, *, limits: Limits, **options: Any
) -> Totals:
    file = squeeze.open(source, limits=limits, **options)
    file.seek(start)
    written = 0
    while piece := file.read(_PIECE if end is None else min(_PIECE, end - start - written)):
        limits.need_output(written + len(piece))
        written += sink.write(piece)
    return Totals(written, source.seek(0, 2))
