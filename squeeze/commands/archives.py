"""Folders to and from archives: `squeeze compress DIR -o DIR.tar.sqz` and `squeeze decompress DIR.tar.sqz -C OUT`."""

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, BinaryIO

import click

import squeeze
from squeeze.codecs.archive.extract import Extraction
from squeeze.codecs.archive.write import listed, write
from squeeze.codecs.stream.resources import Totals
from squeeze.commands.job import Job, raw_size_of
from squeeze.errors import SqueezeError
from squeeze.system import files, storage

__all__ = ["compress", "extract"]

_PIECE = 1 << 20


def compress(job: Job, settings: dict[str, Any]) -> None:
    """Write all files and folders of a run to one archive. settings: those of `compress_stream`."""
    roots = [storage.path_of(name) for name in job.files]
    if job.rm:
        raise click.UsageError("--rm deletes files, not folders: delete the folder when the archive is tested")
    if any(map(storage.remote, roots)) or "-" in job.files:
        raise click.UsageError("an archive takes files and folders on this machine: give --shards for URLs")
    target = job.output
    if target:
        files.check_target(target, roots, job.force)

    def failed(path: Path, error: Exception) -> None:
        with job.attempt(str(path)):
            raise error

    started = time.perf_counter()
    items = listed(
        roots, target, job.excludes, failed, lambda path, reason: job.skip(f"{path}: {reason}; left out", True)
    )
    size = sum(item.status.st_size for item in items)
    passes = 2 if settings["verify"] else 1
    writing: AbstractContextManager[BinaryIO] = nullcontext(sys.stdout.buffer)
    if target:
        writing = files.replacing(target, overwrite=job.force)
    with writing as sink, job.progress(str(target or "-"), lambda: size, passes) as tick:
        totals, members = write(items, sink, failed, threads=job.threads, progress=tick, **settings)
    _say(job, target or Path("-"), totals, members, started, level=settings["level"])
    job.finish()


def extract(job: Job, folder: Path, settings: dict[str, Any]) -> None:
    """Extract the archives of a run into a folder. settings: those of `decompress_stream`."""
    for path in job.sources(lambda path: True):
        with job.attempt(str(path or "-")):
            _extract(job, path, folder, settings)
    job.finish()


def _extract(job: Job, path: Path | None, folder: Path, settings: dict[str, Any]) -> None:
    started, name = time.perf_counter(), str(path or "-")
    reading: AbstractContextManager[BinaryIO] = path.open("rb") if path else nullcontext(sys.stdin.buffer)
    with (
        reading as source,
        job.progress(name, lambda: raw_size_of(source)) as tick,
        Extraction(folder, job.force) as extraction,
    ):
        with _decoded(source, {**settings, "progress": tick}) as (stream, totals):
            extraction.read(stream)
        extraction.finish()
    _say(job, path or Path("-"), totals[0], extraction.members, started, output=str(folder))
    if job.rm and path:
        path.unlink()


def _say(job: Job, path: Path, totals: Totals, members: int, started: float, **facts: Any) -> None:
    """Print one line, or one object of JSON."""
    seconds = time.perf_counter() - started
    job.done, job.raw, job.coded = job.done + 1, job.raw + totals.raw, job.coded + totals.coded
    if job.as_json:
        record = {"file": str(path), **facts, "members": members, "raw_size": totals.raw, "coded_size": totals.coded}
        record |= {"opened": totals.opened.as_json()} if totals.opened else {}
        click.echo(json.dumps({**record, "seconds": round(seconds, 3)}))
    if job.prints_each():
        place = f" in {facts['output']}" if "output" in facts else ""
        job.say(f"{path}: {members:,} members{place}, {job.sizes(totals.raw, totals.coded, seconds)}")


@contextmanager
def _decoded(source: BinaryIO, settings: dict[str, Any]) -> Iterator[tuple[BinaryIO, list[Totals]]]:
    """Decode a file in another thread: yield a pipe with the content, and a list that gets the totals at the end.

    The rest of the content is decoded at the end of the block, so that all checksums are compared.
    """
    reading, writing = os.pipe()
    totals, errors = list[Totals](), list[BaseException]()

    def work() -> None:
        try:
            with os.fdopen(writing, "wb") as sink:
                totals.append(squeeze.decompress_stream(source, sink, **settings))
        except BaseException as error:  # it is raised in the other thread
            errors.append(error)

    thread = threading.Thread(target=work, name="squeeze-decode")
    thread.start()
    try:
        with os.fdopen(reading, "rb") as stream:
            yield stream, totals
            while stream.read(_PIECE):
                pass
    except SqueezeError:
        thread.join()
        _raise_first(errors)
        raise
    finally:
        thread.join()
    _raise_first(errors)


def _raise_first(errors: list[BaseException]) -> None:
    """Raise what ended the decoding, which explains why the tar ends too early."""
    for error in errors:
        if not isinstance(error, BrokenPipeError):
            raise error
