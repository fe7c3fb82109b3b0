"""A training run is packed while it goes: each new checkpoint as its difference from the one before, once it is whole.

`Follow.run` looks at a folder again and again. Whether a checkpoint is whole, whole.py says; pack.py packs it, proves
it and moves it into place; journal.py notes it, so that a run that was stopped goes on from there; which packed ones
may go is training_run.py's.
"""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from squeeze.errors import FormatError, SqueezeError, escaped
from squeeze.packing import container, folder, manifest, training_run
from squeeze.packing.chain import history
from squeeze.packing.pack import Totals, pack
from squeeze.packing.training_run import Journal, Stamp, order
from squeeze.packing.unpack import verify
from squeeze.system.work import scratch_folder

__all__ = ["DAMAGED", "DROPPED", "FAILED", "LEFT", "PACKED", "REMOVED", "Event", "Follow"]

PACKED, REMOVED, DROPPED, LEFT, FAILED, DAMAGED = "packed", "removed", "dropped", "left", "failed", "damaged"


@dataclass(frozen=True)
class Event:
    """What happened to a checkpoint: it was PACKED, as the difference from `base` if that is named; it was REMOVED from
    the run, as its packed form restores it; its packed form was DROPPED; it is LEFT, or it FAILED, and `why`; its
    packed form is DAMAGED, or what that is the difference from, and `why`: the next one is packed whole."""

    kind: str
    name: str
    totals: Totals | None = None
    base: str = ""
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class Follow:
    """level, max_chain, threads, verify and strict are those of `pack`.

    interval: seconds between two looks; what is whole, and has not changed from one to the next, is packed. until_idle:
    seconds after which it ends if there was nothing to pack; None for never. keep: how many packed checkpoints of a
    kind stay, besides what they are differences from; None for all. remove_source: a checkpoint goes when a later one
    is packed, and its own packed form was decoded and has the hash of each of its files.
    """

    source: Path
    target: Path
    level: str = "runtime"
    max_chain: int = 16
    threads: int = 1
    verify: bool = True
    strict: bool = False
    interval: float = 10.0
    until_idle: float | None = None
    keep: int | None = None
    remove_source: bool = False
    _looks: dict[str, Stamp | None] = field(default_factory=dict)  # what each was like at the last look
    _failed: dict[str, Stamp] = field(default_factory=dict)  # what those were like that could not be packed

    def run(self) -> Iterator[Event]:
        """What happens, as it happens. Raises SqueezeError where the folders cannot be used, or another process follows
        into the same one."""
        if not self.source.is_dir():
            raise SqueezeError(f"{escaped(str(self.source))}: not a folder, and `follow` takes one")
        folder.check_target(self.source, self.target, overwrite=True)
        self.target.mkdir(exist_ok=True)
        with _alone(self.target):
            journal, busy = Journal(self.target), time.monotonic()
            while True:
                before = dict(self._looks)
                for name in self._found(journal):
                    yield from self._look(name, journal)
                if self._looks != before:
                    busy = time.monotonic()
                elif self.until_idle is not None and time.monotonic() - busy >= self.until_idle:
                    break
                time.sleep(self.interval)
            yield from self._left(journal)

    def _found(self, journal: Journal) -> list[str]:
        """Names of what may be checkpoints that are to be packed, the earliest first."""
        paths = [path for path in self.source.iterdir() if not path.name.startswith((".", "tmp-"))]
        return sorted((p.name for p in paths if p.name not in journal.packed and training_run.may_be(p)), key=order)

    def _look(self, name: str, journal: Journal) -> Iterator[Event]:
        """Pack a checkpoint if it is whole and as it was at the last look, and do what follows from that."""
        path, before = self.source / name, self._looks.get(name)
        self._looks[name] = stamp = training_run.stamp(path)
        if stamp is None or stamp != before or stamp == self._failed.get(name) or training_run.missing(path):
            return
        try:
            events = self._pack(name, journal)
        except (SqueezeError, FileNotFoundError) as error:
            if training_run.stamp(path) == stamp:  # else it is being written, or was deleted: the next look tells
                self._failed[name] = stamp
                yield Event(FAILED, name, why=str(error))
            return
        journal.note(name)
        del self._looks[name]
        yield from events
        if self.remove_source:
            yield from self._remove_before(name, journal)
        if self.keep:
            yield from self._drop(journal, self.keep)

    def _drop(self, journal: Journal, keep: int) -> Iterator[Event]:
        """Delete packed forms that nothing needs."""
        try:
            names = training_run.superfluous(self.target, journal, keep)
        except training_run.UnreadableError as error:
            yield Event(LEFT, error.name, why=str(error))
            return
        for old in names:
            try:
                why = training_run.foreign(self.target / old)
            except (SqueezeError, OSError) as error:
                why = str(error)
            if why:
                yield Event(LEFT, old, why=why)
                continue
            _delete(self.target / old)
            yield Event(DROPPED, old)

    def _pack(self, name: str, journal: Journal) -> list[Event]:
        source, target = self.source / name, self.target / name
        if target.exists():  # packed by a run that was stopped before it could note that, or by somebody else
            if not _is_packed_form(target, source):
                raise SqueezeError(f"{escaped(str(target))} is there, and is not {escaped(name)} packed: move it away")
            return [Event(PACKED, name, Totals(folder.raw_size(source), _bytes(target)), _base_of(target))]
        before, events = journal.before(name), list[Event]()
        try:
            totals = self._packed(name, before)
        except (SqueezeError, FileNotFoundError):
            fault = self._fault_of(before)
            if before is None or fault is None:
                raise
            events.append(Event(DAMAGED, before, why=str(fault)))
            totals = self._packed(name, None)
        return [*events, Event(PACKED, name, totals, _base_of(target))]

    def _packed(self, name: str, base: str | None) -> Totals:
        return pack(
            *(self.source / name, self.target / name),
            base=self.target / base if base else None,
            level=self.level,
            max_chain=self.max_chain,
            threads=self.threads,
            verify=self.verify,
            strict=self.strict,
        )

    def _fault_of(self, name: str | None) -> Exception | None:
        """Why a packed checkpoint does not decode; None where it does."""
        try:
            if name:
                verify(self.target / name, threads=self.threads)
        except (SqueezeError, FileNotFoundError) as error:
            return error
        return None

    def _remove_before(self, name: str, journal: Journal) -> Iterator[Event]:
        """Delete what came before a checkpoint that was just packed. The last one stays: a run may go on from it."""
        for old in journal.earlier(name):
            source, target = self.source / old, self.target / old
            if source.is_symlink() or not training_run.may_be(source):
                continue
            try:
                verify(target, threads=self.threads)
                omitted = folder.left_out(source, strict=False)
                same = _is_packed_form(target, source)
            except (SqueezeError, FileNotFoundError) as error:
                yield Event(LEFT, old, why=f"its packed form is not to be relied on: {error}")
                continue
            if omitted or not same:
                yield Event(LEFT, old, why=omitted[0] if omitted else "it has changed since it was packed")
                continue
            _delete(source)
            yield Event(REMOVED, old)

    def _left(self, journal: Journal) -> Iterator[Event]:
        """What was not packed in the end."""
        for name in self._found(journal):
            if name not in self._failed:
                yield Event(
                    LEFT, name, why=training_run.missing(self.source / name) or "it was written to until the end"
                )


def _is_packed_form(packed: Path, source: Path) -> bool:
    """Whether what a packed file or folder restores has the hashes of the files of `source`."""
    try:
        if not source.is_dir():
            return container.read(packed).description.sha256 == folder.sha256_of(source)
        hashes = {name: folder.sha256_of(source / name) for name in folder.files_to_take(source)}
        return manifest.read(packed).hashes == hashes
    except FormatError:
        return False


def _base_of(packed: Path) -> str:
    """The name of the packed checkpoint that one is a difference from."""
    links = list(islice(history(packed), 2))
    return links[1].path.name if len(links) > 1 and links[1].path else ""


def _bytes(path: Path) -> int:
    return sum(one.stat().st_size for one in (path.rglob("*") if path.is_dir() else [path]) if one.is_file())


def _delete(path: Path) -> None:
    """A file or folder, which is gone from its place at once."""
    with scratch_folder(path) as scratch:
        path.rename(scratch / "old")


@contextmanager
def _alone(target: Path) -> Iterator[None]:
    """Raises SqueezeError where another process follows into the same folder."""
    handle = os.open(target, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise SqueezeError(f"{escaped(str(target))}: another process follows a run into it") from None
    else:
        yield
    finally:
        os.close(handle)
