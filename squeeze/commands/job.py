"""One run of a command over several files: which come in, where they go, what is said of them.

A file that fails is reported and the next one follows. What is done to a file
is the command's; how a file is replaced is files.py's.
"""

import errno
import io
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

from squeeze.commands.echo import echo
from squeeze.commands.options import STDOUT
from squeeze.commands.progress import Tick, bar, is_shown
from squeeze.errors import SqueezeError, StorageError, escaped
from squeeze.system import files, machine, storage, unchanged
from squeeze.system.binary import flush
from squeeze.system.moving import harmless_to

if TYPE_CHECKING:
    from squeeze.codecs.stream.resources import Totals

MISHAPS = (SqueezeError, OSError, MemoryError)
_RENAMED = {  # arguments whose options are not called like them
    "base_folder": "--base",
    "dictionary": "-D",
    "limits.memory": "--memlimit",
    "limits.output": "--max-output",
    "overwrite": "-f",
    "span": "--range",
    "target_bytes": "--target-size",
}
_ARGUMENT = re.compile(r"`([a-z_.]+)(?:=(?:True|'(\w+)'))?`")  # as messages of the library name them


def explain(error: BaseException, name: str = "") -> str:
    """Return one sentence for what went wrong with the file `name`, with the error's notes, on one line. It names
    options in place of arguments."""
    name = "" if getattr(error, "is_named", False) else name
    said = "; ".join([_explain(error, f"{name}: " if name else ""), *getattr(error, "__notes__", ())])
    return escaped(_ARGUMENT.sub(_as_option, said))


def _as_option(argument: re.Match[str]) -> str:
    name, value = argument.groups()
    option = _RENAMED.get(name, f"--{name.replace('_', '-')}")
    return f"{option} {value}" if value else option


def _explain(error: BaseException, prefix: str) -> str:
    if isinstance(error, KeyboardInterrupt):
        return "interrupted; what was not done by then is as it was"
    if isinstance(error, MemoryError):
        return f"{prefix}not enough memory; use fewer threads (-T) or a smaller --block-size"
    if isinstance(error, OSError) and error.strerror == os.strerror(errno.ENOSPC):
        return f"{prefix}no space is left on the disk; nothing was replaced"
    if isinstance(error, OSError) and error.strerror and not isinstance(error, StorageError):
        return f"{f'{error.filename}: ' if error.filename else prefix}{error.strerror}"
    return str(error) if str(error).startswith(prefix) else f"{prefix}{error}"


@dataclass
class Job:
    """The options that the commands on files share, and whether a file has failed."""

    files: tuple[str, ...]
    threads: int  # 0: one a core
    quiet: bool
    verbose: bool
    as_json: bool
    recursive: bool = False
    output: Path | None = None
    stdout: bool = False
    rm: bool = False
    force: bool = False
    reads_only: bool = False
    failed: bool = False
    skipped: bool = False  # a file that was named, which ends in exit code 2
    done: int = 0  # files
    before: int = 0  # bytes of them
    after: int = 0
    passed_over: int = 0  # files of folders whose results are there
    compressed: int = 0  # files of folders that are not compressed again

    def __post_init__(self) -> None:
        if self.output is STDOUT:
            self.output, self.stdout = None, True
        self.threads = self.threads or machine.available_cores()
        self.files = self.files or ("-",)
        if self.output and (self.recursive or len(self.files) > 1):
            raise click.UsageError("-o takes one file")
        if self.output and self.stdout:
            raise click.UsageError("-c and -o exclude each other")
        if self.reads_only:
            return
        self.stdout = self.stdout or (self.output is None and "-" in self.files)
        if self.stdout and self.as_json:
            raise click.UsageError("--json and -c both write to standard output")
        if self.stdout and self.rm:
            raise click.UsageError("--rm and -c exclude each other")

    def target(self, path: Path | None, name: Callable[[Path], Path]) -> Path | None:
        """Where the result of `path` goes; None is standard output."""
        return self.output if self.stdout or self.output or path is None else name(path)

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
        except MISHAPS as error:
            self.failed = True
            message = explain(error, name)
            click.echo(f"Error: {message}", err=True)
            if self.as_json:
                click.echo(json.dumps({"file": name, "error": message}))

    def sources(self, wanted: Callable[[Path], bool]) -> list[Path | None]:
        """The files to work on; None is standard input."""
        return list(self.each(wanted))

    def each(self, wanted: Callable[[Path], bool]) -> Iterator[Path | None]:
        """As `sources`, each when it is asked for."""
        for name in self.files:
            if name == "-":
                yield None
                continue
            with self.attempt(name):
                root = storage.path_of(name)
                for path in files.expand(root, self.recursive, wanted, self._pass_over, self._leave_out):
                    taken = False
                    with self.attempt(str(path)):
                        taken = self._takes(path, named=path == root)
                    if taken:
                        yield path

    def _takes(self, path: Path, named: bool) -> bool:
        reason = files.reason_to_skip(path)
        if reason and not (self.force or self.stdout or self.output or (self.reads_only and not self.recursive)):
            self.skip(f"{path}: {reason}; skipped (use -f to take it)", named)
            return False
        return True

    def skip(self, reason: str, named: bool) -> None:
        """Say that a file is skipped; if the user named it, the exit code is 2, as that of xz."""
        self.say(f"Warning: {reason}")
        self.skipped = self.skipped or named

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

    def _pass_over(self, error: OSError) -> None:
        """Report a folder that cannot be read."""
        with self.attempt(str(error.filename)):
            raise error

    def _leave_out(self, folder: Path) -> None:
        self.say(f"Warning: {folder}: is a link to a folder; skipped")

    def progress(
        self, name: str, total: Callable[[], int | None] = lambda: None, passes: int = 1
    ) -> AbstractContextManager[Tick]:
        """As progress.bar; the total is asked for only if it is shown."""
        known = total() if is_shown(self.quiet, self.as_json) else None
        return bar(name, known, passes=passes, quiet=self.quiet, as_json=self.as_json)

    def is_told(self) -> bool:
        return self.verbose or sys.stderr.isatty()

    def finish(self) -> None:
        """Say one line about all files of folders, and exit with 1 or 2 if files failed or were skipped."""
        if self.recursive and (self.passed_over or self.compressed or self.is_told()):
            line = f"{self.done} files, {self.before} -> {self.after} bytes"
            line += f"; {self.passed_over} were done before (-f does them again)" if self.passed_over else ""
            self.say(line + (f"; {self.compressed} .sqz files were left alone" if self.compressed else ""))
        if self.failed or self.skipped:
            raise click.exceptions.Exit(1 if self.failed else 2)


def transform(
    job: Job,
    path: Path | None,
    target: Path | None,
    action: Callable[[BinaryIO, BinaryIO, Tick], "Totals"],
    total: Callable[[BinaryIO], int | None],
    passes: int = 1,
    **details: object,
) -> None:
    """Run `action` from `path` (None: standard input) into `target` (None: standard output), and say how it went.

    `total` gives the bytes that the action ticks, once in each of its `passes`.
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
            with harmless_to(target or path, path):
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
        sizes = {"raw_size": totals.raw, "coded_size": totals.coded, "seconds": round(seconds, 3)}
        damage = {"damage": totals.damage} if totals.damage else {}
        click.echo(json.dumps({**record, **sizes, **damage}))
    before, after = (totals.raw, totals.coded) if "level" in record else (totals.coded, totals.raw)
    job.done, job.before, job.after = job.done + 1, job.before + before, job.after + after
    if job.verbose or (job.is_told() and not job.recursive):
        percent = f" ({100 * totals.coded / totals.raw:.1f} %)" if totals.raw else ""
        job.say(f"{record['file']}: {before} -> {after} bytes{percent}, {seconds:.1f} s")


def _output(job: Job, target: Path | None) -> BinaryIO:
    """Standard output; where nothing is written to it, nobody asks whether it is open."""
    return io.BytesIO() if job.reads_only or target else sys.stdout.buffer


def is_compressed(path: Path) -> bool:
    """By its name."""
    return path.suffix == files.SUFFIX


def refuse_terminal(job: Job) -> None:
    """Raises SqueezeError where compressed data would be typed in."""
    if "-" in job.files and sys.stdin.isatty():
        raise SqueezeError("compressed data is not read from a terminal; name a file or redirect one")


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
