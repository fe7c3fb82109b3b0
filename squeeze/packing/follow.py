"""Packing a training run while it goes on: each new checkpoint as the difference from the one before.

`Follow.run` looks at a folder again and again. pack.py packs a checkpoint, verifies it and moves it into place.
training_run.py tells whether a checkpoint is complete and which packed ones may be deleted. It also keeps the journal
from which a stopped run continues.
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
    """Something that happened to a checkpoint.

    PACKED: it was packed, as the difference from `base` if that is set. REMOVED: it was deleted from the run, since its
    packed form restores it. DROPPED: its packed form was deleted. LEFT: it was not touched. FAILED: it could not be
    packed. DAMAGED: its packed form or that one's base does not decode, so the next checkpoint is packed whole. `why`
    tells the reason.
    """

    kind: str
    name: str
    totals: Totals | None = None
    base: str = ""
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class Follow:
    """Options of following a run; level, max_chain, threads, verify and strict are those of `pack`.

    interval: seconds between two looks. A checkpoint that is complete and unchanged since the last look is packed.
    until_idle: end after N seconds without anything to pack, or never if None. keep: how many packed checkpoints of a
    kind stay, besides their bases, or all if None. remove_source: delete a checkpoint once a later one is packed and
    its own packed form was decoded and has the hash of each file.
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
    _looks: dict[str, Stamp | None] = field(default_factory=dict)  # by name, at the last look
    _failed: dict[str, Stamp] = field(default_factory=dict)  # by name, of checkpoints that could not be packed

    def run(self) -> Iterator[Event]:
        """Yield events as they happen.

        Raises SqueezeError if the folders cannot be used, or another process follows into the same one.
        """
        if not self.source.is_dir():
            raise SqueezeError(f"{escaped(str(self.source))}: not a folder: name the folder of the run")
        folder.check_target(self.source, self.target, overwrite=True)
        self.target.mkdir(exist_ok=True)
        with _exclusive(self.target):
            journal, busy = Journal(self.target), time.monotonic()
            while True:
                before = dict(self._looks)
                for name in self._candidates(journal):
                    yield from self._look(name, journal)
                if self._looks != before:
                    busy = time.monotonic()
                elif self.until_idle is not None and time.monotonic() - busy >= self.until_idle:
                    break
                time.sleep(self.interval)
            yield from self._unpacked_events(journal)

    def _candidates(self, journal: Journal) -> list[str]:
        """Return the names of possible checkpoints that are not packed yet, the earliest first."""
        paths = [path for path in self.source.iterdir() if not path.name.startswith((".", "tmp-"))]
        return sorted(
            (p.name for p in paths if p.name not in journal.packed and training_run.may_become_checkpoint(p)), key=order
        )

    def _look(self, name: str, journal: Journal) -> Iterator[Event]:
        """Pack a checkpoint if it is complete and unchanged since the last look, and delete what it makes obsolete."""
        path, before = self.source / name, self._looks.get(name)
        self._looks[name] = stamp = training_run.stamp(path)
        if stamp is None or stamp != before or stamp == self._failed.get(name) or training_run.why_incomplete(path):
            return
        try:
            events = self._pack(name, journal)
        except (SqueezeError, FileNotFoundError) as error:
            if training_run.stamp(path) == stamp:  # else it is being written, or was deleted
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
        """Delete packed checkpoints that nothing needs."""
        try:
            names = training_run.deletable(self.target, journal, keep)
        except training_run.UnreadableError as error:
            yield Event(LEFT, error.name, why=str(error))
            return
        for old in names:
            try:
                why = training_run.why_not_deletable(self.target / old)
            except (SqueezeError, OSError) as error:
                why = str(error)
            if why:
                yield Event(LEFT, old, why=why)
                continue
            _delete(self.target / old)
            yield Event(DROPPED, old)

    def _pack(self, name: str, journal: Journal) -> list[Event]:
        source, target = self.source / name, self.target / name
        if target.exists():  # packed by a run that was stopped before its note, or by something else
            if not _is_packed_form(target, source):
                raise SqueezeError(
                    f"{escaped(str(target))} exists and is not the packed form of {escaped(name)}: move it away"
                )
            return [Event(PACKED, name, Totals(folder.raw_size(source), _bytes(target)), _base_of(target))]
        before, events = journal.previous(name), list[Event]()
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
        """Return why a packed checkpoint does not decode, or None if it does."""
        try:
            if name:
                verify(self.target / name, threads=self.threads)
        except (SqueezeError, FileNotFoundError) as error:
            return error
        return None

    def _remove_before(self, name: str, journal: Journal) -> Iterator[Event]:
        """Delete the checkpoints before one that was just packed. The last one stays: a run may resume from it."""
        for old in journal.earlier(name):
            source, target = self.source / old, self.target / old
            if source.is_symlink() or not training_run.may_become_checkpoint(source):
                continue
            try:
                verify(target, threads=self.threads)
                omitted = folder.left_out(source, strict=False)
                same = _is_packed_form(target, source)
            except (SqueezeError, FileNotFoundError) as error:
                yield Event(LEFT, old, why=f"its packed form cannot be trusted: {error}")
                continue
            if omitted or not same:
                yield Event(LEFT, old, why=omitted[0] if omitted else "it has changed since it was packed")
                continue
            _delete(source)
            yield Event(REMOVED, old)

    def _unpacked_events(self, journal: Journal) -> Iterator[Event]:
        """Yield an event for each checkpoint that was not packed."""
        for name in self._candidates(journal):
            if name not in self._failed:
                yield Event(
                    LEFT, name, why=training_run.why_incomplete(self.source / name) or "it was written to until the end"
                )


def _is_packed_form(packed: Path, source: Path) -> bool:
    """Return whether a packed file or folder restores files with the hashes of those of `source`."""
    try:
        if not source.is_dir():
            return container.read(packed).description.sha256 == folder.sha256_of(source)
        hashes = {name: folder.sha256_of(source / name) for name in folder.files_to_take(source)}
        return manifest.read(packed).hashes == hashes
    except FormatError:
        return False


def _base_of(packed: Path) -> str:
    """Return the name of the base of a packed checkpoint, "" if it is packed whole."""
    links = list(islice(history(packed), 2))
    return links[1].path.name if len(links) > 1 and links[1].path else ""


def _bytes(path: Path) -> int:
    return sum(one.stat().st_size for one in (path.rglob("*") if path.is_dir() else [path]) if one.is_file())


def _delete(path: Path) -> None:
    """Delete a file or folder, which disappears from its place at once."""
    with scratch_folder(path) as scratch:
        path.rename(scratch / "old")


@contextmanager
def _exclusive(target: Path) -> Iterator[None]:
    """Hold a lock on the folder. Raises SqueezeError if another process follows into it."""
    handle = os.open(target, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise SqueezeError(
            f"{escaped(str(target))}: another process already follows a run into it: stop it or choose another folder"
        ) from None
    else:
        yield
    finally:
        os.close(handle)
