"""`squeeze compress`, `decompress` and `test` on a Ray cluster: list files, print results, and delete leftovers."""

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import click
from xxhash import xxh3_64_hexdigest

from squeeze.cluster.engine import PROCESS, Engine, Needs
from squeeze.cluster.files import check_unchanged, process_files, remove_parts, version_of
from squeeze.cluster.manifest import Manifest, is_of_sources, read_manifest
from squeeze.cluster.operations import COMPRESS, TEST, File, FileResult, Task
from squeeze.cluster.run import Run
from squeeze.cluster.shards import SHARDS, proved
from squeeze.cluster.summary import Summary
from squeeze.commands.cluster import connected
from squeeze.commands.echo import echo
from squeeze.commands.job import Job, is_compressed
from squeeze.commands.progress import Tick
from squeeze.commands.reporting import write_page
from squeeze.errors import SqueezeError, printable
from squeeze.system import files, storage
from squeeze.system.moving import errors_after
from squeeze.system.remote_path import look_together
from squeeze.system.unchanged import stamp_of

__all__ = ["run", "test"]

_MARK = ".squeeze-{}"
_MANIFEST = re.compile(r"\.squeeze-(de)?compress(-[0-9a-f]{8})?\.jsonl")
_PARTS = ".parts"
_BATCH = 64  # objects whose status is requested together


@dataclass
class _Listing:
    """The files of a run that are still to be done, listed while others are worked on."""

    job: Job
    manifest: Manifest
    name: Callable[[Path], Path]
    is_input: Callable[[Path], bool]
    passed_over: Callable[[Path], bool]
    skipped: int = 0
    parts: set[Path] = field(default_factory=set)  # of files that an earlier run cut

    def files(self) -> Iterator[File]:
        going_on = bool(self.manifest.earlier) and not self.manifest.was_complete
        listed = self.job.iter_sources(lambda path: not self._is_our_own(path) and self.is_input(path))
        found = (path for path in listed if path is not None and not self._is_our_own(path))
        paths = (path for path in found if not self.passed_over(path))
        for path, target in _with_targets(paths, self.name):
            with self.job.attempt(str(path)):
                if isinstance(target, Exception):
                    raise target
                status = path.lstat() if storage.remote(path) else path.stat()
                file = File(path, status.st_size, stamp_of(status), target, version=version_of(path))
                if self._is_done(file):
                    self.skipped += 1
                    _remove(self.job, file)
                    continue
                files.check_target(target, [path], self.job.force or going_on)  # which workers look at
                yield file

    def _is_our_own(self, path: Path) -> bool:
        """Return whether a file belongs to a run: a manifest, or a temporary file. Delete leftovers of a killed run."""
        if path == self.manifest.path or _MANIFEST.fullmatch(path.name):
            return True
        if path.parent.name.startswith(".") and path.parent.suffix == _PARTS:
            self.parts.add(path.parent)
            return True
        if not (path.name.startswith(".") and path.suffix == ".tmp"):
            return False
        if any(path.stem.endswith(_MARK.format(mark)) for mark in self.manifest.earlier):
            path.unlink(missing_ok=True)
            return True
        return path.stem.endswith(_MARK.format(self.manifest.session))

    def _is_done(self, file: File) -> bool:
        assert file.target
        try:
            size = (file.target.lstat() if storage.remote(file.target) else file.target.stat()).st_size
        except FileNotFoundError:
            return False
        return self.manifest.is_done(str(file.source), file.stamp, str(file.target), size)


def _with_targets(paths: Iterable[Path], name: Callable[[Path], Path]) -> Iterator[tuple[Path, Path | Exception]]:
    """Yield each source with the place of its result. A store is asked about many results at a time."""
    paths = iter(paths)
    while some := list(islice(paths, _BATCH)):
        targets = [_target_of(path, name) for path in some]
        look_together([place for place in map(storage.remote, targets) if place])
        yield from zip(some, targets, strict=True)


def _target_of(path: Path, name: Callable[[Path], Path]) -> Path | Exception:
    try:
        return name(path)
    except SqueezeError as error:
        return error


def run(
    job: Job,
    operation: str,
    settings: dict[str, Any],
    *,
    cluster: str | None,
    manifest: Path | None,
    name: Callable[[Path], Path],
    is_input: Callable[[Path], bool],
    passed_over: Callable[[Path], bool] = lambda path: False,
    memory: int = 0,
    page: Path | None = None,
) -> None:
    """Compress or decompress all files that a command names.

    Args:
        job: The run.
        operation: "compress" or "decompress".
        settings: Arguments of the operation.
        cluster: The address of the cluster.
        manifest: The file that notes finished work; None for the usual one.
        name: Returns the path of a result.
        is_input: Returns whether a file in a folder is taken.
        passed_over: Returns whether a file is left out although it is named.
        memory: Bytes that a call needs.
        page: The page to write, or None.
    """
    if job.stdout or job.output or "-" in job.files:
        raise click.UsageError("--cluster takes files and folders, and neither -c nor -o")
    sources = [str(storage.path_of(name)) for name in job.files]
    place = manifest or _usual(_folder_of(job.files[0]), operation, sources)
    options = {key: value for key, value in settings.items() if value is not None}
    with closing(connected(cluster)) as engine, closing(Manifest(place, operation, options, sources)) as notes:
        listing = _Listing(job, notes, name, is_input, passed_over)
        task = Task(operation, settings, _MARK.format(notes.session), job.force)
        try:
            going = _process(job, task, notes, engine, listing.files(), memory, page)
        except BaseException as error:
            engine.close()
            _tidy(job, task.mark)
            if isinstance(error, KeyboardInterrupt) and place.exists():
                echo(f"Finished files are noted in {place}; the same command continues from there.", err=True)
            raise
        if going.lost:
            _tidy(job, task.mark)
        if not job.failed:
            notes.complete(going.files + listing.skipped)
            for folder in listing.parts:
                remove_parts(folder)
    if not manifest and place.exists() and not place.stem.endswith(operation):
        job.say(f"Finished files are noted in {place}, since another run uses the usual manifest.")
    if listing.skipped:
        job.say(f"{listing.skipped:,} files were done before.")
    job.finish()


def test(
    job: Job, settings: dict[str, Any], *, cluster: str | None, manifest: Path | None, page: Path | None = None
) -> None:
    """Decode all files that a command names, or with a manifest all outputs that it lists.

    Args:
        job: The run.
        settings: Arguments of the decoder.
        cluster: The address of a cluster, or None for this machine.
        manifest: The manifest of a run, or None.
        page: The page to write, or None.
    """

    def named() -> Iterator[File]:
        for path in job.iter_sources(is_compressed):
            if path is not None:
                with job.attempt(str(path)):
                    status = path.stat()
                    yield File(path, status.st_size, stamp_of(status), None)

    task = Task(TEST, settings, "")
    found = _outputs(job, manifest, settings) if manifest else named()
    if cluster:
        with closing(connected(cluster)) as engine:
            _process(job, task, None, engine, found, 0, page)
    else:
        with job.progress("files") as tick:
            for file in _with_total(found, tick):
                _report(job, process_files([file], task)[0])
                tick(file.size)
    job.finish()


def _folder_of(name: str) -> Path:
    """Return the folder of a run's manifest: that of the files, or the current folder if they are at URLs."""
    path = storage.path_of(name)
    if storage.remote(path):
        return Path()
    return path if path.is_dir() else path.parent


def _usual(folder: Path, operation: str, sources: list[str]) -> Path:
    """Return the manifest of a run that names none, with a digest of the sources if another run uses the usual name."""
    usual = folder / f".squeeze-{operation}.jsonl"
    digest = xxh3_64_hexdigest(json.dumps(sorted(set(sources))).encode(errors="surrogatepass"))
    own = usual.with_name(f"{usual.stem}-{digest[:8]}{usual.suffix}")
    return own if own.exists() or not is_of_sources(usual, sources) else usual


def _outputs(job: Job, manifest: Path, settings: dict[str, Any]) -> Iterator[File]:
    """Yield the outputs that a manifest lists; a missing one is an error.

    The members of shards are compared with the manifest as well. Only files in the manifest's folder, or below the
    paths that the command names, are opened.
    """
    manifest_read = read_manifest(manifest, settings.get("limits"))
    records, roots = (
        manifest_read.records,
        [manifest.parent, *(storage.path_of(name) for name in job.files if name != "-")],
    )
    if manifest_read.operation == SHARDS:
        records = proved(manifest, records, job.attempt, roots, **settings)
    elif manifest_read.operation != COMPRESS:
        raise SqueezeError(
            f"{manifest}: it is the manifest of a run that did not compress: name that of `squeeze compress`"
        )
    with job.attempt(str(manifest)):
        if manifest_read.files is None:
            raise SqueezeError("its run has unfinished files: run the same command again")
        if manifest_read.done < manifest_read.files:
            raise SqueezeError(
                f"it lists {manifest_read.done} files, and the run ended with {manifest_read.files}: lines are missing"
            )
    for record in records:
        with job.attempt(printable(record.source)):
            if record.error:
                raise SqueezeError(printable(record.error))
            output = storage.resolve_untrusted(record.output, roots)
            if not output.exists():
                raise SqueezeError(f"its output {output} is missing")
            status = output.stat()
            yield File(output, status.st_size, stamp_of(status), None, record.checksum)


def _process(
    job: Job,
    task: Task,
    notes: Manifest | None,
    engine: Engine[Any],
    files: Iterable[File],
    memory: int,
    page: Path | None,
) -> Run:
    summary = Summary(task.operation)
    gpus = 1 if str(task.options.get("device")).startswith("cuda") else 0
    needs = Needs(task.options["threads"], gpus, PROCESS + memory)
    with job.progress("files") as tick:
        going = Run(engine, task, notes, needs, progress=lambda count: _show_progress(tick, count, going))
        for result in going.results(_with_total(files, tick)):
            summary.add(result)
            _report(job, result)
    write_page(page, [summary.as_json(going, engine.processors)])
    failed = f", {going.failures} failed" if going.failures else ""
    sizes = f"{summary.raw:,} bytes raw, {summary.coded:,} compressed"
    job.say(f"{going.files:,} files{failed}, {sizes}, {summary.seconds:.1f} s on {engine.processors:g} cores")
    return going


def _with_total(files: Iterable[File], tick: Tick) -> Iterator[File]:
    """Yield the files, and tell the progress the number of all bytes at the end."""
    total = 0
    for file in files:
        total += file.size
        yield file
    tick.expect(total)


def _show_progress(tick: Tick, count: int, going: Run) -> None:
    workers = going.engine.at_once(going.needs)
    failed = f", {going.failures} failed" if going.failures else ""
    numbers = {"files": going.files, "failed": going.failures, "workers": workers}
    tick.say(f"{going.files} files{failed}, {workers:g} workers", **numbers)
    tick(count)


def _report(job: Job, result: FileResult) -> None:
    source, target = result.file.source, result.file.target
    if result.error:
        with job.attempt(str(source)):
            raise SqueezeError(result.error)
        return
    if job.as_json:
        output = {} if target is None else {"output": str(target)}
        sizes = {"raw_size": result.raw, "coded_size": result.coded, "checksum": result.checksum}
        click.echo(json.dumps({"file": str(source), **output, **sizes}))
    if job.verbose:
        job.say(f"{source}: {result.raw:,} bytes raw, {result.coded:,} compressed")
    _remove(job, result.file)


def _remove(job: Job, file: File) -> None:
    """Delete a source that is done, if the user asks for it and the file is unchanged."""
    if job.rm and file.target:
        with job.attempt(str(file.source)), errors_after(file.target, file.source):
            check_unchanged(file)
            file.source.unlink()


def _tidy(job: Job, mark: str) -> None:
    """Delete temporary files of workers that were killed."""
    for name in (name for name in job.files if not storage.is_url(name)):  # nothing is seen of half an object
        root = Path(name)
        for folder, _, found in os.walk(root if root.is_dir() else root.parent):
            for left in found:
                if left.startswith(".") and left.endswith(f"{mark}.tmp"):
                    Path(folder, left).unlink(missing_ok=True)
