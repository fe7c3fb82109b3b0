"""An object of S3 that is made of others: the store copies what it has already, and only bytes between are sent.

S3 takes 10,000 parts of one object, each of 5 MiB or more but for the last. So what is shorter is read, and sent with
what comes before and after it.
"""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from itertools import pairwise
from typing import Any, BinaryIO

from squeeze.errors import SqueezeError
from squeeze.system.remote_errors import broken, persistently
from squeeze.system.remote_file import RemoteFile

__all__ = ["Composed", "composes"]

_LEAST, _PARTS = 5 << 20, 9_000  # bytes of a part, and how many there may be: some less than S3 takes
_SENT, _COPIED = 1 << 25, 1 << 28  # bytes of a part that is sent, and of one that is copied, where they need be no more
_AT_ONCE = 8  # copies: of each the store does some 100 MB a second
_PIECE = 1 << 20
_SUMS = "ChecksumCRC32", "ChecksumCRC32C", "ChecksumCRC64NVME", "ChecksumSHA1", "ChecksumSHA256"


def composes(fs: Any, size: int) -> bool:
    """Whether a filesystem of fsspec is S3, so that objects of about so many bytes can be made of others."""
    return fs.protocol == ("s3", "s3a") and not fs.asynchronous and size >= 2 * _LEAST


class Composed:
    """A new object, with the methods of a file of fsspec that is open for writing in a transaction: it is seen when it
    is committed. exclusive: another may not be replaced; size: bytes that it has, or somewhat less."""

    def __init__(self, fs: Any, path: str, exclusive: bool, size: int):
        bucket, key, _ = fs.split_path(path)
        self._fs, self._url, self._place = fs, fs.unstrip_protocol(path), {"Bucket": bucket, "Key": key}
        self._condition = {"IfNoneMatch": "*"} if exclusive else {}
        self._least = max(_LEAST, size // _PARTS)
        self._waiting = bytearray()  # to be sent
        self._parts: list[Future[dict[str, Any]]] = []
        self._copies: bool | None = None  # whether the store does; not known before it has copied something
        self._pool = ThreadPoolExecutor(_AT_ONCE)
        self._place["UploadId"] = self._ask("create_multipart_upload")["UploadId"]

    def write(self, data: Any) -> None:
        self._waiting += data
        if len(self._waiting) >= max(_SENT, self._least):
            self._send()

    def copies(self, file: BinaryIO, count: int) -> bool:
        """Whether `copy` would let the store copy most of these bytes."""
        is_there = isinstance(file, RemoteFile) and bool(file.key)
        return is_there and self._copies is not False and count - self._short >= self._least

    @property
    def _short(self) -> int:
        """Bytes that those which wait lack to be a part."""
        return max(self._least - len(self._waiting), 0) if self._waiting else 0

    def copy(self, file: BinaryIO, count: int) -> None:
        """Write the next `count` bytes of a file. Of an object in the same store few are read: those that bring what
        waits to the least that a part has."""
        if not self.copies(file, count):
            self._pass(file, count)
            return
        assert isinstance(file, RemoteFile)
        end = file.tell() + count
        self._pass(file, self._short)
        if self._waiting:
            self._send()
        for begin, stop in _ranges(file.tell(), end, max(_COPIED, 2 * self._least)):
            if not self._begin_copy(file, begin, stop):
                file.seek(begin)
                self._pass(file, end - begin)
                return
        file.seek(end)

    def _begin_copy(self, file: RemoteFile, begin: int, end: int) -> bool:
        """False where the store copies nothing: not all that speak of S3 do."""
        part = self._pool.submit(self._copied, len(self._parts) + 1, file, begin, end)
        if self._copies is None:
            self._copies = not isinstance(error := part.exception(), OSError | SqueezeError)
            if error and self._copies:
                raise error
        if self._copies:
            self._parts.append(part)
        return self._copies

    def _copied(self, number: int, file: RemoteFile, begin: int, end: int) -> dict[str, Any]:
        bucket, key, _ = self._fs.split_path(file.key)
        source = {"CopySource": {"Bucket": bucket, "Key": key}, "CopySourceRange": f"bytes={begin}-{end - 1}"}
        same = {"CopySourceIfMatch": file.etag} if file.etag else {}
        answer = self._ask("upload_part_copy", PartNumber=number, **source, **same)
        return _part(number, answer["CopyPartResult"])

    def _pass(self, file: BinaryIO, count: int) -> None:
        while count:
            piece = file.read(min(count, _PIECE))
            if not piece:
                raise broken(self._url, "what it is made of has become shorter")
            self.write(piece)
            count -= len(piece)

    def _send(self) -> None:
        number, data = len(self._parts) + 1, bytes(self._waiting)
        self._waiting.clear()
        part = self._pool.submit(lambda: _part(number, self._ask("upload_part", PartNumber=number, Body=data)))
        self._parts.append(part)
        part.result()

    def _ask(self, method: str, **given: Any) -> Any:
        return persistently(self._url, lambda: self._fs.call_s3(method, **self._place, **given))

    def close(self) -> None:
        """Wait until all is there."""
        if self._waiting or not self._parts:
            self._send()
        for part in self._parts:
            part.result()
        self._pool.shutdown()

    def commit(self) -> None:
        """Once: where the answer is lost, the object may be there."""
        parts = {"Parts": [part.result() for part in self._parts]}
        self._fs.call_s3("complete_multipart_upload", **self._place, MultipartUpload=parts, **self._condition)
        self._fs.invalidate_cache(self._url)

    def discard(self) -> None:
        self._pool.shutdown(cancel_futures=True)
        with suppress(Exception):
            self._fs.call_s3("abort_multipart_upload", **self._place)


def _part(number: int, answer: dict[str, Any]) -> dict[str, Any]:
    """What the end of an upload names a part by."""
    return {"PartNumber": number, **{name: answer[name] for name in ("ETag", *_SUMS) if name in answer}}


def _ranges(begin: int, end: int, most: int) -> Iterator[tuple[int, int]]:
    """A range in pieces of about one size, at most `most` bytes each."""
    count = -(-(end - begin) // most)
    bounds = [begin + (end - begin) * number // count for number in range(count + 1)]
    yield from pairwise(bounds)
