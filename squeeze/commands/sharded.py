"""`squeeze compress --shards`: list the files of a folder, write them to shards, and print the results."""

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from itertools import count
from pathlib import Path
from typing import Any

import click

from squeeze.cluster.engine import PROCESS, Engine, Needs
from squeeze.cluster.manifest import Manifest
from squeeze.cluster.shards import SHARDS, Noted, Result, Task, by_workers, make_in_process, note
from squeeze.cluster.summary import Summary
from squeeze.codecs.shards.plan import Planned, Template, plan
from squeeze.codecs.shards.reading import Source
from squeeze.codecs.shards.write import check_targets, list_sources, sample
from squeeze.codecs.stream import resources, training
from squeeze.commands.cluster import connected
from squeeze.commands.echo import echo
from squeeze.commands.job import Job
from squeeze.commands.progress import Tick
from squeeze.commands.reporting import write_page
from squeeze.errors import SqueezeError
from squeeze.system import files, storage

__all__ = ["run"]

_MARK = ".squeeze-{}"
_AGAIN = "delete that shard and run again"


def run(
    job: Job,
    settings: dict[str, Any],
    targets: Template,
    size: int,
    learns: tuple[int, ...] | None,
    *,
    dictionary: Path | str | None,
    cluster: str | None,
    manifest: Path | None,
    page: Path | None,
    memory: int,
) -> None:
    """Write all files of a folder to shards, by this process or the workers of a cluster.

    Args:
        job: The run.
        settings: Arguments of `compress_stream`.
        targets: The names of shards.
        size: Raw bytes of a shard.
        learns: The level of a dictionary to train first, if one was given; None without training.
        dictionary: The dictionary that was named, for workers to read.
        cluster: The address of a cluster, or None for this machine.
        manifest: The file that notes finished work; None for the usual one.
        page: The page to write, or None.
        memory: Bytes that a call needs.
    """
    root = storage.path_of(job.files[0])
    if not root.is_dir():
        raise SqueezeError(f"{root}: expected a folder")
    targets.check(root)
    files.check_target(targets.path(0), [], overwrite=True)
    coding_settings = _coding_settings(settings) | {"root": str(root), "output": str(targets.place), "shards": size}
    coding_settings |= {"train_dictionary": learns is not None}
    with ExitStack() as opened:
        engine = opened.enter_context(closing(connected(cluster))) if cluster else None
        notes = opened.enter_context(closing(Manifest(manifest or targets.manifest, SHARDS, coding_settings)))
        going = _Run(job, root, targets, size, notes, job.force)
        try:
            going.prepare(settings | ({"dictionary": dictionary} if engine else {}), learns)
            going.make_shards(engine, memory)
        except BaseException as error:
            if engine:
                engine.close()
            _tidy(targets, {notes.session})
            if not going.started:
                notes.withdraw()
            elif isinstance(error, KeyboardInterrupt):
                echo(f"Finished shards are noted in {notes.path}; the same command continues from there.", err=True)
            raise
        _tidy(targets, {notes.session})
        if not job.failed:
            notes.complete(going.files + going.skipped)
        write_page(page, [going.summary.as_json(going, engine.processors if engine else job.threads)])
        if engine:
            going.report_totals(engine)
    if going.skipped:
        job.say(f"{going.skipped:,} files were done before.")
    job.finish()


def _coding_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that change the bytes of shards: a run that continues has the same ones."""
    known = settings["dictionary"]
    identity = known if known is None or isinstance(known, str) else known.identity
    kept = {name: value for name, value in settings.items() if name not in ("device", "threads")}
    return {name: value for name, value in (kept | {"dictionary": identity}).items() if value is not None}


class _Run:
    """A run over the files of a folder, which are listed while others are coded."""

    def __init__(self, job: Job, root: Path, targets: Template, size: int, notes: Manifest, overwrite: bool):

        self._job, self._root, self._targets, self._size = job, root, targets, size
        self._notes, self._noted = notes, Noted(notes.path, targets)
        self._task = Task({}, _MARK.format(notes.session), overwrite)
        self._planned = set[Path]()
        self.summary = Summary("compress --shards")
        self.started = False  # whether something was written
        self.skipped = self.files = self.shards = self.failures = self.calls = self.lost = 0

    def prepare(self, settings: dict[str, Any], learns: tuple[int, ...] | None) -> None:
        """Complete the settings, and train the dictionary if the user asks for one."""
        going_on = bool(self._notes.earlier)
        if not going_on:
            check_targets(self._targets.path(0), self._job.force)
        _tidy(self._targets, self._notes.earlier)
        if learns is not None:
            settings = settings | _trained_dictionary(self._job, self._root, self._targets, learns, going_on)
            self.started = True
        self._task.options.update(settings)

    def make_shards(self, engine: Engine[Planned] | None, memory: int) -> None:
        """Make all shards that are to be made."""
        verify = self._task.options["verify"]
        with self._job.progress(str(self._targets.place), passes=2 if verify and not engine else 1) as tick:
            done = self._by_workers(engine, memory, tick) if engine else self._in_process(tick)
            for planned, result in done:
                self._ended(planned, result)
        if not self._planned and not self.skipped and not self._job.failed:
            raise SqueezeError(f"{self._root}: holds no files")
        ours = (path for path in map(self._targets.path, count()) if not self._is_ours(path))
        if (left := next(ours)).exists():
            self.fails(left, SqueezeError("it is a shard of another run: delete it"))

    def _in_process(self, tick: Tick) -> Iterator[tuple[Planned, Result]]:

        for planned in self._to_be_made(tick):
            yield planned, make_in_process(planned, self._task, threads=self._job.threads, progress=tick)

    def _by_workers(self, engine: Engine[Planned], memory: int, tick: Tick) -> Iterator[tuple[Planned, Result]]:

        gpus = 1 if str(self._task.options["device"]).startswith("cuda") else 0
        needs = Needs(self._task.options["threads"], gpus, PROCESS + memory)
        for planned, result in by_workers(engine, self._to_be_made(tick), self._task, needs):
            yield planned, result
            failed = f", {self.failures} failed" if self.failures else ""
            numbers = {"files": self.files, "failed": self.failures, "workers": engine.at_once(needs)}
            tick.say(f"{self.files} files{failed}, {numbers['workers']:g} workers", **numbers)
            tick(planned.size)

    def _to_be_made(self, tick: Tick) -> Iterator[Planned]:
        """Yield shards while files are listed, and tell the progress the number of all bytes at the end."""
        total, going_on = 0, bool(self._notes.earlier)
        compared = going_on and not self._notes.was_complete
        for planned in plan(self._listed(), self._targets, self._size, self._noted):
            self._planned.add(planned.target)
            with self._job.attempt(str(planned.target)):
                if going_on:  # an index without a shard is overwritten
                    files.check_target(planned.target, [], self._job.force or compared)
                else:
                    check_targets(planned.target, self._job.force)
                self.started = True
                total += planned.size
                yield planned
        tick.expect(total)

    def _listed(self) -> Iterator[Source]:

        for source in list_sources(self._paths(), self._root, self.fails):
            if there := self._noted.changed(source):
                self.fails(source.path, SqueezeError(f"it changed since it went into {there}: {_AGAIN}"))
            elif self._noted.shard_of(source) is not None:
                self.skipped += 1
            yield source

    def _paths(self) -> Iterator[Path]:
        manifest = self._notes.path.resolve()
        for path in self._job.iter_sources(lambda path: True):
            if path and not (path.name == manifest.name and path.resolve() == manifest):
                yield path

    def _is_ours(self, path: Path) -> bool:
        return path in self._planned or self._noted.is_there(path)

    def _ended(self, planned: Planned, result: Result) -> None:
        """Note and print what became of a shard."""
        self.calls, self.lost = self.calls + result.attempts, self.lost + result.lost
        for done in note(self._notes, planned, result):
            self.files += 1
            self.summary.add(done)
            if done.error:
                self.fails(done.file.source, SqueezeError(done.error))
        if result.error:
            self.fails(planned.target, SqueezeError(result.error))
        if result.coded:
            self.shards += 1
            self._report(planned, result)

    def fails(self, path: Path, error: Exception) -> None:
        self.failures += 1
        with self._job.attempt(str(path)):
            raise error

    def _report(self, planned: Planned, result: Result) -> None:
        job, members = self._job, len(result.checksums)
        if job.as_json:
            facts = {"output": str(planned.target), "level": int(self._task.options["level"]), "members": members}
            facts |= {"raw_size": result.raw, "coded_size": result.coded, "index_size": result.index}
            click.echo(json.dumps(facts | {"seconds": round(result.seconds, 3)}))
        if job.verbose or sys.stderr.isatty():
            sizes = f"{result.raw:,} -> {result.coded:,} bytes ({100 * result.coded / result.raw:.1f} %)"
            job.say(f"{planned.target}: {members} files, {sizes}, {result.seconds:.1f} s")

    def report_totals(self, engine: Engine[Any]) -> None:
        failed = f", {self.failures} failed" if self.failures else ""
        sizes = f"{self.summary.raw:,} bytes raw, {self.summary.coded:,} compressed"
        where = f"{self.summary.seconds:.1f} s on {engine.processors:g} cores"
        self._job.say(f"{self.files} files{failed} in {self.shards} shards, {sizes}, {where}")


def _trained_dictionary(
    job: Job, root: Path, targets: Template, levels: tuple[int, ...], going_on: bool
) -> dict[str, Any]:
    """Train a dictionary on a sample of a folder, or read that of the run that continues, and return its settings."""
    if going_on and targets.dictionary.exists():
        dictionary = resources.as_dictionary(targets.dictionary)
        assert dictionary
    else:
        paths = files.expand(
            root,
            True,
            lambda path: files.reason_to_skip(path) is None and not job.excludes(root, path),
            _ignore,
            _ignore,
        )
        with job.progress(str(targets.dictionary)) as tick:
            level = levels[-1] if levels else training.LEVEL
            samples = sample(list_sources(paths, root, _ignore))
            dictionary = training.train(samples, targets.dictionary, level=level, overwrite=job.force, progress=tick)
    return {"dictionary": targets.dictionary, "level": dictionary.level}


def _ignore(*what: object) -> None:
    """Ignore files that are left out: the run reports them."""


def _tidy(targets: Template, sessions: set[str]) -> None:
    """Delete temporary files of runs that were killed. A store does not show unfinished objects."""
    if storage.remote(targets.place):
        return
    endings = tuple(f"{_MARK.format(session)}.tmp" for session in sessions)
    for left in targets.place.parent.iterdir() if endings else ():
        if left.name.startswith(".") and left.name.endswith(endings):
            left.unlink(missing_ok=True)
