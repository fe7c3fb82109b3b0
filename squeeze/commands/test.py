"""`squeeze test`."""

from pathlib import Path
from typing import Any, BinaryIO

import click

import squeeze
from squeeze.codecs.stream.resources import Totals
from squeeze.commands import clustered, options
from squeeze.commands.job import Job, is_compressed, raw_size_of, refuse_terminal, transform
from squeeze.commands.progress import Tick
from squeeze.system.limits import Limits


@click.command()
@options.model
@options.adapter
@options.runs_on
@options.dictionary
@options.limits
@clustered.option
@options.report
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
    """Decode each FILE.sqz, compare its checksums, and write nothing.

    With --manifest, test every output that the manifest names, in its own folder and in the folders or URLs named.

    Example: squeeze test *.sqz
    """
    per_call = common["threads"] or 1
    job = Job(**common, reads_only=True)
    refuse_terminal(job)
    settings: dict[str, Any] = {"threads": job.threads, "model": model, "adapter": adapter, "dictionary": dictionary}
    settings |= {"limits": limits, "device": device}
    if page and not cluster:
        raise click.UsageError("--report is of a run on a cluster: give --cluster")
    if cluster or manifest:
        clustered.test(job, settings | {"threads": per_call}, cluster=cluster, manifest=manifest, page=page)
        return

    def action(source: BinaryIO, sink: BinaryIO, tick: Tick) -> Totals:
        return squeeze.decompress_stream(source, None, progress=tick, **settings)

    for path in job.sources(is_compressed):
        with job.attempt(str(path or "-")):
            transform(job, path, None, action, raw_size_of)
    job.finish()
