"""Packing, restoring and verifying checkpoints by the workers of a cluster, with the bytes that one machine writes.

On the disk everything is made in a work folder next to the target, which is kept when a run stops and moves into place
at the end. At a URL each object appears when it is complete and verified. The manifest of a packed folder,
squeeze.json, comes last; a folder without it is not a packed checkpoint.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from squeeze.cluster.checkpoints import work
from squeeze.cluster.checkpoints.place import making, tidy
from squeeze.cluster.checkpoints.plan import Planner, memory_of
from squeeze.cluster.engine import Engine, Needs
from squeeze.cluster.files import version_of
from squeeze.cluster.manifest import Manifest, Record, read_manifest
from squeeze.cluster.operations import PACK, UNPACK, VERIFY, File, FileResult, Task
from squeeze.cluster.run import Kind, Run
from squeeze.errors import ClusterError, DamagedError, FormatError, printable
from squeeze.packing import container, folder, manifest as manifests, pack as packing
from squeeze.packing.base import is_packed
from squeeze.packing.pack import Totals
from squeeze.packing.sources import CODED
from squeeze.packing.unpack import Restoring
from squeeze.system import files, storage
from squeeze.system.limits import Limits
from squeeze.system.unchanged import stamp_of

__all__ = ["pack", "unpack", "verify"]

_READERS = 16  # headers that are read concurrently
Failed = Callable[[FileResult], None]


@dataclass
class _Checkpoint:
    """All files of a checkpoint and their results. `heads` are those of files that have tensors."""

    engine: Engine[Any]
    task: Task
    progress: Callable[[int], None]
    failed: Failed
    heads: dict[Path, Any]
    results: dict[str, FileResult] = field(default_factory=dict)
    failures: int = 0

    def run(self, found: list[File], notes: Manifest | None = None) -> dict[str, FileResult]:
        """Run all files. Raise ClusterError if some failed, after all others are done."""
        root, todo = self.task.options["root"], found
        if notes:
            before = {record.source: record for record in read_manifest(notes.path).records} if notes.earlier else {}
            todo = [file for file in found if not self._is_done(file, notes, before.get(str(file.source)))]
        memory = memory_of(self.heads, self.task.options.get("level"))
        needs = Needs(self.task.options["threads"], 0, memory)
        kind = Kind(partial(Planner, self.heads), work.whole, work.part, work.join)
        current_run = Run(self.engine, self.task, notes, needs, kind=kind, progress=self.progress)
        for result in current_run.results(todo):
            if result.error:
                self.failed(result)
            else:
                self.results[work.name_in(root, result.file.source)] = result
        if current_run.failures:
            raise ClusterError(f"{current_run.failures} of {len(found)} files failed")
        return {name: self.results[name] for name in (work.name_in(root, file.source) for file in found)}

    def _is_done(self, file: File, notes: Manifest, record: Record | None) -> bool:
        """Return the result of a file that an earlier run has made and that still exists, or None."""
        assert file.target
        if record is None or record.error or not file.target.is_file():
            return False
        size = file.target.stat().st_size
        if not notes.is_done(str(file.source), file.stamp, str(file.target), size):
            return False
        raw = file.size if self.task.operation == PACK else size
        coded = size if self.task.operation == PACK else file.size
        self.results[work.name_in(self.task.options["root"], file.source)] = FileResult(
            file, raw, coded, record.checksum
        )
        self.progress(file.size)
        return True


def pack(  # noqa: PLR0913
    engine: Engine[Any],
    source: Path,
    target: Path,
    *,
    level: str = "runtime",
    base: Path | None = None,
    max_chain: int = 16,
    threads: int = 1,
    verify: bool = True,
    strict: bool = False,
    overwrite: bool = False,
    manifest: Path | None = None,
    progress: Callable[[int], None] = lambda count: None,
    failed: Failed = lambda done: None,
) -> Totals:
    """Pack a checkpoint as `squeeze.pack` does, by the workers of a cluster.

    Args:
        engine: The workers.
        manifest: Where a run to a URL records its results.
        failed: Called with each file that fails, while all others are packed.
        threads: The number of threads of a worker.

    Raises:
        ClusterError: Some files failed.
    """
    packing.check_level(level)
    _check_source(source)
    contents = folder.contents_of(source, strict)
    source, names = contents.root, list(contents.files)
    base_weights, notes = packing.base_of_chain(source, base, max_chain)
    notes = [*contents.notes, *notes]
    described = packing.described(source, {}, level, base_weights)
    with making(source, target, PACK, described, overwrite, manifest) as out:
        options: dict[str, Any] = {
            "root": source,
            "level": level,
            "base": base_weights,
            "verify": verify,
            "threads": threads,
            "shared": packing.shared_in(contents.files),
        }
        paths = list(contents.files.values())
        job = _Checkpoint(engine, Task(PACK, options, out.mark), progress, failed, {})
        job.heads = _heads(paths, lambda path: work.source_at(path, not work.name_in(source, path)))
        found = [_file(path, folder.place(out.root, name)) for path, name in zip(paths, names, strict=True)]
        results = job.run(found, out.notes)
        totals = _total(results)
        notes += [one.note for one in results.values() if one.note]
        if source.is_dir():
            added = _finish_folder(source, out.root, {name: one.checksum for name, one in results.items()})
            totals = replace(totals, coded=totals.coded + added)
        notes += packing.unhelpful(source, out.root, base_weights)
        tidy(out.root, target, {*names, folder.MANIFEST})
    return replace(totals, left_out=contents.left_out, notes=tuple(notes))


def unpack(  # noqa: PLR0913
    engine: Engine[Any],
    source: Path,
    target: Path,
    *,
    base: Path | None = None,
    threads: int = 1,
    limits: Limits | None = None,
    overwrite: bool = False,
    manifest: Path | None = None,
    progress: Callable[[int], None] = lambda count: None,
    failed: Failed = lambda done: None,
) -> Totals:
    """Restore a checkpoint as `squeeze.unpack` does, by the workers of a cluster. See `pack` for manifest, failed,
    threads.
    """
    _check_source(source)
    described = {"source": str(source.resolve())}
    restoring = Restoring.of(source, base, threads, limits, None)
    hashes, changed, packed = _listed_files(source, restoring.limits)
    with making(source, target, UNPACK, described, overwrite, manifest) as out:
        job = _restoring_job(engine, source, UNPACK, out.mark, restoring, packed, progress, failed)
        found = [
            _file(folder.place(source, name), folder.place(out.root, name), expected)
            for name, expected in hashes.items()
            if name not in changed
        ]
        restoring.limits.need_output(_raw_size(job, found) + sum(map(len, changed.values())))
        totals = _total(job.run(found, out.notes))
        for name, data in changed.items():
            place = out.root / name
            if not storage.remote(place):
                place.parent.mkdir(parents=True, exist_ok=True)
            with files.replacing(place, (source / name).stat()) as sink:
                sink.write(data)
        totals = _with_changed_files(totals, source, changed)
        tidy(out.root, target, set(hashes))
    return totals


def verify(
    engine: Engine[Any],
    source: Path,
    *,
    base: Path | None = None,
    threads: int = 1,
    limits: Limits | None = None,
    progress: Callable[[int], None] = lambda count: None,
    failed: Failed = lambda done: None,
) -> Totals:
    """Verify a checkpoint as `squeeze.verify` does.

    Each file is one call: its SHA-256 is over all its bytes in order.
    """
    _check_source(source)
    restoring = Restoring.of(source, base, threads, limits, None)
    hashes, changed, packed = _listed_files(source, restoring.limits)
    job = _restoring_job(engine, source, VERIFY, "", restoring, packed, progress, failed)
    names = [name for name in hashes if name not in changed]
    found = [_file(folder.place(source, name), None, hashes[name]) for name in names]
    return _with_changed_files(_total(job.run(found)), source, changed)


def _check_source(source: Path) -> None:
    if not source.exists():
        raise FileNotFoundError(2, "No such file or directory", str(source))


def _restoring_job(
    engine: Engine[Any],
    source: Path,
    operation: str,
    mark: str,
    restoring: Restoring,
    packed: frozenset[str],
    progress: Callable[[int], None],
    failed: Failed,
) -> _Checkpoint:
    options = {"root": source, "base": restoring.base, "threads": restoring.threads, "limits": restoring.limits}
    paths = [folder.place(source, name) for name in packed]
    heads = _heads(paths, lambda path: container.read(path, restoring.limits))
    return _Checkpoint(engine, Task(operation, {**options, "packed": packed}, mark), progress, failed, heads)


def _listed_files(source: Path, limits: Limits) -> tuple[dict[str, str], dict[str, bytes], frozenset[str]]:
    """Return what a packed checkpoint says of its files: their SHA-256, the contents of changed ones, and packed names.

    Raises DamagedError if a file is missing or has an unexpected content.
    """
    if not source.is_dir():
        return {"": ""}, {}, frozenset([""])
    listed = manifests.read(source, limits)
    for name in listed.hashes:
        if not (source / name).is_file():
            raise DamagedError(f"{source}: {printable(name)} is missing from the packed folder")
    for name, data in listed.changed_files.items():
        if folder.sha256_of_bytes(data) != listed.hashes[name]:
            raise DamagedError(f"{source / name}: the SHA-256 of what was restored differs: the folder is damaged")
    return listed.hashes, listed.changed_files, frozenset(listed.packed_names)


def _raw_size(job: _Checkpoint, files: list[File]) -> int:
    """Return the bytes of all restored files, as far as the headers of packed files tell."""
    heads = (job.heads.get(file.source) for file in files)
    return sum(head.description.size if head else file.size for head, file in zip(heads, files, strict=True))


def _with_changed_files(totals: Totals, source: Path, changed: dict[str, bytes]) -> Totals:
    """Add the sizes of the changed files and of the manifest to the totals of a folder."""
    if not source.is_dir():
        return totals
    coded = sum((source / name).stat().st_size for name in (*changed, folder.MANIFEST))
    return Totals(totals.raw + sum(map(len, changed.values())), totals.coded + coded)


def _total(results: dict[str, FileResult]) -> Totals:
    return Totals(sum(one.raw for one in results.values()), sum(one.coded for one in results.values()))


def _file(path: Path, target: Path | None, checksum: str = "") -> File:
    status = path.stat()
    return File(path, status.st_size, stamp_of(status), target, checksum, version_of(path))


def _heads(paths: list[Path], read: Callable[[Path], Any]) -> dict[Path, Any]:
    """Return what `read` returns for each file, without damaged files, which a worker will report."""

    def head(path: Path) -> Any:
        try:
            return read(path)
        except (FormatError, OSError):
            return None

    with ThreadPoolExecutor(_READERS) as pool:
        return {path: found for path, found in zip(paths, pool.map(head, paths), strict=True) if found is not None}


def _finish_folder(source: Path, packed: Path, hashes: dict[str, str]) -> int:
    """Write the files that a packed folder has in place of copies, its manifest last, and return their bytes."""
    coded = (name for name in hashes if name.endswith(CODED) and not name.endswith(folder.SUFFIX))
    states = [name for name in coded if is_packed(packed / name, Limits())]
    changed = manifests.adapted(source, packed, hashes)
    text = manifests.text_of(source, changed, hashes, states)
    for name, data in changed.items():
        with files.replacing(packed / name, (source / name).stat()) as sink:
            sink.write(data)
    with files.replacing(packed / folder.MANIFEST) as sink:
        sink.write(text)
    return len(text) + sum(len(data) - (source / name).stat().st_size for name, data in changed.items())
