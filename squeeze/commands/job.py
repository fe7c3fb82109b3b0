"""One run of a command over several files: which files it takes, where results go, and what it prints.

A file that fails is reported, and the next one follows. Each command does its own work on a file. system/files.py
replaces files.
"""

import io
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

from squeeze.commands.echo import EXPECTED_ERRORS, echo, explain
from squeeze.commands.progress import Tick, bar, is_shown
from squeeze.commands.values import STDOUT
from squeeze.errors import SqueezeError
from squeeze.system import files, machine, storage, unchanged
from squeeze.system.binary import flush
from squeeze.system.moving import errors_after

if TYPE_CHECKING:
    from squeeze.codecs.stream.resources import Totals


@dataclass
class Job:
    """The options that the commands on files share, and the counts of a run."""

    files: tuple[str, ...]
    threads: int  # 0: one per core
    quiet: bool
    verbose: bool
    as_json: bool
    recursive: bool = False
    exclude: tuple[str, ...] = ()  # patterns
    output: Path | None = None
    output_dir: Path | None = None
    stdout: bool = False
    rm: bool = False
    force: bool = False
    reads_only: bool = False
    restores: bool = False  # whether results are the raw files
    archive: bool = False  # whether all files go into one
    folders: str = "use -r to take every file in it"  # what to do with a folder
    on_terminal: bool = False  # whether standard error of the process that prints is a terminal
    failed: bool = False
    skipped: bool = False  # whether a file that was named is skipped, which ends in exit code 2
    done: int = 0  # files
    raw: int = 0  # bytes
    coded: int = 0
    passed_over: int = 0  # files in folders that were done before
    compressed: int = 0  # files in folders that are compressed already
    started: float = field(default_factory=time.perf_counter)
    targets: set[Path] = field(default_factory=set)  # in output_dir

    def __post_init__(self) -> None:
        if self.output is STDOUT:
            self.output, self.stdout = None, True
        self.threads = self.threads or machine.available_cores()
        self.files = self.files or ("-",)
        if self.output and not self.archive and (self.recursive or len(self.files) > 1):
            raise click.UsageError("-o takes one file: use --output-dir for several")
        if self.output and self.stdout:
            raise click.UsageError("-c and -o exclude each other")
        if self.output_dir and (self.stdout or self.output or "-" in self.files):
            raise click.UsageError("--output-dir takes files, and neither -c nor -o")
        if self.reads_only:
            return
        self.stdout = self.stdout or (self.output is None and "-" in self.files)
        if self.stdout and self.as_json:
            raise click.UsageError("--json and -c both write to standard output")
        if self.stdout and self.rm:
            raise click.UsageError("--rm and -c exclude each other")

    def target(self, path: Path | None, name: Callable[[Path], Path]) -> Path | None:
        """Return where the result of `path` goes, or None for standard output. Folders in --output-dir are made."""
        if self.stdout or self.output or path is None:
            return self.output
        if not self.output_dir:
            return name(path)
        target = self.output_dir / self._below(path).parent / name(path).name
        if target in self.targets:
            raise SqueezeError(f"{target} is the result of another file already: use another --output-dir for this one")
        self.targets.add(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        return target

    def _below(self, path: Path) -> Path:
        """Return the path of a file below the folder that was named, with that folder's name."""
        roots = [storage.path_of(name) for name in self.files]
        root = next((root for root in roots if path != root and path.is_relative_to(root)), None)
        if root is None:
            return Path(path.name)
        return Path("" if root.name == ".." else root.name) / path.relative_to(root)

    def excludes(self, root: Path, path: Path) -> bool:
        """Return whether a pattern of --exclude matches a path below `root`, or a folder that it is in.

        A pattern is compared with names, and with whole paths relative to `root`.
        """
        if not self.exclude:
            return False
        parts = path.relative_to(root).parts
        wholes = ("/".join(parts[: i + 1]) for i in range(len(parts)))
        return any(fnmatchcase(text, pattern) for text in (*parts, *wholes) for pattern in self.exclude)

    def tasks(
        self, sources: Iterable[Path | None], name: Callable[[Path], Path]
    ) -> Iterator[tuple[Path | None, Path | None]]:
        """Yield each source with the place of its result, except those that were done before."""
        for path in sources:
            with self.attempt(str(path or "-")):
                target = self.target(path, name)
                if not self.passes_over(path, target):
                    yield path, target

    def say(self, line: str) -> None:
        if not self.quiet:
            echo(line, err=True)

    @contextmanager
    def attempt(self, name: str) -> Iterator[None]:
        """Report what goes wrong with one file, so that the next can follow."""
        try:
            yield
        except BrokenPipeError:
            raise
        except EXPECTED_ERRORS as error:
            self.failed = True
            message = explain(error, name)
            click.echo(f"Error: {message}", err=True)
            if self.as_json:
                click.echo(json.dumps({"file": name, "error": message}))

    def sources(self, is_input: Callable[[Path], bool]) -> list[Path | None]:
        """Return the files to work on; None is standard input."""
        return list(self.iter_sources(is_input))

    def iter_sources(self, is_input: Callable[[Path], bool]) -> Iterator[Path | None]:
        """Yield the files to work on as they are found; None is standard input."""
        for name in self.files:
            if name == "-":
                yield None
                continue
            with self.attempt(name):
                root = storage.path_of(name)
                if not self.recursive and not storage.remote(root) and root.is_dir() and not root.is_symlink():
                    raise SqueezeError(f"is a folder: {self.folders}")
                yield from self._walk(root, is_input)

    def _walk(self, root: Path, is_input: Callable[[Path], bool]) -> Iterator[Path]:
        """Yield a file, or the files of a folder that are wanted and not excluded."""

        def unreadable(error: OSError) -> None:
            if not self.excludes(root, Path(error.filename)):
                with self.attempt(str(error.filename)):
                    raise error

        def linked(folder: Path) -> None:
            if not self.excludes(root, folder):
                self.say(f"Warning: {folder}: is a link to a folder; skipped")

        def takes(path: Path) -> bool:
            return not self.excludes(root, path) and is_input(path)

        for path in files.expand(root, self.recursive, takes, unreadable, linked):
            accepted = False
            with self.attempt(str(path)):
                accepted = self._accepts(path, by_name=path == root)
            if accepted:
                yield path

    def _accepts(self, path: Path, by_name: bool) -> bool:
        reason = files.reason_to_skip(path)
        if reason and not (self.force or self.stdout or self.output or (self.reads_only and not self.recursive)):
            self.skip(f"{path}: {reason}; skipped (use -f to take it)", by_name)
            return False
        return True

    def skip(self, reason: str, by_name: bool) -> None:
        """Say that a file is skipped; if the user named it, the exit code is 2, as that of xz."""
        self.say(f"Warning: {reason}")
        self.skipped = self.skipped or by_name

    def passes_over(self, path: Path | None, target: Path | None) -> bool:
        """Return whether the result of a file in a folder is there, which has the time that the file still has."""
        if not self.recursive or self.force or self.rm or path is None or target is None or str(path) in self.files:
            return False
        if storage.remote(path) or storage.remote(target):
            return False
        try:
            done = files.reason_to_skip(target) is None and target.stat().st_mtime_ns == path.stat().st_mtime_ns
        except OSError:
            return False
        self.passed_over += done
        return done

    def progress(
        self, name: str, total: Callable[[], int | None] = lambda: None, passes: int = 1
    ) -> AbstractContextManager[Tick]:
        """Return `progress.bar` of this run. The total is computed only if it is shown."""
        known = total() if is_shown(self.quiet, self.as_json) else None
        return bar(name, known, passes=passes, quiet=self.quiet, as_json=self.as_json)

    def prints_each(self) -> bool:
        """Return whether a line is printed for each file."""
        return self.verbose or self.on_terminal or sys.stderr.isatty()

    def finish(self) -> None:
        """Print the totals of a run over several files, and exit with 1 or 2 if files failed or were skipped."""
        passed = self.passed_over or self.compressed
        if (self.recursive and passed) or (self._is_many() and self.prints_each() and (self.done or passed)):
            seconds = time.perf_counter() - self.started
            line = f"{self.done:,} files, {self.sizes(self.raw, self.coded, seconds)}"
            line += f"; {self.passed_over:,} were done before (-f does them again)" if self.passed_over else ""
            self.say(line + (f"; {self.compressed:,} .sqz files were left alone" if self.compressed else ""))
        if self.failed or self.skipped:
            raise click.exceptions.Exit(1 if self.failed else 2)

    def sizes(self, raw: int, coded: int, seconds: float) -> str:
        """Return sizes before and after, the ratio and the time in words."""
        before, after = (coded, raw) if self.restores else (raw, coded)
        percent = f" ({100 * coded / raw:.1f} %)" if raw else ""
        return f"{before:,} -> {after:,} bytes{percent}, {seconds:.1f} s"

    def _is_many(self) -> bool:
        return self.recursive or len(self.files) > 1


def transform(
    job: Job,
    path: Path | None,
    target: Path | None,
    action: Callable[[BinaryIO, BinaryIO, Tick], "Totals"],
    total: Callable[[BinaryIO], int | None],
    passes: int = 1,
    **details: object,
) -> None:
    """Run `action` from one file into another, and print how it went.

    Args:
        job: The run.
        path: The source; None is standard input.
        target: The result; None is standard output.
        action: Is called with the source, the sink and a tick.
        total: Returns the bytes that the action ticks in each of its passes.
        passes: How often the action goes through the content.
        details: Entries of the JSON record.
    """
    started = time.perf_counter()
    if target:
        files.check_target(target, [path] if path else [], job.force)
        if job.rm and files.is_special(target):
            raise SqueezeError(f"{target} is not a regular file, so --rm would lose the source")
    reading: AbstractContextManager[BinaryIO] = path.open("rb") if path else nullcontext(sys.stdin.buffer)
    with reading as source:
        opened = files.status(source) if path else None
        writing: AbstractContextManager[BinaryIO] = nullcontext(_output(job, target))
        if target:
            writing = files.replacing(target, opened, job.force)
        with writing as sink, job.progress(str(path or "-"), lambda: total(source), passes) as tick:
            totals = action(source, sink, tick)
            flush(sink)
        changed = bool(path and opened and unchanged.has_changed(path, opened))
        read = f"changed while it was read{f'; {target} holds what was read' if target else ''}"
        complaints = [*totals.damage, *[read] * changed]
        if job.rm and path and not complaints:
            with errors_after(target or path, path):
                path.unlink()
    for line in complaints:
        job.failed = True
        echo(f"Error: {path or '-'}: {line}", err=True)
    record = {"file": str(path or "-"), **details}
    if not job.reads_only:
        record["output"] = str(target or "-")
    if changed:
        record["changed"] = True
    _summarize(job, record, totals, time.perf_counter() - started)


def _summarize(job: Job, record: dict[str, object], totals: "Totals", seconds: float) -> None:
    if job.as_json:
        facts = {"raw_size": totals.raw, "coded_size": totals.coded, "seconds": round(seconds, 3)}
        damage = {"damage": totals.damage} if totals.damage else {}
        opened = {"opened": totals.opened.as_json()} if totals.opened else {}
        click.echo(json.dumps({**record, **facts, **damage, **opened}))
    job.done, job.raw, job.coded = job.done + 1, job.raw + totals.raw, job.coded + totals.coded
    if job.reads_only:
        if not job.as_json and not job.quiet and not totals.damage:
            with suppress(SqueezeError):  # standard output is closed: the exit code says the same
                echo(f"{record['file']}: OK")
    elif job.verbose or (job.prints_each() and not job.recursive):
        job.say(f"{record['file']}: {job.sizes(totals.raw, totals.coded, seconds)}")


def _output(job: Job, target: Path | None) -> BinaryIO:
    """Return standard output, or a buffer if nothing is written to it, so that it can be closed."""
    return io.BytesIO() if job.reads_only or target else sys.stdout.buffer


def is_compressed(path: Path) -> bool:
    """Return whether the name of a file is that of a compressed one."""
    return path.suffix == files.SUFFIX


def refuse_terminal(job: Job) -> None:
    """Raise SqueezeError if compressed data would be read from a terminal."""
    if "-" in job.files and sys.stdin.isatty():
        raise SqueezeError("compressed data is not read from a terminal: name a file, or redirect standard input")


def size_of(source: BinaryIO) -> int | None:
    return files.status(source).st_size if source.seekable() else None


def raw_size_of(source: BinaryIO) -> int | None:
    from squeeze.codecs.stream.index import read_index

    if not source.seekable():
        return None
    start = source.tell()
    try:
        return sum(stream.raw_size for stream in read_index(source))
    except SqueezeError:
        return None
    finally:
        source.seek(start)
