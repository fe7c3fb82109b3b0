"""Writing objects that appear complete or not at all.

Stores take large objects in parts (multipart uploads), which are invisible until the upload is completed. Each upload
is a transaction, and is aborted if interrupted. A killed process leaves invisible parts until the bucket's rules delete
them.
"""

import io
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, cast

from squeeze.errors import StorageError, drop_notes
from squeeze.system.moving import in_the_way
from squeeze.system.remote_errors import retry, translated_errors
from squeeze.system.remote_path import RemotePath
from squeeze.system.s3_composing import Composed, composes

__all__ = ["check_free", "copier", "discard_upload", "staged", "uploading"]

_PIECE = 1 << 24  # bytes passed to a filesystem at a time, which copies them


def check_free(target: RemotePath, overwrite: bool) -> None:
    """Raise SqueezeError if the object exists and may not be overwritten."""
    if target.exists() and not overwrite:
        raise in_the_way(cast(Path, target))


@contextmanager
def uploading(target: RemotePath, overwrite: bool, composed: int = 0) -> Iterator[BinaryIO]:
    """Open an object for sequential writing that appears when the block succeeds.

    Args:
        target: The object.
        overwrite: Whether an existing object may be replaced.
        composed: The approximate size in bytes if it is composed of objects in the same store, otherwise 0.

    Raises:
        SqueezeError: The object exists and may not be overwritten.
        OSError: The store failed.
    """
    with _transaction(target, overwrite) as objects, objects.writing(target, composed) as file:
        yield file


@contextmanager
def staged(target: RemotePath, overwrite: bool) -> Iterator[Path]:
    """Yield a local path for a file or folder that is uploaded when the block succeeds and always deleted.

    Use it for output that is not written sequentially. All files of a folder are uploaded before the first appears, and
    objects that were there before are deleted last. A broken upload of a file is repeated a few times. Raises the same
    errors as `uploading`.
    """
    check_free(target, overwrite)
    with tempfile.TemporaryDirectory(prefix="squeeze-") as scratch:
        local = Path(scratch, target.name)
        try:
            with _advice_to_start_over():
                yield local
        except BaseException as error:
            drop_notes(error, scratch)
            raise
        folder = local.is_dir()
        before = target.descendants() if folder and overwrite else []
        files = sorted(path for path in local.rglob("*") if path.is_file()) if folder else [local]
        places = [target / path.relative_to(local).as_posix() if folder else target for path in files]
        with _transaction(target, overwrite) as objects:
            for path, place in zip(files, places, strict=True):
                retry(str(place), partial(objects.copy, path, place))
        for stale in set(before) - set(places):
            stale.unlink()


def discard_upload(file: Any) -> None:
    """Discard an object that fsspec has open for writing, as far as the store can."""
    with suppress(Exception):
        file.discard()
    with suppress(Exception):
        file.closed = True  # otherwise garbage collection would write it


def _dropped(file: Any) -> None:
    discard_upload(file)
    if local := getattr(file, "temp_file", None):  # the Hugging Face Hub's filesystem has a temporary file
        Path(local.name).unlink(missing_ok=True)


def copier(sink: object, file: BinaryIO, count: int) -> Callable[[], None] | None:
    """Return a function that copies the next bytes of a file to an object within the store, or None if it cannot."""
    return partial(sink.copy, file, count) if isinstance(sink, _Sink) and sink.copies(file, count) else None


@contextmanager
def _advice_to_start_over() -> Iterator[None]:
    """Make the advice of a StorageError say that the work starts over, since temporary files are deleted."""
    try:
        yield
    except StorageError as error:
        error.what_next = StorageError.what_next
        raise


class _Objects:
    """The objects of one transaction, written one after the other."""

    def __init__(self, target: RemotePath, overwrite: bool):
        self._mode = "wb" if overwrite else "xb"
        self._fs, _ = target.filesystem()
        self._shared = self._fs.protocol == ("s3", "s3a")  # where a filesystem of its own takes a third of a second
        if not self._shared:
            self._fs, _ = target.filesystem(skip_instance_cache=True)
            self._fs.start_transaction()
        self._files: list[tuple[RemotePath, Any]] = []
        self._committed = 0

    @contextmanager
    def writing(self, path: RemotePath, composed: int = 0) -> Iterator[BinaryIO]:
        """Open an object for writing. All its bytes are sent when the block succeeds."""
        key = path.filesystem()[1]
        with _errors_about(path):
            if composes(self._fs, composed):
                file: Any = Composed(self._fs, key, self._mode == "xb", composed)
            elif self._shared:
                file = self._fs.open(key, self._mode, autocommit=False)
                self._fs.transaction.files.remove(file)  # which is this one's
            else:
                file = self._fs.open(key, self._mode)
        self._files.append((path, file))
        try:
            yield cast(BinaryIO, _Sink(path, file))
            with _errors_about(path):
                file.close()
        except BaseException:
            self._files.pop()
            _dropped(file)
            raise

    def copy(self, source: Path, target: RemotePath) -> None:
        """Upload a local file."""
        with source.open("rb") as reading, self.writing(target) as sink:
            while piece := reading.read(_PIECE):
                sink.write(piece)

    def commit(self) -> None:
        """Make all objects visible."""
        for path, file in self._files:
            with _errors_about(path):
                file.commit()
            self._committed += 1

    def abort(self) -> None:
        """Discard all objects. Errors of the store are ignored, so that the first error is the one reported."""
        for number, (path, file) in enumerate(self._files):
            if number < self._committed:
                with suppress(Exception):
                    if self._mode == "xb":
                        path.unlink()
                continue
            _dropped(file)


@contextmanager
def _transaction(target: RemotePath, overwrite: bool) -> Iterator[_Objects]:
    objects = _Objects(target, overwrite)
    try:
        yield objects
        objects.commit()
    except BaseException:
        objects.abort()
        raise


class _Sink:
    """An object that is being written. Only its transaction closes it, not its garbage collection."""

    def __init__(self, path: RemotePath, file: Any):
        self._path, self._file, self._position = path, file, 0

    def tell(self) -> int:
        return self._position

    def flush(self) -> None:
        """Do nothing: an object is invisible until it is complete."""

    def fileno(self) -> int:
        raise io.UnsupportedOperation("an object has no number of a file")

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        with _errors_about(self._path):
            for start in range(0, view.nbytes, _PIECE):
                self._file.write(view[start : start + _PIECE])
        self._position += view.nbytes
        return view.nbytes

    def copies(self, file: BinaryIO, count: int) -> bool:
        return isinstance(self._file, Composed) and self._file.copies(file, count)

    def copy(self, file: BinaryIO, count: int) -> None:
        """Write the next `count` bytes of a file, which the store copies if it has them."""
        with _errors_about(self._path):
            self._file.copy(file, count)
        self._position += count


@contextmanager
def _errors_about(path: RemotePath) -> Iterator[None]:
    """Translate errors of the store about this URL, and an existing object to an error that says so."""
    try:
        with translated_errors(str(path)):
            yield
    except FileExistsError:
        raise in_the_way(cast(Path, path)) from None
